"""Shared by the checks of transfer libraries: a target process, and memory that both ends check."""

import multiprocessing
import os

import numpy

SIZE_OCTETS = 1 << 20
# What the initiator writes into all octets; the pattern has every value.
WRITTEN = 7


def pattern():
    """The initial contents of the target's memory."""
    return numpy.arange(SIZE_OCTETS, dtype=numpy.uint8)


def serve(pipe, describe):
    """The target: sends the location of its memory and waits until it has been written."""
    memory = pattern()
    pipe.send(describe(memory))
    pipe.recv()
    pipe.send(bool((memory == WRITTEN).all()))
    pipe.recv()
    leave()


def leave():
    """Ends the process without the destructors of its libraries.

    NIXL's libnl and the system's, both loaded by NIXL, crash there,
    with and without urdma."""
    os._exit(0)


def run(target, initiator):
    """Runs `initiator(pipe, memory)` and checks every octet.

    `initiator` returns functions that read and write the target's memory.
    """
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=target, args=(its,))
    process.start()
    memory = numpy.zeros(SIZE_OCTETS, dtype=numpy.uint8)
    read, write = initiator(mine, memory)
    read()
    assert (memory == pattern()).all(), "what was read differs"
    memory[:] = WRITTEN
    write()
    mine.send("look")
    assert mine.recv(), "what was written differs"
    mine.send("end")
    process.join()
    assert process.exitcode == 0, process.exitcode
    print("read and written", flush=True)
    leave()
