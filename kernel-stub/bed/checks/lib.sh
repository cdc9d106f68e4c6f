# Functions of the checks: load the module, create its device urdma0 on a network device of its own,
# and verify the state at the end.
check=$PROGRAMS/examples/module_check
counters=/sys/class/infiniband/urdma0/hw_counters
run_dir=/run/urdma/bed

# Removes what a failed check has left, so that it does not make the next one fail.
clean_up() {
    local job
    for job in $(jobs -p); do
        # `timeout` and its program are a process group of their own.
        kill -9 -- "-$job" || kill -9 "$job"
    done
    wait
    # urdmad is not a child of this shell. Its socket is removed for the next one.
    kill -9 "$(cat "$run_dir/pid")"
    rm -rf "$run_dir"
    rdma link delete urdma0
    ip link delete urdmanet
    rmmod urdma
} >/dev/null 2>&1
trap 'clean_up || true' EXIT

load_module() {
    modprobe -a ib_core ib_uverbs rdma_cm iw_cm rdma_ucm
    [ -d /sys/module/urdma ] || insmod "$MODULE"
}

add_device() {
    load_module
    ip link add urdmanet type dummy
    ip address add 10.8.0.1/24 dev urdmanet
    ip link set urdmanet up
    rdma link add urdma0 type urdma netdev urdmanet
}

# Fails unless all objects have been destroyed; then removes the device and the module.
remove_device() {
    assert_nothing_left
    rdma link delete urdma0
    ip link delete urdmanet
    wait_until rmmod urdma
}

# The kernel may release the objects of a killed process after its parent has waited for it.
assert_nothing_left() {
    local counter
    for counter in contexts pds mrs pinned_pages cqs qps srqs cm_endpoints; do
        wait_until grep -qx 0 $counters/$counter
    done
}

# Starts a process with one object of each kind and some octets of pinned memory, which serves the
# device if no urdmad does.
start_holder() {
    "$check" hold >/run/hold.$$ &
    holder=$!
    wait_until grep -q ready /run/hold.$$
}

kill_holder() {
    kill -9 $holder
    wait $holder || true
}

# Fails if a command succeeds that must be refused.
refused() {
    if "$@"; then
        echo "not refused: $*"
        return 1
    fi
}

# Starts an urdmad that serves the device, and installs the provider in libibverbs' directory.
start_instance() {
    cat >/run/bed.toml <<CONFIG
instance = "bed"
address = ["10.8.0.1"]
[kernel]
device = "urdma0"
CONFIG
    echo "driver urdma" >/etc/libibverbs.d/urdma.driver
    plugins=$(echo /usr/lib/*/libibverbs)
    # The others are named after libibverbs' private ABI, too.
    abi=$(ls "$plugins" | sed -n 's/.*-rdmav\([0-9]*\)\.so$/\1/p' | head -n 1)
    cp "$PROGRAMS/liburdma_provider.so" "$plugins/liburdma-rdmav$abi.so"
    unset LD_PRELOAD IBV_DRIVERS SYSFS_PATH URDMA_RUN_DIR
    "$PROGRAMS/urdma" up --run-dir "$run_dir" --config /run/bed.toml
    wait_until port_is_active
}

stop_instance() { "$PROGRAMS/urdma" down --run-dir "$run_dir"; }

port_is_active() { grep -q ACTIVE /sys/class/infiniband/urdma0/ports/1/state; }
port_is_down() { grep -q DOWN /sys/class/infiniband/urdma0/ports/1/state; }

device_is_gone() { [ ! -e /sys/class/infiniband/urdma0 ]; }

is_gone() { ! kill -0 "$1"; }

# Whether a program listens through the kernel's rdma_cm, or on TCP, as perftest and libibverbs'
# examples do. `grep -q` would close the pipe early, and the writing program would fail.
listening_by_cm() { "$PROGRAMS/urdma" status --run-dir $run_dir | grep ^listens >/dev/null; }
listening_by_tcp() { ss -Hltn 'sport = :18515' | grep LISTEN >/dev/null; }

# Waits up to ten minutes for a command to succeed. The command is not traced, since it may run a
# thousand times.
wait_until() {
    local deadline=$((SECONDS + 600))
    { set +x; } 2>/dev/null
    until "$@"; do
        if [ $SECONDS -gt $deadline ]; then
            echo "timed out: $*"
            return 1
        fi
        sleep 0.1
    done
    set -x
}

# over LISTENING 'SERVER' 'CLIENT': starts the server, and the client when the server listens.
over() {
    start_server "$1" "$2"
    run_client "$3"
    wait_for_end $server /run/server.log
}

# over_endless LISTENING 'SERVER' 'CLIENT': the same for a server that does not exit.
over_endless() {
    start_server "$1" "$2"
    run_client "$3"
    kill $server
    wait $server || true
}

# start_server LISTENING 'SERVER': starts a server after earlier listeners have ended.
start_server() {
    wait_until eval "! $1"
    timeout 300 $2 >/run/server.log 2>&1 &
    server=$!
    wait_until "$1" || said_and_failed
}

run_client() {
    timeout 300 $1 >/run/client.log 2>&1 &
    wait_for_end $! /run/client.log
}

# wait_for_end PROCESS LOG: fails if the process does.
wait_for_end() { wait $1 || is_race_of_rping "$2" || said_and_failed; }

# At its end rping closes its event channel, from which its other thread may be about to read; the
# program then exits with status 255, on any device. If an error occurred before, rping has printed
# it.
is_race_of_rping() {
    grep "^rdma_get_cm_event: Bad file descriptor" "$1" && ! grep -e failed -e error "$1"
}

# Prints the output of server and client.
said_and_failed() {
    cat /run/server.log /run/client.log
    return 1
}
