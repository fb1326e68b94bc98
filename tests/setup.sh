#!/usr/bin/env bash
# Installs what demo, test and bench need, by package name. Says what is missing where it can not.
set -euo pipefail

packages=(
  qemu-system-x86 qemu-utils                 # the nodes
  mmdebstrap erofs-utils cpio kmod zstd xz-utils lz4 # the guest and the image
  lvm2 xfsprogs e2fsprogs btrfs-progs thin-provisioning-tools util-linux fdisk # tests on loop devices
  iproute2 openssl curl socat                # the control plane's network and certificates
  gcc libc6-dev make git ca-certificates     # building
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} = 0 ] || echo "packages to install: ${missing[*]}"

if [ "$(id -u)" != 0 ]; then
  echo "Network namespaces, loop devices and images need root: run this again with sudo." >&2
  exit 1
fi
command -v apt-get >/dev/null || { echo "This runs on Debian or Ubuntu. Elsewhere install: ${packages[*]}" >&2; exit 1; }
for tool in cargo go; do
  command -v $tool >/dev/null || {
    echo "$tool is not on the PATH: install Rust 1.95 (rustup) and Go 1.26 or newer, and run this again." >&2
    exit 1
  }
done
free=$(df --output=avail -BG . | tail -1 | tr -dc 0-9)
[ "$free" -ge 15 ] || { echo "There are $free GiB free here; parts, guest and builds need 15." >&2; exit 1; }

if [ ${#missing[@]} != 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
# mmdebstrap and apt-get download read the lists that apt-get update fetches.
[ -n "$(find /var/lib/apt/lists -name '*_Packages*' -print -quit)" ] || apt-get update -qq
