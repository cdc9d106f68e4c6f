# One object of each kind, events, refusals.
. "$BED/checks/lib.sh"
add_device
"$check" objects
remove_device
