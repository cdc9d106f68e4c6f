# Pinned memory counts against the user's limit; strangers cannot serve a device, nor can another
# release.
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

# The device is for the urdmad's user and group; users of one device have nothing to do with one
# another.
as_nobody "$check" neighbour
setpriv --reuid=65533 --regid=65533 --clear-groups --bounding-set=-all --inh-caps=-all \
    -- "$check" stranger
[ "$(cat $counters/qps)" = 1 ]
kill_holder
remove_device
