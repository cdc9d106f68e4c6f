# PCI NICs driven by DPDK in two urdmads, which lease queues of the NICs to programs. No RDMA module
# of the kernel is loaded. QEMU's NICs have no flow rules: packets are steered to the queue of their
# program by the redirection table. Four messages of 64 KB are outstanding, fewer packets than a
# receive queue of QEMU holds (256): QEMU keeps a packet for a full queue until the first queue is
# refilled, not that one, and until then the NIC receives nothing.
. "$BED/checks/lib.sh"
urdma=$PROGRAMS/urdma
modprobe uio_pci_generic
echo 256 >/proc/sys/vm/nr_hugepages
mkdir -p /dev/hugepages
mount -t hugetlbfs hugetlbfs /dev/hugepages

# Unbinds the NICs from the kernel's driver and binds them to uio_pci_generic.
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
lease_queues = 1
CONFIG
    "$urdma" up --run-dir /run/nic$host --config /run/nic$host.toml
    "$urdma" status --run-dir /run/nic$host |
        grep "^leases *1 at most, packets come by the NIC's redirection table of 128 entries"
done

# The host of the servers.
run_dir=/run/nic0
all_free() {
    local host
    for host in 0 1; do
        "$urdma" status --run-dir /run/nic$host
    done | grep -c "^slots *0 of" | grep -qx 2
}

# counter HOST SECTION NAME: a number of `urdma status --json`.
counter() {
    "$urdma" status --json --run-dir /run/nic$1 |
        awk -v section="\"$2\":" -v name="\"$3\":" '
            $1 == section {inside = 1}
            inside && $1 == name {value = $2; inside = 0}
            END {print value + 0}'
}
# Packets that a NIC has received on leased queues: all packets less those of urdmad.
leased_packets() { echo $(($(counter $1 hardware rx_packets) - $(counter $1 data rx_packets))); }

# over_nics LEASE LISTENING 'SERVER' 'CLIENT'
over_nics() {
    wait_until all_free
    over "$2" "$urdma run --lease $1 --run-dir /run/nic0 -- $3" \
        "$urdma run --lease $1 --run-dir /run/nic1 -- $4"
}

over_nics never listening_by_tcp "ibv_rc_pingpong -d urdma0 -g 1 -n 200" \
    "ibv_rc_pingpong -d urdma0 -g 1 -n 200 127.0.0.1"
for host in 0 1; do
    # Frames of the bridge may arrive between the two readings.
    [ "$(leased_packets $host)" -lt 100 ]
done

over_nics require listening_by_tcp "ibv_rc_pingpong -d urdma0 -g 1 -n 200" \
    "ibv_rc_pingpong -d urdma0 -g 1 -n 200 127.0.0.1"
for host in 0 1; do
    # Messages of 4 KB, each in three packets of up to 1500 octets.
    [ "$(leased_packets $host)" -ge 600 ]
done

over_nics require listening_by_tcp "ib_write_bw -F -t 4 -u 20 -n 200" \
    "ib_write_bw -F -t 4 -u 20 -n 200 127.0.0.1"

# After lessees were killed during traffic, the NIC works and the queue can be leased again; each
# host has one such queue. Inconsistent state in the driver would show when the next lessees fill
# the queues.
goes_on() { [ "$(leased_packets 0)" -ge $((before + 1000)) ]; }
for round in 1 2 3 4; do
    wait_until all_free
    before=$(leased_packets 0)
    "$urdma" run --lease require --run-dir /run/nic0 -- ib_write_bw -F -t 4 -D 1000 &
    server=$!
    wait_until listening_by_tcp
    "$urdma" run --lease require --run-dir /run/nic1 -- ib_write_bw -F -t 4 -D 1000 127.0.0.1 &
    client=$!
    wait_until goes_on
    kill -9 $server $client
    wait $server $client || true
done
over_nics require listening_by_tcp "ib_write_bw -F -t 4 -u 20 -n 1000" \
    "ib_write_bw -F -t 4 -u 20 -n 1000 127.0.0.1"
over_nics require listening_by_cm "rping -s -C 20 -a 192.0.2.10" "rping -c -C 20 -a 192.0.2.10"

for host in 0 1; do
    "$urdma" down --run-dir /run/nic$host
done
[ -z "$(ls /dev/hugepages)" ]
umount /dev/hugepages
echo 0 >/proc/sys/vm/nr_hugepages
