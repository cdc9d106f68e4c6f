#!/bin/bash
# perf.sh [COMPARISON...]: runs the same programs in one guest over urdma's module, rdma_rxe, and
# siw if Debian's archive has its sources; prints tables. With arguments, only those comparisons of
# perf/ whose names begin with one of them.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/target/kernel
"$here/prepare.sh" "$cache"
sources=$cache/sources-$("$here/release.sh")
export URDMA_BED_CHECKS=$here/perf URDMA_BED_SIW=
if "$here/sources.sh" "$sources" && "$here/siw.sh" "$sources"; then
    URDMA_BED_SIW=$sources/siw/siw.ko
else
    echo "without siw"
fi
exec "$here/test.sh" "$@"
