#!/bin/sh
# Makes a guest into a Kubernetes node. In: NODE, IP, GATEWAY.
set -e
export PATH=/opt/rig/bin:/usr/sbin:/usr/bin:/sbin:/bin

echo "$NODE" > /proc/sys/kernel/hostname
echo "127.0.0.1 localhost $NODE" > /etc/hosts
: > /etc/resolv.conf
ip -batch - <<END
addr add $IP/24 dev eth0
link set eth0 up
route add default via $GATEWAY
END
modprobe -a veth loop ext4
echo 1 > /proc/sys/net/ipv4/ip_forward

# What a machine keeps over a restart is on a disk of its own: the root is a tmpfs, and overlayfs takes no overlay as
# an upper layer.
mkdir -p /var/lib/rig
mount -t ext4 -o noatime,discard /dev/disk/by-id/virtio-rigstate /var/lib/rig
for kept in containerd kubelet stowage; do
	mkdir -p /var/lib/rig/$kept /var/lib/$kept
	mount --bind /var/lib/rig/$kept /var/lib/$kept
done
mkdir -p /var/log/pods /var/log/containers /run/containerd
# Mounts made in a pod with Bidirectional propagation are seen by the others.
mount --make-rshared /

# No process may stay in the root cgroup when its controllers are switched on.
mkdir -p /sys/fs/cgroup/system
while read -r process; do
	echo "$process" > /sys/fs/cgroup/system/cgroup.procs 2>/dev/null || true
done < /sys/fs/cgroup/cgroup.procs
echo "+cpu +memory +pids +io +cpuset" > /sys/fs/cgroup/cgroup.subtree_control

setsid containerd -c /opt/rig/containerd.toml -l "${CONTAINERD_LOG:-warn}" > /var/log/containerd.log 2>&1 < /dev/null &
echo $! > /run/containerd.pid

# A connection to the API server that died is noticed within three seconds, not 45.
export HTTP2_READ_IDLE_TIMEOUT_SECONDS=2 HTTP2_PING_TIMEOUT_SECONDS=1
setsid kubelet --config=/etc/kubernetes/kubelet.json --kubeconfig=/etc/kubernetes/kubelet.conf \
	--hostname-override="$NODE" --node-ip="$IP" --housekeeping-interval=10m --v="${KUBELET_LOG:-2}" \
	> /var/log/kubelet.log 2>&1 < /dev/null &
echo $! > /run/kubelet.pid
