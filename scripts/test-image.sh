#!/bin/sh
# Unpacks the image that image.sh has made, and runs what doc/containers.md shows in it, by
# bubblewrap, in a network namespace with loopback only. As root.
#   test-image.sh FOLDER    FOLDER has the image
set -eu

[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
archive=$(realpath "$1"/urdma-*.oci.tar)
cd "$(dirname "$0")/.."
scripts/install-deps.sh image
scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' INT TERM

limit_octets=$((40 * 1024 * 1024))
octets=$(stat -c %s "$archive")
if [ "$octets" -gt $limit_octets ]; then
    echo "test-image.sh: $archive has $octets octets, $limit_octets at most" >&2
    exit 1
fi
mkdir "$scratch/image"
tar -xf "$archive" -C "$scratch/image"
tag=$(umoci ls --layout "$scratch/image")
umoci --log error raw unpack --image "$scratch/image:$tag" "$scratch/root"
timeout -k 10 300 unshare --net --pid --fork --kill-child --mount-proc \
    sh -c 'ip link set lo up && exec "$@"' sh \
    /usr/bin/python3 tests/containers/check.py doc/containers.md "$scratch/root"
