#!/bin/sh
# tgt's disk over iSER with libiscsi's own tests, in a program of urdma: iser.sh DIRECTORY PORT
#
# tgt's port for iSER is 3260: its option for another one fails if errno is not zero. PORT is that
# of TCP, which it listens to as well.
set -eu

directory=$1
port=$2
export TGT_IPC_SOCKET="$directory/control"
target=iqn.2026-11.urdma.test:disk
initiator=iqn.2026-11.urdma.test:initiator
url="iser://127.0.0.1:3260/$target/1"

truncate -s 16M "$directory/disk"
tgtd -f --iscsi "portal=127.0.0.1:$port" >"$directory/tgtd.log" 2>&1 &
serving=$!
trap 'kill -9 $serving' EXIT

admin() {
    operation=$1
    shift
    tgtadm --lld iser --op "$operation" "$@"
}
tries=0
until admin new --mode target --tid 1 --targetname $target 2>/dev/null; do
    tries=$((tries + 1))
    test $tries -lt 60
    kill -0 $serving
    sleep 0.5
done
admin new --mode logicalunit --tid 1 --lun 1 --backing-store "$directory/disk"
# Over TCP, either admits an initiator; over iSER, tgt requires both.
admin bind --mode target --tid 1 --initiator-address ALL
if timeout 60 iscsi-inq -i $initiator "$url" 2>"$directory/refused"; then
    exit 1
fi
grep "Target not found" "$directory/refused"
admin bind --mode target --tid 1 --initiator-name $initiator
# Verify16 has tgt compare the data that it sends with the disk's.
for test in Read16 Write16 Verify16; do
    timeout 60 iscsi-test-cu --dataloss --initiator-name=$initiator --test="SCSI.$test" "$url"
done
echo "tgt: written and read"
