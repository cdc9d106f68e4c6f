#!/bin/sh
# Installs, uses, upgrades, removes and purges packages that packages.sh has built, in a copy of a
# root file system with nothing but a release of Debian. As root.
#   test-packages.sh PACKAGES FOLDER [RELEASE]
# FOLDER keeps the root file system; RELEASE is that of the packages, by default this machine's.
set -eu
# Ordinary users read what is installed there.
umask 022

[ $# = 2 ] || [ $# = 3 ] || { echo "usage: $0 PACKAGES FOLDER [RELEASE]" >&2; exit 2; }
# shellcheck source=/dev/null
release=${3:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
packages=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
cd "$(dirname "$0")/.."
clean=$folder/clean-$release
scripts/root-fs.sh "$release" "$clean"

root=$folder/packages-$release
remove() {
    rm -rf --one-file-system "$root" "$root-target"
}
trap remove EXIT
trap 'exit 1' INT TERM
remove
cp -a "$clean" "$root"
mkdir "$root/packages"
cp "$packages"/*.deb "$root/packages"
run() {
    timeout -k 10 900 unshare --pid --fork --kill-child --mount-proc "$@"
}
log=$root/log
echo "Testing the packages on Debian $release"
# The programs run without another network than loopback; apt needs one for what is depended on.
if ! {
    run scripts/root-fs-run.sh "$root" tests/packages/check.sh prepare &&
        run unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
            scripts/root-fs-run.sh "$root" tests/packages/check.sh use
} >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
sed -n 's/^ok: /  /p' "$log"
