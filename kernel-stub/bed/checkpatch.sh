#!/bin/bash
# checkpatch.sh: the kernel's own checkpatch.pl must have nothing to say of the module's files.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)/target/kernel/sources-$("$here/release.sh")
"$here/sources.sh" "$sources"
# A module outside the kernel has to ask for which version it is compiled.
perl "$sources/scripts/checkpatch.pl" --no-tree --strict --quiet --terse \
    --ignore LINUX_VERSION_CODE,CONSTANT_COMPARISON \
    --file "$here"/../module/*.[ch] "$here"/../uapi/urdma.h
