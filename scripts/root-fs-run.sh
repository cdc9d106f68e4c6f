#!/bin/sh
# Runs a command as root in a root file system that root-fs.sh made, in a mount namespace of its
# own, with this repository, and with the Rust toolchain of this machine:
#   root-fs-run.sh FOLDER COMMAND...
# The repository is at the same path as here, with FOLDER-target in the place of its `target`.
set -eu

[ $# -ge 2 ] || { echo "usage: $0 FOLDER COMMAND..." >&2; exit 2; }
root=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
repository=$(pwd)
sysroot=$(rustc --print sysroot)
if [ "$sysroot" = /usr ]; then
    echo "root-fs-run.sh: Rust is not in a directory of its own: install it with rustup." >&2
    exit 1
fi
cargo_home=${CARGO_HOME:-$HOME/.cargo}
target=$root-target
mkdir -p "$target"

# shellcheck disable=SC2016 # expanded by the inner shell
inside='
set -eu
root=$1 repository=$2 sysroot=$3 cargo_home=$4 target=$5
shift 5
bind() {
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
}
mount --bind "$root" "$root"
for directory in /run /tmp; do
    mount -t tmpfs tmpfs "$root$directory"
done
for directory in /dev /proc /sys "$repository" "$cargo_home" "$sysroot"; do
    bind "$directory"
done
mount -o remount,bind,ro "$root$sysroot"
mkdir -p "$repository/target"
touch "$root/etc/resolv.conf"
mount --bind "$(realpath /etc/resolv.conf)" "$root/etc/resolv.conf"
mount --bind "$target" "$root$repository/target"
mkdir -p "$root/run/outer"
cd "$root"
pivot_root . run/outer
umount -l /run/outer
cd "$repository"
export PATH="$sysroot/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export HOME=/root CARGO_HOME="$cargo_home"
unset CARGO_TARGET_DIR TMPDIR XDG_RUNTIME_DIR
exec "$@"'
exec unshare --mount --propagation private sh -c "$inside" sh \
    "$root" "$repository" "$sysroot" "$cargo_home" "$target" "$@"
