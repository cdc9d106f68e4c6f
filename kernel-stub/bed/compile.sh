#!/bin/bash
# compile.sh VARIABLE=VALUE...: compiles the module by its Makefile, with sparse. Fails on any
# message of the compiler or of sparse.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
log=$(mktemp "${TMPDIR:-/tmp}/urdma-compile.XXXXXX")
trap 'rm -f "$log"' EXIT
# Without the variables of an enclosing `make test`.
env -u MAKEFLAGS -u MAKELEVEL make -s -C "$here/../module" C=1 "$@" >"$log" 2>&1 ||
    { cat "$log"; exit 1; }
# Messages of the kernel's makefiles about the environment are ignored: missing headers, another
# version of the compiler.
if grep -E '^[^ :]+:[0-9]+(:[0-9]+)?: |^WARNING' "$log"; then
    echo "the compiler or sparse reports errors in the module"
    exit 1
fi
