#!/bin/sh
# release.sh: prints the kernel release whose headers are installed, the newest if there are
# several (6.1.0-56-amd64).
set -eu
for headers in /lib/modules/*/build; do
    [ -e "$headers/Makefile" ] && basename "$(dirname "$headers")"
done | sort -V | tail -n 1 | grep .
