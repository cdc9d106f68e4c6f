# For the checks: the module, its device urdma0 on a network device of its own, and what must be true afterwards.
check=$PROGRAMS/examples/module_check
counters=/sys/class/infiniband/urdma0/hw_counters

# What a check that failed has left must not make the next one fail.
clean_up() {
    kill -9 $(jobs -p)
    wait
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
    rmmod urdma
}

assert_nothing_left() {
    local counter tries
    for counter in contexts pds mrs pinned_pages cqs qps srqs cm_endpoints; do
        # A killed process is cleaned up behind its parent's back.
        for tries in $(seq 100); do
            [ "$(cat $counters/$counter)" = 0 ] && continue 2
            sleep 0.1
        done
        echo "$(cat $counters/$counter) $counter left"
        return 1
    done
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
    run_dir=/run/urdma/bed
    cat >/run/bed.toml <<CONFIG
instance = "bed"
address = ["10.8.0.1"]
[kernel]
device = "urdma0"
CONFIG
    echo "driver urdma" >/etc/libibverbs.d/urdma.driver
    cp "$PROGRAMS/liburdma-rdmav34.so" /usr/lib/*/libibverbs/
    unset LD_PRELOAD IBV_DRIVERS SYSFS_PATH URDMA_RUN_DIR
    "$PROGRAMS/urdma" up --run-dir "$run_dir" --config /run/bed.toml
    wait_until port_is_active
}

stop_instance() { "$PROGRAMS/urdma" down --run-dir "$run_dir"; }

port_is_active() { grep -q ACTIVE /sys/class/infiniband/urdma0/ports/1/state; }

# Waits up to 60 s for a command to succeed.
wait_until() {
    local tries
    for tries in $(seq 600); do
        "$@" && return
        sleep 0.1
    done
    echo "did not come true: $*"
    return 1
}

# server_and_client 'SERVER' 'CLIENT': runs both, the client again while the server is not ready.
server_and_client() {
    start_server "$1"
    run_client "$2"
    wait $server || said_and_failed
}

# The same with a server that never ends by itself.
endless_server_and_client() {
    start_server "$1"
    run_client "$2"
    kill $server
    wait $server || true
}

start_server() {
    timeout 120 $1 >/run/server.log 2>&1 &
    server=$!
}

run_client() {
    local tries
    : >/run/client.log
    for tries in $(seq 20); do
        timeout 120 $1 >>/run/client.log 2>&1 && return
        kill -0 $server 2>/dev/null || break
        sleep 0.3
    done
    said_and_failed
}

# What server and client have written, for the log.
said_and_failed() {
    cat /run/server.log /run/client.log
    return 1
}
