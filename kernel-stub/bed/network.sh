#!/bin/bash
# network.sh COMMAND...: runs COMMAND in a network namespace of its own, in which a bridge connects
# two multi-queue TAP interfaces, nic0 and nic1, the host ends of the guest's NICs. The namespace is
# removed when the command ends.
set -euo pipefail

if [ "${URDMA_BED_NETWORK:-}" != inside ]; then
    URDMA_BED_NETWORK=inside exec unshare --net "$0" "$@"
fi
ip link add wire type bridge
ip link set wire up
for nic in nic0 nic1; do
    ip tuntap add "$nic" mode tap multi_queue
    ip link set "$nic" master wire
    ip link set "$nic" up
done
exec "$@"
