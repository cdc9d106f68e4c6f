# seconds: 180
# Random octets written to the device files.
. "$BED/checks/lib.sh"
add_device
"$check" hold >/run/hold.$$ &
holder=$!
until grep -q ready /run/hold.$$; do sleep 0.1; done
for seed in 1 22 333; do
    "$check" garbage $seed
done
kill -9 $holder
wait $holder || true
remove_device
