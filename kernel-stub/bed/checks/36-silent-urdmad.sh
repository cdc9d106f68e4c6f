# An urdmad that does not answer does not keep rdma_cm waiting.
. "$BED/checks/lib.sh"
add_device
"$check" silent
remove_device
