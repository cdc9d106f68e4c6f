#!/bin/sh
# RUSTC_WORKSPACE_WRAPPER of the build that `make test` tests: clippy's driver checks a crate, with
# warnings as errors, and compiles it as rustc does.
exec clippy-driver "$@" -D warnings
