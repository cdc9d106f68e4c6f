"""`PORT COUNT BEGIN`: some connections set keys of a memcached, COUNT each, at once, when there is
the file BEGIN; others get them, one by one and many at a time, and compare the values."""

import os
import random
import socket
import sys
import threading
import time

CONNECTIONS = 4
# Requests after which both ends have offered their sockets.
FEW = 10


def value(number):
    rng = random.Random(number)
    return rng.randbytes(rng.choice([1, 100, 5000, 300_000]))


def line(words):
    return words.readline().rstrip(b"\r\n")


def one(words):
    """The next of the values that a get returns, or None at their end."""
    name, *rest = line(words).split()
    if name == b"END":
        return None
    key, _, length = rest
    data = words.read(int(length))
    assert name == b"VALUE" and words.read(2) == b"\r\n", name
    return int(key.removeprefix(b"key")), data


def store(words, numbers):
    for number in numbers:
        data = value(number)
        words.write(b"set key%d 0 0 %d\r\n%s\r\n" % (number, len(data), data))
        words.flush()
        assert line(words) == b"STORED"


def check(words, numbers):
    for number in numbers:
        words.write(b"get key%d\r\n" % number)
        words.flush()
        assert one(words) == (number, value(number)), number
        assert one(words) is None
    words.write(b"get %s\r\n" % b" ".join(b"key%d" % number for number in numbers))
    words.flush()
    for number in numbers:
        assert one(words) == (number, value(number)), number
    assert one(words) is None


def connect(port):
    words = socket.create_connection(("127.0.0.1", port)).makefile("rwb")
    for _ in range(FEW):
        words.write(b"version\r\n")
        words.flush()
        assert line(words).startswith(b"VERSION")
    return words


def run(port, count, begin):
    ends = [connect(int(port)) for _ in range(2 * CONNECTIONS)]
    while not os.path.exists(begin):
        time.sleep(0.01)
    failed = []

    def use(index, action, words):
        try:
            action(words, range(index * count, (index + 1) * count))
        except BaseException as error:
            failed.append(error)
            raise

    for action in (store, check):
        threads = [threading.Thread(target=use, args=[index, action, ends.pop()])
                   for index in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
    # Each value was sent once and received twice.
    octets = sum(len(value(number)) for number in range(CONNECTIONS * count))
    print("equal", 3 * octets, flush=True)


run(sys.argv[1], int(sys.argv[2]), sys.argv[3])
