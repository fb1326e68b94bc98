#!/bin/sh
# Imports image archives into a node's disk, with a containerd of its own on this machine: in a guest under emulation
# it takes twenty times as long. In a mount namespace of its own. $1 disk, $2 folder of programs, then archives.
set -e
disk=$1 programs=$2
shift 2
mount -t tmpfs -o mode=755 rig /mnt
mkdir /mnt/disk /mnt/run
mount -o loop "$disk" /mnt/disk
mkdir -p /mnt/disk/containerd
sed -e 's,"/var/lib/containerd","/mnt/disk/containerd",; s,/run/containerd,/mnt/run,; /oom_score/d' > /mnt/containerd.toml
setpriv --pdeathsig KILL "$programs/containerd" -c /mnt/containerd.toml -l error > /mnt/log 2>&1 &
containerd=$!
fail() {
	cat /mnt/log >&2
	exit 1
}
tries=0
while ! [ -S /mnt/run/containerd.sock ]; do
	tries=$((tries + 1))
	[ $tries -lt 600 ] && kill -0 $containerd || fail
	sleep 0.05
done
for archive; do
	"$programs/ctr" -a /mnt/run/containerd.sock -n k8s.io images import --local "$archive" > /dev/null || fail
done
kill $containerd
wait $containerd || true
rm -rf /mnt/disk/containerd/tmpmounts /mnt/disk/containerd/io.containerd.grpc.v1.introspection
umount /mnt/disk
