#!/bin/sh
# Unpacks the tarball of tarball.sh in root file systems of releases of Debian, without DPDK, and
# runs it there as an ordinary user. As root.
#   test-tarball.sh FOLDER FOLDER-OF-FILE-SYSTEMS RELEASE...
set -eu

[ $# -ge 3 ] || { echo "usage: $0 FOLDER FOLDER-OF-FILE-SYSTEMS RELEASE..." >&2; exit 2; }
folder=$(realpath "$1") file_systems=$2
shift 2
cd "$(dirname "$0")/.."
(cd "$folder" && sha256sum --quiet --check urdma-*-linux-*.sha256)
for release in "$@"; do
    root=$file_systems/$release-without-dpdk
    scripts/root-fs.sh "$release" "$root" programs
    rm -rf "$root/opt/urdma"
    mkdir -p "$root/opt/urdma"
    for archive in "$folder"/urdma-*-linux-"$(uname -m)".tar.zst; do
        tar --extract --zstd --file="$archive" --directory="$root/opt/urdma" --strip-components=1
    done
    cp scripts/carried-over.sh "$root/opt/urdma"
    echo "Debian $release, as an ordinary user, with the tarball:"
    # shellcheck disable=SC2016 # expanded by the inner shell
    scripts/root-fs-run.sh "$root" sh -c '
        cd /tmp
        PATH=/opt/urdma:/usr/bin:/bin HOME=/tmp exec setpriv --reuid=1234 --regid=1234 \
            --clear-groups /opt/urdma/carried-over.sh'
done
