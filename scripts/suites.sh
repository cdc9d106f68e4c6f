#!/bin/sh
# Fetches the sources of redis and Ruby, whose tests `make test-all` runs with Debian's programs:
# suites.sh DIRECTORY
set -eu

directory=${1:?usage: suites.sh DIRECTORY}
for package in redis ruby3.1; do
    [ -e "$directory/$package/complete" ] && continue
    echo "Fetching the tests of $package from the source of Debian bookworm"
    "$(dirname "$0")/debian-source.sh" bookworm "$package" "$directory/$package"
    rm -rf "$directory/$package.apt"
    touch "$directory/$package/complete"
done
# The tests of redis look for its programs there.
for program in server cli benchmark sentinel check-rdb check-aof; do
    ln -sf "/usr/bin/redis-$program" "$directory/redis/src/redis-$program"
done
