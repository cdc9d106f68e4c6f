#!/bin/sh
# Ceph with its messenger over RDMA, in a program of urdma: rados-bench.sh DIRECTORY PORT TYPE
#
# TYPE is how its queue pairs are connected: ib, by messages over TCP, or iwarp, by rdma_cm.
# One monitor and one OSD in memory. `rados bench` writes objects of 4 MiB and reads them, comparing
# the contents.
set -eu

directory=$1
port=$2
type=$3
by_rdma_cm=false
[ "$type" = ib ] || by_rdma_cm=true
conf="$directory/ceph.conf"
started=""

stop() {
    for process in $started; do
        kill "$process" 2>/dev/null || true
    done
    for process in $started; do
        wait "$process" 2>/dev/null || true
    done
}
trap stop EXIT

mkdir "$directory/mon" "$directory/osd"
fsid=$(cat /proc/sys/kernel/random/uuid)
osd=$(cat /proc/sys/kernel/random/uuid)
cat >"$conf" <<EOF
[global]
fsid = $fsid
mon host = v1:127.0.0.1:$port
public network = 127.0.0.0/8
auth cluster required = none
auth service required = none
auth client required = none
mon allow pool size one = true
mon data avail crit = 1
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 8589934592
ms bind msgr2 = false
ms type = async+rdma
ms async rdma type = $type
ms async rdma cm = $by_rdma_cm
ms async rdma device name = urdma0
ms async rdma gid idx = 1
ms async rdma buffer size = 65536
ms async rdma send buffers = 256
ms async rdma receive buffers = 16384
ms async rdma receive queue len = 256
run dir = $directory
log file = $directory/\$name.log
admin socket = $directory/\$name.asok
pid file = $directory/\$name.pid
mon data = $directory/mon
osd data = $directory/osd
keyring = $directory/keyring
setuser match path =
EOF

monmaptool --create --fsid "$fsid" --addv a "[v1:127.0.0.1:$port]" "$directory/monmap" >/dev/null
ceph-mon -c "$conf" -i a --mkfs --monmap "$directory/monmap" 2>/dev/null
ceph-mon -c "$conf" -i a -f 2>"$directory/mon.errors" &
started=$!
test "$(timeout 60 ceph -c "$conf" osd new "$osd" 2>/dev/null)" = 0
ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$osd" 2>/dev/null
timeout 60 ceph -c "$conf" osd pool create bench 8 2>/dev/null
tries=0
osd_process=""
until timeout 60 ceph -c "$conf" osd stat 2>/dev/null | grep -q "1 up"; do
    tries=$((tries + 1))
    test $tries -lt 60
    # An OSD whose first command precedes its map of the monitors ends ("wrong fsid").
    if [ -z "$osd_process" ] || ! kill -0 "$osd_process" 2>/dev/null; then
        ceph-osd -c "$conf" -i 0 -f 2>>"$directory/osd.errors" &
        osd_process=$!
        started="$started $osd_process"
    fi
    sleep 0.5
done
for mode in "write --no-cleanup" seq; do
    # shellcheck disable=SC2086 # the words are meant to be split
    timeout 120 rados -c "$conf" -p bench bench 2 $mode 2>"$directory/bench.errors"
    if grep "is not correct" "$directory/bench.errors"; then
        exit 1
    fi
done
echo "rados: written and read"
