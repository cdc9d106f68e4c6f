# The life cycle of module and device: links, the network device's state, refusals, unloading.
. "$BED/checks/lib.sh"

load_module
refused rdma link add urdma0 type urdma netdev lo
add_device
# One device for one network device.
refused rdma link add urdma1 type urdma netdev urdmanet
[ "$(cat /sys/class/infiniband/urdma0/node_type)" = "4: RNIC" ]
# Without an urdmad the port is down.
port_is_down
rdma link show urdma0/1 | grep "state DOWN"

start_holder
wait_until port_is_active
[ "$(cat $counters/qps)" = 1 ]
ip link set urdmanet down
wait_until port_is_down
ip link set urdmanet up
wait_until port_is_active
ip link set urdmanet address 02:11:22:33:44:55
wait_until grep -q '^0211:2233:4455' /sys/class/infiniband/urdma0/ports/1/gids/0

# A module in use cannot be unloaded. Its device can be removed, with all of its objects.
refused rmmod urdma
rdma link delete urdma0
device_is_gone
kill_holder

# The device is removed with its network device.
rdma link add urdma0 type urdma netdev urdmanet
ip link delete urdmanet
wait_until device_is_gone
wait_until rmmod urdma

# Unloading the module removes its devices.
add_device
rmmod urdma
device_is_gone
ip link delete urdmanet
