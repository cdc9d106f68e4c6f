#!/bin/sh
# Copies the programs of this directory into PREFIX/bin and PREFIX/lib/urdma.
#   install.sh PREFIX
set -eu

[ $# = 1 ] || { echo "usage: $0 PREFIX" >&2; exit 2; }
mkdir -p "$1/bin" "$1/lib/urdma"
cd "$(dirname "$0")"
case $1 in
    /*) prefix=$1 ;;
    *) prefix=$OLDPWD/$1 ;;
esac
install -m755 -t "$prefix/bin" urdma urdmad
install -m755 -t "$prefix/lib/urdma" liburdma_provider.so liburdma_standin.so
echo "urdma is in $prefix/bin"
