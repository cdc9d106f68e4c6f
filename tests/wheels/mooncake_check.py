"""Mooncake's transfer engine: a process reads and writes the memory of another.

It loads the system's libibverbs.
"""

from mooncake.engine import TransferEngine

import two_ends

ADDRESS = "127.0.0.1"


def engine_with(memory):
    """An engine that has registered the memory."""
    engine = TransferEngine()
    assert engine.initialize(ADDRESS, "P2PHANDSHAKE", "rdma", "urdma0") == 0
    assert engine.register_memory(memory.ctypes.data, memory.nbytes) == 0
    return engine


def target(pipe):
    kept = []

    def describe(memory):
        kept.append(engine_with(memory))
        return f"{ADDRESS}:{kept[0].get_rpc_port()}", memory.ctypes.data

    two_ends.serve(pipe, describe)


def initiator(pipe, memory):
    engine = engine_with(memory)
    peer, address = pipe.recv()

    def transfer(call):
        assert call(peer, memory.ctypes.data, address, memory.nbytes) == 0

    return lambda: transfer(engine.transfer_sync_read), lambda: transfer(engine.transfer_sync_write)


if __name__ == "__main__":
    two_ends.run(target, initiator)
