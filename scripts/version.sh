#!/bin/sh
# Prints the version of the workspace.
set -eu

cd "$(dirname "$0")/.."
sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml
