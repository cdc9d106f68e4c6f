#!/bin/sh
# Checks licences, bans and sources of all crates against deny.toml by cargo-deny, which is built in
# target/tools if it is not installed. Its check of advisories needs their database on GitHub, and
# is made if that can be reached.
set -eu

cd "$(dirname "$0")/.."
tools=$PWD/target/tools
PATH=$tools/bin:$PATH
if ! command -v cargo-deny >/dev/null; then
    echo "Building cargo-deny, which takes some minutes"
    cargo install --quiet --locked --root "$tools" --version 0.20.2 cargo-deny
fi
cargo deny --locked check --hide-inclusion-graph licenses bans sources
if timeout 60 git ls-remote --quiet --exit-code https://github.com/RustSec/advisory-db HEAD \
    >/dev/null 2>&1; then
    cargo deny --locked check --hide-inclusion-graph advisories
else
    echo "Advisories are not checked: their database on GitHub cannot be reached."
fi
