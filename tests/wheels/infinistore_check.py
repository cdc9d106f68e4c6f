"""infinistore: a client stores blocks, another reads them.

It loads the system's libibverbs. The server sleeps on libuv's loop between events.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time

import infinistore
import numpy
import uvloop

ADDRESS = "127.0.0.1"
SIZE_OCTETS = 1 << 20
BLOCK_OCTETS = 1 << 16
BLOCKS = [(f"block {at}", at) for at in range(0, SIZE_OCTETS, BLOCK_OCTETS)]
LIMIT_S = 30


def serve(port):
    """A server with the smallest pool, 1 GiB."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    config = infinistore.ServerConfig(
        manage_port=1, service_port=port, prealloc_size=1, log_level="info",
        dev_name="urdma0", link_type=infinistore.LINK_ETHERNET,
    )
    infinistore.register_server(loop, config)
    print("serving", flush=True)
    loop.run_forever()


def client(port, memory):
    """A connection that has registered the memory."""
    config = infinistore.ClientConfig(
        host_addr=ADDRESS, service_port=port, connection_type=infinistore.TYPE_RDMA,
        dev_name="urdma0", link_type=infinistore.LINK_ETHERNET,
    )
    connection = infinistore.InfinityConnection(config)
    connection.connect()
    connection.register_mr(memory.ctypes.data, memory.nbytes)
    return connection


def read(connection, memory, blocks):
    call = connection.rdma_read_cache_async(blocks, BLOCK_OCTETS, memory.ctypes.data)
    asyncio.run(call)


def check(port):
    stored = numpy.arange(SIZE_OCTETS, dtype=numpy.uint32).astype(numpy.uint8)
    writer = client(port, stored)
    asyncio.run(writer.rdma_write_cache_async(BLOCKS, BLOCK_OCTETS, stored.ctypes.data))
    found = numpy.zeros(SIZE_OCTETS, dtype=numpy.uint8)
    reader = client(port, found)
    read(reader, found, BLOCKS)
    assert (found == stored).all(), "what was read differs"
    assert reader.check_exist(BLOCKS[-1][0])
    try:
        read(reader, found, [("no block", 0)])
    except infinistore.InfiniStoreKeyNotFound:
        pass
    else:
        raise AssertionError("a block that nothing has stored was read")
    for connection in writer, reader:
        connection.close()


def main():
    with socket.create_server((ADDRESS, 0)) as unused:
        port = unused.getsockname()[1]
    with tempfile.TemporaryFile("w+") as log:
        argv = [sys.executable, "-B", __file__, str(port)]
        server = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)

        def printed():
            return os.pread(log.fileno(), 1 << 20, 0).decode()

        try:
            end = time.monotonic() + LIMIT_S
            while "serving" not in printed():
                assert server.poll() is None and time.monotonic() < end, printed()
                time.sleep(0.05)
            check(port)
            assert server.poll() is None, printed()
            # A completion channel that is readable or writable without an event.
            assert "Failed to get CQ event" not in printed(), printed()[-2000:]
        finally:
            server.terminate()
            server.wait()
    print("read and written", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(int(sys.argv[1]))
    else:
        main()
