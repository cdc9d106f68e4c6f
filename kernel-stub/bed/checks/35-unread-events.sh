# The unread events of an object are bounded.
. "$BED/checks/lib.sh"
add_device
"$check" flood
remove_device
