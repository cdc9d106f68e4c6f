"""PeerCache's data plane: a process reads and writes the memory of another.

It loads the system's libibverbs.
"""

from types import SimpleNamespace

from peercache.transport import RdmaTransport

import two_ends

CONFIG = SimpleNamespace(
    device_name="urdma0", ib_port=1, gid_index=1, local_hostname="127.0.0.1", rdma_port=0
)


def target(pipe):
    kept = []

    def describe(memory):
        transport = RdmaTransport(CONFIG)
        kept.append(transport)
        region = transport.register_mr(memory.ctypes.data, memory.nbytes)
        return transport.local_endpoint(), memory.ctypes.data, region.rkey

    two_ends.serve(pipe, describe)


def initiator(pipe, memory):
    transport = RdmaTransport(CONFIG)
    transport.register_mr(memory.ctypes.data, memory.nbytes)
    peer, address, rkey = pipe.recv()

    def transfer(call):
        done = call([peer], [memory.ctypes.data], [address], [rkey], [memory.nbytes])
        assert done == [True]

    return lambda: transfer(transport.batch_read_v), lambda: transfer(transport.batch_write_v)


if __name__ == "__main__":
    two_ends.run(target, initiator)
