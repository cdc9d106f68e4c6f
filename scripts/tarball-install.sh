#!/bin/sh
# Copies the programs of this directory into PREFIX/bin and PREFIX/lib/urdma.
#   install.sh PREFIX
set -eu

[ $# = 1 ] || { echo "usage: $0 PREFIX" >&2; exit 2; }
cd "$(dirname "$0")"
case $1 in
    /*) prefix=$1 ;;
    *) prefix=$OLDPWD/$1 ;;
esac
if ! ./urdma --version >/dev/null; then
    echo "install.sh: this machine does not execute urdma: it needs the processor in the name of" \
        "the archive, glibc 2.28 or later, not musl, and a file system without noexec" >&2
    exit 1
fi
mkdir -p "$prefix/bin" "$prefix/lib/urdma"
install -m755 -t "$prefix/bin" urdma urdmad
install -m755 -t "$prefix/lib/urdma" liburdma_provider.so liburdma_standin.so liburdma_sockets.so
echo "urdma is in $prefix/bin"
