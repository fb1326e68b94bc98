# Waits for the end of the program that owns a rig, and ends what that program started. $1 folder, $2 network namespace
read -r word && [ "$word" = keep ] && exit 0
for record in "$1"/pids/*.pid; do
	read -r process started log < "$record" || continue
	read -r stat 2>/dev/null < "/proc/$process/stat" || continue
	# The fields after the name in brackets: the 20th of them is the time of the start.
	fields=${stat##*) }
	# shellcheck disable=SC2086
	now=$(set -- $fields; shift 19; echo "$1")
	[ "$now" = "$started" ] && kill -9 "$process"
done
ip netns del "$2" 2>/dev/null
rm -rf "$1"/*/*.disk "$1/etcd" "$1/owner"
