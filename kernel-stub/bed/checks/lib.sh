# For the checks: the module, its device urdma0 on a network device of its own, and what must be
# true afterwards.
check=$PROGRAMS/examples/module_check
counters=/sys/class/infiniband/urdma0/hw_counters
run_dir=/run/urdma/bed

# What a check that failed has left must not make the next one fail.
clean_up() {
    local job
    for job in $(jobs -p); do
        # `timeout` leads a group of its own, in which its program is.
        kill -9 -- "-$job" || kill -9 "$job"
    done
    wait
    # It is nobody's child. Without its socket the next one finds the place free.
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

# Fails unless every object is gone; then takes device and module away.
remove_device() {
    assert_nothing_left
    rdma link delete urdma0
    ip link delete urdmanet
    wait_until rmmod urdma
}

# A killed process is cleaned up behind its parent's back.
assert_nothing_left() {
    local counter
    for counter in contexts pds mrs pinned_pages cqs qps srqs cm_endpoints; do
        wait_until grep -qx 0 $counters/$counter
    done
}

# A process that has one object of each kind, some octets of pinned memory, and serves the device if
# nobody does.
start_holder() {
    "$check" hold >/run/hold.$$ &
    holder=$!
    wait_until grep -q ready /run/hold.$$
}

kill_holder() {
    kill -9 $holder
    wait $holder || true
}

# Fails if a command that must fail does not.
refused() {
    if "$@"; then
        echo "not refused: $*"
        return 1
    fi
}

# A urdmad that serves the device, and the provider where libibverbs looks for it by itself.
start_instance() {
    cat >/run/bed.toml <<CONFIG
instance = "bed"
address = ["10.8.0.1"]
[kernel]
device = "urdma0"
CONFIG
    echo "driver urdma" >/etc/libibverbs.d/urdma.driver
    cp "$PROGRAMS/liburdma_provider.so" "$(echo /usr/lib/*/libibverbs)/liburdma-rdmav34.so"
    unset LD_PRELOAD IBV_DRIVERS SYSFS_PATH URDMA_RUN_DIR
    "$PROGRAMS/urdma" up --run-dir "$run_dir" --config /run/bed.toml
    wait_until port_is_active
}

stop_instance() { "$PROGRAMS/urdma" down --run-dir "$run_dir"; }

port_is_active() { grep -q ACTIVE /sys/class/infiniband/urdma0/ports/1/state; }
port_is_down() { grep -q DOWN /sys/class/infiniband/urdma0/ports/1/state; }

device_is_gone() { [ ! -e /sys/class/infiniband/urdma0 ]; }

is_gone() { ! kill -0 "$1"; }

# Somebody waits for a connection through the kernel's rdma_cm; or by TCP, as perftest and
# libibverbs' examples do. Not `grep -q`: it does not read on, and who writes to it then fails.
listening_by_cm() { "$PROGRAMS/urdma" status --run-dir $run_dir | grep ^listens >/dev/null; }
listening_by_tcp() { ss -Hltn 'sport = :18515' | grep LISTEN >/dev/null; }

# Waits up to ten minutes for a command to succeed, which is not traced: it may be asked a thousand
# times.
wait_until() {
    local deadline=$((SECONDS + 600))
    { set +x; } 2>/dev/null
    until "$@"; do
        if [ $SECONDS -gt $deadline ]; then
            echo "did not come true: $*"
            return 1
        fi
        sleep 0.1
    done
    set -x
}

# over LISTENING 'SERVER' 'CLIENT': runs both, the client when the server listens.
over() {
    start_server "$1" "$2"
    run_client "$3"
    wait_for_end $server /run/server.log
}

# over_endless LISTENING 'SERVER' 'CLIENT': the same with a server that never ends by itself.
over_endless() {
    start_server "$1" "$2"
    run_client "$3"
    kill $server
    wait $server || true
}

# start_server LISTENING 'SERVER': when nobody else listens any more.
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

# Both ends of rping close their event channel when they are done, while a thread of theirs may be
# about to read from it, which then ends the program with 255, on any device. If anything went wrong
# before, rping has said so.
is_race_of_rping() {
    grep "^rdma_get_cm_event: Bad file descriptor" "$1" && ! grep -e failed -e error "$1"
}

# What server and client have written, for the log.
said_and_failed() {
    cat /run/server.log /run/client.log
    return 1
}
