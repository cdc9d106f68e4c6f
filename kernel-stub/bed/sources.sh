#!/bin/bash
# sources.sh DIR: extracts files that only Debian's source package of the kernel has, for the kernel
# whose headers are installed: DIR/siw, a driver that Debian does not enable, and DIR/scripts with
# checkpatch.pl. Fails with a message if the archive does not have the sources.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(mkdir -p "$1" && cd "$1" && pwd)
release=$("$here/release.sh")
[ -e "$dir/scripts/checkpatch.pl" ] && exit 0

series=$(echo "$release" | cut -d. -f1-2)
version=$(dpkg-query -W -f '${Version}' "linux-headers-$release")
work=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
# apt warns unless its sandbox user can write here.
chmod 755 "$work"
if ! (cd "$work" && timeout 900 apt-get download -q "linux-source-$series=$version" >log 2>&1); then
    echo "sources.sh: no linux-source-$series of version $version in the archive" >&2
    exit 1
fi
dpkg-deb --fsys-tarfile "$work"/linux-source-*.deb |
    tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
    tar -xJ -C "$work" --strip-components=1 --wildcards '*/drivers/infiniband/sw/siw' \
        '*/scripts/checkpatch.pl' '*/scripts/spelling.txt' \
        '*/scripts/const_structs.checkpatch'
rm -rf "$dir/siw" "$dir/scripts"
mv "$work/drivers/infiniband/sw/siw" "$dir/siw"
mv "$work/scripts" "$dir/scripts"
