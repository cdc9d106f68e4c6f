# The bed itself: the kernel has RDMA, and an in-tree software device works with the host's
# programs.
modprobe -a ib_core ib_uverbs rdma_cm iw_cm rdma_ucm rdma_rxe
ip link add bed0 type dummy
ip address add 10.9.0.1/24 dev bed0
ip link set bed0 up
rdma link add rxe0 type rxe netdev bed0
ibv_devices | grep -w rxe0
rdma link delete rxe0
ip link delete bed0
modprobe -r rdma_rxe
