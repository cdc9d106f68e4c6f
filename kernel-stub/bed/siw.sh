#!/bin/bash
# siw.sh DIR: builds DIR/siw/siw.ko, the kernel's siw, which Debian does not enable, from the
# sources that sources.sh has stored in DIR.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(cd "$1" && pwd)
release=$("$here/release.sh")
[ -e "$dir/siw/siw.ko" ] && exit 0
make -s -C "/lib/modules/$release/build" M="$dir/siw" CONFIG_RDMA_SIW=m modules \
    >"$dir/siw.log" 2>&1 || { cat "$dir/siw.log" >&2; exit 1; }
