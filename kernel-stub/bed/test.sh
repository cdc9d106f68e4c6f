#!/bin/bash
# test.sh [CHECK...]: builds the module, boots a stock Debian kernel under QEMU's software
# emulation, runs the checks in it (all of checks/, or those whose names begin with an argument) and
# prints their results. Fails if a check fails or if the kernel logs an error. Leaves no files but a
# cache in target/kernel.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=$root/target/kernel
"$here/prepare.sh" "$cache"
release=$("$here/release.sh")
# Time limit of the guest, including the boot: ten times its time on two idle cores.
seconds=${URDMA_BED_SECONDS:-3600}
# An emulated boot takes 10 s on two idle cores.
boot_seconds=300
checks=${URDMA_BED_CHECKS:-$here/checks}
# Messages of the kernel about faults of a module; those about faults of a program begin with the
# name of the program.
complaints='WARNING:|BUG[: ]|Oops|^\[ *[0-9.]+\] general protection|Call Trace'
complaints+='|refcount_t:|UBSAN|hung_task|blocked for more than|bad unlock|DEBUG_LOCKS'

share=$(mktemp -d "${TMPDIR:-/tmp}/urdma-bed.XXXXXX")
guest=
clean_up() {
    if [ -n "$guest" ]; then
        kill "$guest" || true
        wait "$guest" || true
    fi
    rm -rf "$share"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

choose_checks() {
    local file prefix
    mkdir "$share/checks"
    for file in "$checks"/[0-9]*.sh; do
        for prefix in "${@:-}"; do
            case $(basename "$file") in "$prefix"*) cp "$file" "$share/checks/" ;; esac
        done
    done
    ls "$share/checks/"*.sh >/dev/null
}

# Runs the guest until it ends or exceeds the time limit of its boot.
run_guest() {
    local deadline=$((SECONDS + boot_seconds))
    rm -f "$share"/{booted,kernel.log,output}
    : >"$share/results"
    "$here/boot.sh" "$cache" "$share" "$seconds" >"$share/console" 2>&1 &
    guest=$!
    until [ -s "$share/booted" ] || [ $SECONDS -gt $deadline ] || ! kill -0 "$guest" 2>/dev/null; do
        sleep 0.2
    done
    [ -s "$share/booted" ] || kill "$guest" 2>/dev/null || true
    status=0
    wait "$guest" || status=$?
    guest=
}

# QEMU occasionally fails an assertion of its own (SIGABRT), mostly before the guest has booted.
# This is not a failure of the module.
emulator_broke_down() { [ ! -s "$share/booted" ] || [ "$status" = 134 ] || [ "$status" = 139 ]; }

# Prints the result of each check, then the logs of the failed ones; the first to fail is last,
# since it may have caused the others. Fails if a check failed or did not end.
report() {
    local name outcome time file failed=()
    cat "$share/booted"
    while read -r name outcome time; do
        printf '  %-28s %s  %6s s\n' "$name" "$outcome" "$time"
        [ "$outcome" = passed ] || failed=("$name" "${failed[@]}")
    done <"$share/results"
    for file in "$share"/checks/*.sh; do
        name=$(basename "$file" .sh)
        if ! grep -q "^$name " "$share/results"; then
            echo "  $name did not end"
            failed=("$name" "${failed[@]}")
        fi
    done
    for name in "${failed[@]}"; do
        echo "  output of $name:"
        sed 's/^/      /' "$share/$name.log" || true
    done
    [ ${#failed[@]} = 0 ]
}

# Fails if the kernel has logged an error, and prints it. A process that the limit of its cgroup
# ends is none, though the kernel logs a stack with it.
kernel_is_content() {
    if [ ! -s "$share/kernel.log" ]; then
        echo "there is no kernel log; output of the console:"
        tail -n 40 "$share/console" | sed 's/^/      /'
        return 1
    fi
    if sed '/invoked oom-killer/,/Killed process/d' "$share/kernel.log" |
        grep -E -B 2 -A 30 "$complaints"; then
        echo "the kernel logged errors"
        return 1
    fi
}

choose_checks "$@"
rm -rf "$cache/module-$release"
"$here/compile.sh"
# The same packages as in `make build`: others would change features and cause a full rebuild.
cargo build --quiet --release --locked --manifest-path "$root/Cargo.toml" --workspace --bins --lib
cargo build --quiet --release --locked --manifest-path "$root/Cargo.toml" \
    -p urdma-kernel --example module_check
cat >"$share/environment" <<ENVIRONMENT
export MODULE=$cache/module-$release/urdma.ko
export PROGRAMS=$root/target/release
export BED=$here
export SIW=${URDMA_BED_SIW:-} ROUNDS=${URDMA_BED_ROUNDS:-3}
ENVIRONMENT
for attempt in 1 2 3; do
    run_guest
    emulator_broke_down || break
    tail -n 40 "$share/console" | sed 's/^/      /'
    echo "the emulator failed (status $status), attempt $attempt of 3"
done
! emulator_broke_down || exit 1
verdict=0
report || verdict=1
# The result of a measurement.
[ ! -e "$share/output" ] || cat "$share/output"
kernel_is_content || verdict=1
exit "$verdict"
