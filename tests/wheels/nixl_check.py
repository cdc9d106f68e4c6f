"""NIXL over UCX: a process reads and writes the memory of another.

NIXL's UCX has a libibverbs of its own.
"""

from nixl import nixl_agent, nixl_agent_config

import two_ends


def agent_with(name, memory):
    """An agent that has registered the memory."""
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    place = (memory.ctypes.data, memory.nbytes, 0, name)
    agent.register_memory(agent.get_reg_descs([place], "DRAM"))
    return agent


def target(pipe):
    kept = []

    def describe(memory):
        kept.append(agent_with("target", memory))
        return kept[0].get_agent_metadata(), memory.ctypes.data

    two_ends.serve(pipe, describe)


def initiator(pipe, memory):
    agent = agent_with("initiator", memory)
    metadata, address = pipe.recv()
    peer = agent.add_remote_agent(metadata)
    local = agent.get_xfer_descs([(memory.ctypes.data, memory.nbytes, 0)], "DRAM")
    remote = agent.get_xfer_descs([(address, memory.nbytes, 0)], "DRAM")

    def transfer(operation):
        handle = agent.initialize_xfer(operation, local, remote, peer)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        assert state == "DONE", state

    return lambda: transfer("READ"), lambda: transfer("WRITE")


if __name__ == "__main__":
    two_ends.run(target, initiator)
