#!/bin/sh
# Runs the tarball for aarch64 in a root file system of Debian 12 for that processor, under QEMU's
# emulation of programs (qemu-user). As root, with Linux 6.7 or later.
#   test-aarch64.sh FOLDER FOLDER-OF-FILE-SYSTEMS    FOLDER is that of tarball.sh
set -eu

[ $# = 2 ] || { echo "usage: $0 FOLDER FOLDER-OF-FILE-SYSTEMS" >&2; exit 2; }
folder=$(realpath "$1")
mkdir -p "$2"
root=$(realpath "$2")/bookworm-aarch64
cd "$(dirname "$0")/.."
scripts/install-deps.sh aarch64
if [ ! -e "$root/made" ]; then
    rm -rf --one-file-system "$root"
    # The packages are unpacked only: what they would do when they are configured is not needed.
    mmdebstrap --quiet --mode=root --variant=extract --architectures=arm64 --skip=check/qemu \
        --include=coreutils,dash,ibverbs-utils,libc6 \
        bookworm "$root" http://deb.debian.org/debian
    mkdir -p "$root/dev" "$root/opt" "$root/proc" "$root/run" "$root/sys" "$root/tmp"
    ln -sf dash "$root/bin/sh"
    touch "$root/made"
fi
rm -rf "$root/opt/urdma"
mkdir "$root/opt/urdma"
tar --extract --zstd --file="$(echo "$folder"/urdma-*-linux-aarch64.tar.zst)" \
    --directory="$root/opt/urdma" --strip-components=1

# A port over UDP sockets is not tested: the emulation lacks options of their sockets.
cat >"$root/opt/check" <<'CHECK'
set -eux
urdma doctor
urdma up --run-dir /tmp/one
urdma run --run-dir /tmp/one -- ibv_devinfo -d urdma0
urdma run --run-dir /tmp/one -- ibv_rc_pingpong -d urdma0 -g 1 -n 100 &
# The server may not listen yet.
until urdma run --run-dir /tmp/one -- ibv_rc_pingpong -d urdma0 -g 1 -n 100 127.0.0.1; do
    sleep 1
done
wait $!
urdma down --run-dir /tmp/one
CHECK

# A user namespace has a table of interpreters of its own, so the machine's is not changed.
# shellcheck disable=SC2016 # expanded by the inner shell
inside='
set -eu
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register
ip link set lo up
mount --bind "$1" "$1"
for directory in dev proc sys; do
    mount --rbind "/$directory" "$1/$directory"
done
mount -t tmpfs tmpfs "$1/tmp"
export PATH=/opt/urdma:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
unset TMPDIR XDG_RUNTIME_DIR
exec chroot "$1" sh /opt/check'
echo "Debian bookworm for aarch64, emulated, with the tarball:"
log=$folder/aarch64.log
if ! timeout -k 10 300 unshare --user --map-root-user --mount --net --pid --fork --kill-child \
    --mount-proc sh -c "$inside" sh "$root" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
grep -o '100 iters in .*' "$log" | sed 's/^/ok    ibv_rc_pingpong: /'
