"""Ends of connections for a long time.

`serve PORT` echoes with epoll until it is killed, to `ask PORT CONNECTIONS FILE`, which makes round
trips, makes connections again that end, and stores in FILE how many of both there were.

`offer PORT OCTETS SEED` and `take PORT OCTETS SEED` send so many octets to each other on one
connection after the other, in random pieces, with random ways to wait, forks, duplicates, passed
descriptors and children that go on, and print the digests of what each connection has carried."""

import hashlib
import os
import random
import select
import selectors
import socket
import struct
import sys
import time

from ends import by_dup, by_pass, echo_some

# The longest message of a round trip, octets.
MESSAGE = 30_000
# The longest piece that is sent at once, more than a ring has.
PIECE = 300_000
DATA = random.Random(38).randbytes(1 << 20)
# Octets of a connection, each way.
STREAM = 16 << 20
MAIN = os.getpid()


def serve(port):
    ends, waiting = {}, {}
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener, select.epoll() as all:
        all.register(listener, select.EPOLLIN)
        print("ready", flush=True)
        while True:
            for fd, _ in all.poll():
                if fd == listener.fileno():
                    end = listener.accept()[0]
                    end.setblocking(False)
                    ends[end.fileno()], waiting[end.fileno()] = end, bytearray()
                    all.register(end, select.EPOLLIN)
                elif goes_on(ends[fd], waiting[fd]):
                    all.modify(fd, select.EPOLLOUT if waiting[fd] else select.EPOLLIN)
                else:
                    all.unregister(fd)
                    ends.pop(fd).close()


def goes_on(end, waiting):
    """False at the end of the stream, or if its other end was killed."""
    try:
        return echo_some(end, waiting)
    except ConnectionError:
        return False


def connect(port):
    """A server that was killed is started again."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionError:
            time.sleep(0.001)


def ask(port, connections, file):
    rng = random.Random(os.getpid())
    ends = [connect(port) for _ in range(connections)]
    trips = broken = 0
    told = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    while True:
        place = (trips + broken) % connections
        at, octets = rng.randrange(1 << 19), rng.choice([1, 64, 1000, MESSAGE])
        data = DATA[at:at + octets]
        try:
            round_trip(ends[place], data)
            trips += 1
        except ConnectionError:
            broken += 1
            ends[place].close()
            ends[place] = connect(port)
        os.pwrite(told, struct.pack("QQ", trips, broken), 0)


def round_trip(end, data):
    end.sendall(data)
    got = b""
    while len(got) < len(data):
        part = end.recv(len(data) - len(got))
        if not part:
            raise ConnectionResetError
        got += part
    assert got == data


def offer(port, octets, seed):
    with socket.create_server(("127.0.0.1", port)) as listener:
        print("ready", flush=True)
        for number in range(octets // STREAM):
            exchange(listener.accept()[0], "offer", number, seed)


def take(port, octets, seed):
    for number in range(octets // STREAM):
        exchange(socket.create_connection(("127.0.0.1", port)), "take", number, seed)


def exchange(end, role, number, seed):
    """Sends a stream and receives one at the same time. Both ends learn that the other one has all
    before they close."""
    rng = random.Random(f"{seed} {role} {number}")
    sent, got = hashlib.sha256(), hashlib.sha256()
    left, missing, pending = STREAM, STREAM, b""
    changes = {rng.randrange(STREAM): fork for _ in range(rng.randrange(3))}
    if rng.randrange(4) == 0:
        changes[rng.randrange(STREAM)] = rng.choice([by_dup, passed, handed])
    changes = sorted(changes.items(), key=lambda item: -item[0])
    end.setblocking(False)
    ready = chooser(rng, end)
    while left or pending or missing:
        readable, writable = ready(bool(left or pending))
        if readable and missing:
            try:
                part = end.recv(min(missing, rng.choice([1, 100, 5000, 1 << 16, PIECE])))
            except BlockingIOError:
                part = None
            if part == b"":
                raise ConnectionResetError(f"{missing} are missing")
            if part:
                got.update(part)
                missing -= len(part)
        if writable and (left or pending):
            if not pending:
                at = rng.randrange(1 << 19)
                pending = DATA[at:at + min(left, rng.choice([1, 100, 5000, 1 << 16, PIECE]))]
                left -= len(pending)
                sent.update(pending)
            try:
                pending = pending[end.send(pending):]
            except BlockingIOError:
                pass
        while changes and changes[-1][0] < STREAM - left:
            # A socket that is in two sets at a time has no rings.
            ready = None
            before, end = end, changes.pop()[1](end)
            if not end:
                before.close()
                return
            ready = chooser(rng, end)
    print(role, number, sent.hexdigest(), got.hexdigest(), flush=True)
    end.setblocking(True)
    end.sendall(b"e")
    assert end.recv(1) == b"e"
    end.close()
    if os.getpid() != MAIN:
        os._exit(0)


def chooser(rng, end):
    """A way to wait: says whether the socket can be read and written."""
    way = rng.choice([selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector])
    chosen = way()
    chosen.register(end, selectors.EVENT_READ)
    interest = [selectors.EVENT_READ]

    def ready(does_send):
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if does_send else 0)
        if wanted != interest[0]:
            chosen.modify(end, wanted)
            interest[0] = wanted
        events = [event for _, event in chosen.select()]
        events = events[0] if events else 0
        return events & selectors.EVENT_READ, events & selectors.EVENT_WRITE

    return ready


def fork(end):
    """The connection moves to TCP until the child has ended."""
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return end


def handed(end):
    """A child goes on in place of this process, which gets None."""
    child = os.fork()
    if not child:
        return end
    assert os.waitpid(child, 0)[1] == 0
    return None


def passed(end):
    other = by_pass(end)
    other.setblocking(False)
    return other


words = [int(word) if word.isdigit() else word for word in sys.argv[2:]]
{function.__name__: function for function in [serve, ask, offer, take]}[sys.argv[1]](*words)
