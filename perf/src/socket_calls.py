"""Both ends of TCP connections that follow one another; see socket_instructions.rs."""

import select
import socket
import sys

connections, round_trips = map(int, sys.argv[1:])
listener = socket.create_server(("127.0.0.1", 0))
waits = select.epoll()
waits.register(listener, select.EPOLLIN)
for _ in range(connections):
    client = socket.create_connection(listener.getsockname())
    waits.poll()
    server, _ = listener.accept()
    server.setblocking(False)
    waits.register(server, select.EPOLLIN | select.EPOLLET | select.EPOLLRDHUP)
    for _ in range(round_trips):
        client.send(bytes(64))
        waits.poll()
        server.recv(512)
        server.sendmsg([bytes(64), bytes(64)])
        try:
            server.recv(512)
            sys.exit("a receive in vain has found something")
        except BlockingIOError:
            pass
        waits.poll(0)
        client.recv(512)
    client.close()
    waits.poll()
    server.recv(512)
    server.close()
