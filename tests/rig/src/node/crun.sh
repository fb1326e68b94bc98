#!/bin/sh
# Debian's crun 1.8 refuses the version of the runtime specification that containerd 2 writes; it knows all that is used.
bundle=
previous=
for word; do
	[ "$previous" = --bundle ] && bundle=$word
	case $word in --bundle=*) bundle=${word#--bundle=} ;; esac
	previous=$word
done
[ -n "$bundle" ] && sed -i '1s/"ociVersion":"[^"]*"/"ociVersion":"1.0.2"/' "$bundle/config.json"
exec /usr/bin/crun "$@"
