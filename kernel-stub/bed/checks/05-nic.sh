# seconds: 240
# PCI NICs driven by DPDK in two urdmads. Nothing of the kernel's RDMA is loaded. QEMU's NICs cannot steer packets, so that no queue is leased: the
# daemon says so, and forwards.
. "$BED/checks/lib.sh"
urdma=$PROGRAMS/urdma
modprobe uio_pci_generic
echo 256 >/proc/sys/vm/nr_hugepages
mkdir -p /dev/hugepages
mount -t hugetlbfs hugetlbfs /dev/hugepages

# The kernel's driver lets go of the NICs, and the one for user space takes them.
nics=()
for device in /sys/bus/pci/devices/*; do
    [ "$(cat "$device/class")" = 0x020000 ] || continue
    nics+=("$(basename "$device")")
    [ ! -e "$device/driver" ] || basename "$device" >"$device/driver/unbind"
    echo uio_pci_generic >"$device/driver_override"
    basename "$device" >/sys/bus/pci/drivers_probe
done
[ "${#nics[@]}" = 2 ]
"$urdma" doctor | grep "${nics[0]} (uio_pci_generic: ready for urdmad)"

for host in 0 1; do
    cat >/run/nic$host.toml <<CONFIG
instance = "nic$host"
address = ["192.0.2.1$host"]
[port]
kind = "device"
device = "${nics[host]}"
lease_queues = 2
CONFIG
    "$urdma" up --run-dir /run/nic$host --config /run/nic$host.toml
done

listening_by_tcp() { ss -Hltn 'sport = :18515' | grep -q LISTEN; }
listening_by_cm() { "$urdma" status --run-dir /run/nic0 | grep -q ^listens; }
all_free() {
    local host
    for host in 0 1; do
        "$urdma" status --run-dir /run/nic$host
    done | grep -c "^slots *0 of" | grep -qx 2
}

# over LISTENING 'SERVER' 'CLIENT'
over() {
    wait_until all_free
    timeout 100 "$urdma" run --run-dir /run/nic0 -- $2 &
    wait_until "$1"
    if ! timeout 100 "$urdma" run --run-dir /run/nic1 -- $3; then
        "$urdma" status --run-dir /run/nic0
        "$urdma" status --run-dir /run/nic1
        return 1
    fi
    wait $!
}

over listening_by_tcp "ibv_rc_pingpong -d urdma0 -g 1 -n 200" "ibv_rc_pingpong -d urdma0 -g 1 -n 200 127.0.0.1"
over listening_by_tcp "ib_write_bw -n 200" "ib_write_bw -n 200 127.0.0.1"
over listening_by_cm "rping -s -C 20 -a 192.0.2.10" "rping -c -C 20 -a 192.0.2.10"
"$urdma" status --run-dir /run/nic0 | grep "^leases *none: this NIC cannot steer"

for host in 0 1; do
    "$urdma" down --run-dir /run/nic$host
done
[ -z "$(ls /dev/hugepages)" ]
umount /dev/hugepages
echo 0 >/proc/sys/vm/nr_hugepages
