#!/bin/bash
# siw.sh DIR: builds the kernel's siw, which Debian does not switch on, from what sources.sh has put
# into DIR: DIR/siw/siw.ko.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(cd "$1" && pwd)
release=$("$here/release.sh")
[ -e "$dir/siw/siw.ko" ] && exit 0
make -s -C "/lib/modules/$release/build" M="$dir/siw" CONFIG_RDMA_SIW=m modules \
    >"$dir/siw.log" 2>&1 || { cat "$dir/siw.log" >&2; exit 1; }
