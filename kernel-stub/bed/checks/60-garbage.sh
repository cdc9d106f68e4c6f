# Random octets and random commands written to the device files, while the kernel listens through
# the module.
. "$BED/checks/lib.sh"
add_device
for seed in 1 22 333; do
    "$check" garbage $seed
done
remove_device
