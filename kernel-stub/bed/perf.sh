#!/bin/bash
# perf.sh: in one guest and one boot, the same programs over our module, over rdma_rxe, and over siw if Debian's archive has its sources; prints a table.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
siw=$(cd "$here/../.." && pwd)/target/kernel/siw-$("$here/release.sh")
"$here/siw.sh" "$siw" || echo "without siw"
export URDMA_BED_CHECKS=$here/perf URDMA_BED_SIW=$siw/siw.ko
[ -e "$URDMA_BED_SIW" ] || URDMA_BED_SIW=
exec "$here/test.sh"
