# Debian's libibverbs and its programs over the module, without LD_PRELOAD or other variables.
. "$BED/checks/lib.sh"
add_device
start_instance
"$PROGRAMS/urdma" status --run-dir $run_dir | grep "^backend  kernel module, device urdma0"

ibv_devices | grep -w urdma0
ibv_devinfo -d urdma0 -v >/run/devinfo
grep "transport:.*iWARP" /run/devinfo
grep "state:.*PORT_ACTIVE" /run/devinfo
wait_until grep -q ffff:0a08:0001 /sys/class/infiniband/urdma0/ports/1/gids/1
ibv_devinfo -d urdma0 -v | grep 'GID\[ *1\]'

ping() {
    local command="ibv_rc_pingpong -d urdma0 -g 1 $*"
    over listening_by_tcp "$command" "$command 127.0.0.1"
}
ping -n 500
ping -n 500 -e
[ "$(cat $counters/cq_events)" -gt 0 ]
ping -n 100 -s 1000000 -c

# A process that is killed during traffic leaks no objects.
ibv_rc_pingpong -d urdma0 -g 1 &
victim=$!
wait_until grep -q 1 $counters/qps
kill -9 $victim
wait $victim || true
assert_nothing_left

# A device whose urdmad has ended cannot be opened, and another urdmad can serve it.
stop_instance
wait_until port_is_down
refused ibv_devinfo -d urdma0
start_instance
ibv_devinfo -d urdma0
stop_instance
"$PROGRAMS/urdma" up --run-dir $run_dir
"$PROGRAMS/urdma" status --run-dir $run_dir | grep "^backend  urdma run"
stop_instance
remove_device
