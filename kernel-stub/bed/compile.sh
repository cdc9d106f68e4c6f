#!/bin/bash
# compile.sh VARIABLE=VALUE...: has the module's Makefile compile it with sparse. Neither the
# compiler nor sparse may have anything to say.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
log=$(mktemp "${TMPDIR:-/tmp}/urdma-compile.XXXXXX")
trap 'rm -f "$log"' EXIT
# Without what a `make test` may have been told about itself.
env -u MAKEFLAGS -u MAKELEVEL make -s -C "$here/../module" C=1 "$@" >"$log" 2>&1 ||
    { cat "$log"; exit 1; }
# What the kernel's makefiles say of the machine is no complaint: that the headers lack something,
# that the kernel's compiler was another.
if grep -E '^[^ :]+:[0-9]+(:[0-9]+)?: |^WARNING' "$log"; then
    echo "compiler or sparse complain of the module"
    exit 1
fi
