#!/bin/sh
# Prints the version of the workspace.
set -eu

sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml"
