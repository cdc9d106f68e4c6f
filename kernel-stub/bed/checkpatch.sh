#!/bin/bash
# checkpatch.sh: runs the kernel's checkpatch.pl on the module's files; fails on any report.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)/target/kernel/sources-$("$here/release.sh")
"$here/sources.sh" "$sources"
# A module outside of the kernel tree has to check for which version it is compiled.
perl "$sources/scripts/checkpatch.pl" --no-tree --strict --quiet --terse \
    --ignore LINUX_VERSION_CODE,CONSTANT_COMPARISON \
    --file "$here"/../module/*.[ch] "$here"/../uapi/urdma.h
