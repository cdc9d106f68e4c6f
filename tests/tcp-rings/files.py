"""`send PORT FOLDER BEGIN` sends files of FOLDER by sendfile when there is the file BEGIN, to `take
PORT`, and prints what each call returns and leaves: the same by TCP as by rings. A second
connection says how many octets are to be received, and gives their hash."""

import ctypes
import errno
import hashlib
import os
import random
import select
import signal
import socket
import sys
import threading
import time

FEW = 10
MOST = 1 << 20
LIBRARY = ctypes.CDLL(None, use_errno=True)
for function in (LIBRARY.sendfile, LIBRARY.sendfile64):
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_ssize_t


def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.01)


def receive(end, octets):
    digest, left = hashlib.sha256(), octets
    while left:
        data = end.recv(min(left, 1 << 16))
        assert data, left
        digest.update(data)
        left -= len(data)
    return digest.hexdigest()


def take(port):
    with socket.create_server(("127.0.0.1", port)) as listener:
        print("ready", flush=True)
        for _ in range(2):
            with listener.accept()[0] as data, listener.accept()[0] as control:
                words = control.makefile("rwb")
                for line in words:
                    words.write(b"%s\n" % receive(data, int(line)).encode())
                    words.flush()


class Sender:
    def __init__(self, port):
        self.data = socket.create_connection(("127.0.0.1", port))
        self.fd = self.data.fileno()
        self.words = socket.create_connection(("127.0.0.1", port)).makefile("rwb")
        self.gone = 0
        for _ in range(FEW):
            self.data.sendall(bytes(64))
            self.taken(64)

    def begin_take(self, octets):
        self.words.write(b"%d\n" % octets)
        self.words.flush()

    def end_take(self):
        return self.words.readline().strip().decode()

    def taken(self, octets):
        self.begin_take(octets)
        return self.end_take()

    def close(self):
        self.words.close()
        self.data.close()


def call(out, file, offset, count, function=LIBRARY.sendfile):
    """What a call returns and leaves: result, error, offset, position."""
    box = ctypes.c_int64(offset or 0)
    ctypes.set_errno(0)
    sent = function(out, file, None if offset is None else ctypes.addressof(box), count)
    error = errno.errorcode.get(ctypes.get_errno()) if sent < 0 else None
    try:
        position = os.lseek(file, 0, os.SEEK_CUR)
    except OSError:
        position = None
    return sent, error, None if offset is None else box.value, position


def say(*words):
    print(*words, flush=True)


def open_file(folder, name, octets):
    path = f"{folder}/{name}"
    with open(path, "wb") as file:
        file.write(random.Random(octets).randbytes(octets))
    return os.open(path, os.O_RDWR)


def results(to, file, length):
    """Offsets and positions, and what is before and after the octets of a file."""
    to.data.send(b"header", socket.MSG_MORE)
    say("offset", call(to.fd, file, 5, 1000), to.taken(1006))
    say("offset 64", call(to.fd, file, 9, 40_000, LIBRARY.sendfile64), to.taken(40_000))
    os.lseek(file, 123, os.SEEK_SET)
    say("position", call(to.fd, file, None, 3000), to.taken(3000))
    say("position 64", call(to.fd, file, None, 1, LIBRARY.sendfile64), to.taken(1))
    say("of Python", os.sendfile(to.fd, file, 77, 500), to.taken(500))
    to.data.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    os.writev(to.fd, [b"head", b"er"])
    say("cork", call(to.fd, file, 0, 20_000))
    to.data.send(b"trailer")
    to.data.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    say(to.taken(6 + 20_000 + 7))
    say("no octets", to.data.send(b""), os.writev(to.fd, [b"", b""]))
    say("tail", call(to.fd, file, length - 10, 100), to.taken(10))
    os.lseek(file, length - 20, os.SEEK_SET)
    say("tail by position", call(to.fd, file, None, 100), to.taken(20))
    say("end", call(to.fd, file, length, 100), call(to.fd, file, None, 100))
    say("beyond", call(to.fd, file, length + 100, 100), call(to.fd, file, 1 << 40, 100))
    say("nothing", call(to.fd, file, 0, 0), call(to.fd, file, None, 0))


def errors(to, folder, file):
    read_end, write_end = os.pipe()
    write_only = os.open(f"{folder}/other", os.O_WRONLY | os.O_CREAT)
    read_only = os.open(f"{folder}/other", os.O_RDONLY)
    closed = os.dup(read_end)
    os.close(closed)
    for name, out, source, offset, count in [
            ("closed", to.fd, closed, 0, 10), ("closed without offset", to.fd, closed, None, 10),
            ("write only", to.fd, write_only, 0, 10), ("pipe", to.fd, read_end, None, 10),
            ("pipe with offset", to.fd, read_end, 0, 10), ("with offset", to.fd, to.fd, 0, 10),
            ("itself", to.fd, to.fd, None, 10), ("negative", to.fd, file, -1, 10),
            ("range", to.fd, file, (1 << 63) - 1, 1), ("far", to.fd, file, (1 << 63) - 10, 5),
            ("count", to.fd, file, 0, (1 << 64) - 1), ("out closed", closed, file, 0, 10),
            ("out read only", read_only, file, 0, 10), ("empty", to.fd, read_only, None, 10)]:
        say(name, call(out, source, offset, count))
    say("pipe", call(write_end, file, 3, 100), os.read(read_end, 200) == os.pread(file, 100, 3))


def large(to, file, length):
    """The receiver is slower than the file."""
    os.lseek(file, 0, os.SEEK_SET)
    to.begin_take(length)
    say("large", call(to.fd, file, None, length + 1), to.end_take())


def shrinking(to, folder):
    """More octets than the buffers of a connection are in the file before and after it shrinks."""
    length, rest = 48 << 20, 32 << 20
    file = open_file(folder, "shrinking", length)

    def shrink():
        time.sleep(0.1)
        os.truncate(file, rest)
        to.begin_take(rest)

    thread = threading.Thread(target=shrink)
    thread.start()
    say("shrinking", call(to.fd, file, None, length), to.end_take())
    thread.join()
    os.close(file)


def filled(to, file, length):
    """Octets that a socket takes which does not wait: offsets follow, and room is reported."""
    to.data.setblocking(False)
    with select.epoll() as events:
        events.register(to.fd, select.EPOLLOUT | select.EPOLLET)
        for number in range(4):
            say("room", events.poll(20) == [(to.fd, select.EPOLLOUT)])
            sent, digest = 0, hashlib.sha256()
            while True:
                at = sent % length
                if number == 3:
                    # An ordinary call that is short.
                    data = os.pread(file, MOST, at)
                    moved = to.data.send(data)
                    digest.update(data[:moved])
                    sent += moved
                    if moved < len(data):
                        break
                    continue
                moved, error, offset, _ = call(to.fd, file, at, MOST)
                if moved < 0:
                    say("full", error, offset == at)
                    break
                assert offset == at + moved
                digest.update(os.pread(file, moved, at))
                sent += moved
                if number == 2 and moved < min(MOST, length - at):
                    break
            say("filled", sent > 0, to.taken(sent) == digest.hexdigest())
        say("room", events.poll(20) == [(to.fd, select.EPOLLOUT)])
    to.data.setblocking(True)


def interrupted(to, file):
    """A handler ends a call that waits."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    os.lseek(file, 0, os.SEEK_SET)
    total = 0
    for _ in range(3):
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        sent, error, _, position = call(to.fd, file, None, 100 << 20)
        signal.setitimer(signal.ITIMER_REAL, 0)
        total += max(sent, 0)
        say("interrupted", sent > 0 or error == "EINTR", position == total)
    os.lseek(file, 0, os.SEEK_SET)
    digest = hashlib.sha256(os.pread(file, total, 0)).hexdigest()
    say("interrupted", to.taken(total) == digest)


def send(port, folder, begin):
    to, last = Sender(port), None
    wait_for(begin)
    for _ in range(FEW):
        to.data.sendall(bytes(64))
        to.taken(64)
    length = (5 << 20) + 1234
    file = open_file(folder, "file", length)
    results(to, file, length)
    errors(to, folder, file)
    large(to, file, length)
    shrinking(to, folder)
    filled(to, file, length)
    interrupted(to, open_file(folder, "long", 32 << 20))
    to.close()
    last = Sender(port)
    wait_for(begin + "-again")
    for _ in range(FEW):
        last.data.sendall(bytes(64))
        last.taken(64)
    # No regular file: what the kernel says, and by TCP.
    zero = os.open("/dev/zero", os.O_RDONLY)
    sent, error, _, _ = call(last.fd, zero, None, 1000)
    say("device", sent, error, last.taken(max(sent, 0)))
    say("after", call(last.fd, file, 3, 1000), last.taken(1000))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    last.words.close()
    while (failed := call(last.fd, file, 0, 1 << 16))[0] >= 0:
        pass
    say("closed", failed[1] in ("EPIPE", "ECONNRESET"), failed[2])
    say("done")


words = [int(word) if word.isdigit() else word for word in sys.argv[2:]]
{"send": send, "take": take}[sys.argv[1]](*words)
