"""`serve threads|forks PORT` returns what it gets, by a thread or a child for each connection; `ask
PORT` has many clients connect again and again, and compares what each gets."""

import random
import socket
import socketserver
import sys
import threading

CLIENTS = 50
CONNECTIONS = 20
MESSAGES = 20
LENGTHS = [1, 100, 5000, 100_000]
LIMIT_S = 60


def message(octets):
    return len(octets).to_bytes(4, "big") + octets


def read_message(words):
    length = words.read(4)
    return words.read(int.from_bytes(length, "big")) if length else None


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while (octets := read_message(self.rfile)) is not None:
            self.wfile.write(message(octets))


def serve(kind, port):
    servers = {
        "threads": socketserver.ThreadingTCPServer,
        "forks": socketserver.ForkingTCPServer,
    }
    server_class = servers[kind]
    server_class.request_queue_size = CLIENTS
    with server_class(("127.0.0.1", port), Handler) as server:
        server.serve_forever()


def ask_once(port, rng):
    octets = 0
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        words = connection.makefile("rb")
        for number in range(MESSAGES):
            sent = rng.randbytes(rng.choice(LENGTHS))
            connection.sendall(message(sent))
            assert read_message(words) == sent, (number, len(sent))
            octets += 2 * len(sent)
    return octets


def ask(port):
    sums = [None] * CLIENTS

    def client(number):
        rng = random.Random(number)
        sums[number] = sum(ask_once(port, rng) for _ in range(CONNECTIONS))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A thread that has failed has no sum, and has said why.
    print("equal", sum(sums))


def main(what, *rest):
    if what == "serve":
        serve(rest[0], int(rest[1]))
    else:
        ask(int(rest[0]))


main(*sys.argv[1:])
