"""DLSlime's endpoint: a process reads and writes the memory of another.

It loads the system's libibverbs.
"""

from dlslime import RDMAEndpoint

import two_ends

NAME = "memory"


def endpoint_with(memory):
    """An endpoint that has registered the memory, and the handle of the region."""
    endpoint = RDMAEndpoint("urdma0", 1, "RoCE", 1)
    return endpoint, endpoint.register_memory_region(NAME, memory.ctypes.data, 0, memory.nbytes)


def target(pipe):
    kept = []

    def describe(memory):
        endpoint, _ = endpoint_with(memory)
        kept.append(endpoint)
        pipe.send(endpoint.endpoint_info())
        endpoint.connect(pipe.recv())
        return endpoint.mr_info()[NAME]

    two_ends.serve(pipe, describe)


def initiator(pipe, memory):
    endpoint, local = endpoint_with(memory)
    peer = pipe.recv()
    pipe.send(endpoint.endpoint_info())
    endpoint.connect(peer)
    remote = endpoint.register_remote_memory_region(NAME, pipe.recv())

    def transfer(call):
        assert call([(local, remote, 0, 0, memory.nbytes)]).wait() == 0

    return lambda: transfer(endpoint.read), lambda: transfer(endpoint.write)


if __name__ == "__main__":
    two_ends.run(target, initiator)
