# Pinned memory counts against the user's limit. Other users, and urdmad of another release, cannot
# serve a device.
. "$BED/checks/lib.sh"
add_device
mkdir -p /run/urdma/check
start_holder
chmod 666 /dev/infiniband/uverbs*

as_nobody() {
    setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all -- "$@"
}

ulimit -l 1024
[ "$(as_nobody "$check" limit 500000)" = registered ]
# ENOMEM
[ "$(as_nobody "$check" limit 5000000)" = "refused 12" ]
refused as_nobody cat /dev/urdma
"$check" version
dmesg | grep "urdma: process .* speaks version"

# The device can be opened by the user and the group of its urdmad. Users of a device cannot access
# one another's objects.
as_nobody "$check" neighbour
setpriv --reuid=65533 --regid=65533 --clear-groups --bounding-set=-all --inh-caps=-all \
    -- "$check" stranger
[ "$(cat $counters/qps)" = 1 ]
kill_holder
remove_device
