#!/bin/sh
# Writes a release of the commit that is checked out: a tarball of the sources, the software bill of
# materials, and their checksums. The same commit gives the same octets.
#   dist.sh FOLDER
set -eu

[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(realpath "$1")
cd "$(dirname "$0")/.."
if ! git diff --quiet HEAD; then
    echo "dist.sh: the tree differs from its commit: commit the changes, or stash them." >&2
    exit 1
fi
name=urdma-$(scripts/version.sh)
time_s=$(git log -1 --format=%ct)
# Names and times are the commit's; the user's umask and gzip's time of writing are left out.
git -c tar.umask=0022 archive --format=tar --prefix="$name/" HEAD |
    gzip -9n >"$folder/$name.tar.gz"
scripts/sbom.py "$time_s" >"$folder/$name.cdx.json"
cd "$folder"
sha256sum "$name.tar.gz" "$name.cdx.json" >"$name.sha256"
cat "$name.sha256"
