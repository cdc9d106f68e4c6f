# The module's and the device's lives: links, the network device's state, refusals, unloading.
. "$BED/checks/lib.sh"

port_state() { rdma -j link show urdma0/1 | tr -d ' \n' | sed 's/.*"state":"\([A-Z]*\)".*/\1/'; }

load_module
refused rdma link add urdma0 type urdma netdev lo
add_device
# One device for one network device.
refused rdma link add urdma1 type urdma netdev urdmanet
[ "$(cat /sys/class/infiniband/urdma0/node_type)" = "4: RNIC" ]
# Nobody serves it: the port is down.
[ "$(port_state)" = DOWN ]

"$check" hold >/run/hold.$$ &
holder=$!
until grep -q ready /run/hold.$$; do sleep 0.1; done
[ "$(port_state)" = ACTIVE ]
[ "$(cat $counters/qps)" = 1 ]
ip link set urdmanet down
[ "$(port_state)" = DOWN ]
ip link set urdmanet up
[ "$(port_state)" = ACTIVE ]
ip link set urdmanet address 02:11:22:33:44:55
for tries in $(seq 100); do
    grep -q '^0211:2233:4455' /sys/class/infiniband/urdma0/ports/1/gids/0 && break
    sleep 0.1
done
grep '^0211:2233:4455' /sys/class/infiniband/urdma0/ports/1/gids/0

# In use, the module stays; the device may go all the same, and takes its objects along.
refused rmmod urdma
rdma link delete urdma0
[ ! -e /sys/class/infiniband/urdma0 ]
kill -9 $holder
wait $holder || true

# The device goes with its network device.
rdma link add urdma0 type urdma netdev urdmanet
ip link delete urdmanet
for tries in $(seq 100); do
    [ -e /sys/class/infiniband/urdma0 ] || break
    sleep 0.1
done
[ ! -e /sys/class/infiniband/urdma0 ]
rmmod urdma

# Unloading takes devices along.
add_device
rmmod urdma
[ ! -e /sys/class/infiniband/urdma0 ]
ip link delete urdmanet
