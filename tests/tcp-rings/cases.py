"""What calls on a connection return: `cases.py` prints a line for each case, `NAME OUTCOME`, and
the lines are those that TCP gives (tests/tcp_rings.rs). Both ends are in this process, but for that
of `cases.py exit PORT`. `cases.py NAME...` runs some cases. With `--rings` before, the connections
have rings when a case begins."""

import array
import ctypes
import errno
import fcntl
import hashlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

# Octets that each case has sent before it begins, which take both ends to their rings.
TRIP = b"begin" * 10
SIOCOUTQ, SIOCOUTQNSD = 0x5411, 0x894B
PEEK, DONTWAIT, WAITALL = socket.MSG_PEEK, socket.MSG_DONTWAIT, socket.MSG_WAITALL
NAMES = {getattr(select, name): name for name in [
    "POLLIN", "POLLPRI", "POLLOUT", "POLLERR", "POLLHUP", "POLLNVAL", "POLLRDHUP"]}
ASKED = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP
LIMIT_S = 20
HAS_RINGS = "--rings" in sys.argv[1:2]


def pair():
    """Both ends of a connection; they have used it, and have rings if `cases.py` is to have them.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other = listener.accept()[0]

    def trip():
        """Whether the octets have gone by TCP."""
        before = octets_of_tcp(one), octets_of_tcp(other)
        for sender, receiver in [(one, other), (other, one)]:
            sender.sendall(TRIP)
            assert receiver.recv(len(TRIP), WAITALL) == TRIP
        return before != (octets_of_tcp(one), octets_of_tcp(other))

    for _ in range(2):
        trip()
    if HAS_RINGS:
        assert until(lambda: not trip()) == "at last"
    return one, other


def octets_of_tcp(end):
    """tcpi_bytes_received."""
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return struct.unpack_from("Q", info, 128)[0]


def of(call, *words):
    """What a call returns: many octets by their number and digest, an error by its name."""
    try:
        result = call(*words)
    except OSError as error:
        return errno.errorcode[error.errno]
    is_long = isinstance(result, bytes) and len(result) > 20
    return (len(result), hashlib.sha256(result).hexdigest()[:8]) if is_long else result


def number(end, request):
    count = array.array("i", [-1])
    fcntl.ioctl(end, request, count)
    return count[0]


def until(condition):
    """Waits for what TCP may do a little later."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > limit:
            return "never"
        time.sleep(0.001)
    return "at last"


def arrives(end, octets):
    assert until(lambda: number(end, termios.FIONREAD) >= octets) == "at last"


def polled(end, wait_for=0):
    """The events of poll, which has those that are waited for."""
    poll = select.poll()
    poll.register(end, ASKED)
    found = [0]

    def look():
        found[0] = dict(poll.poll(0)).get(end.fileno(), 0)
        return found[0] & wait_for == wait_for

    until(look)
    return " ".join(NAMES[bit] for bit in NAMES if found[0] & bit)


def error_of(end):
    return errno.errorcode.get(end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)


def reset(end):
    """Closes it with a reset."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def meanwhile(call, *words):
    """Begins a call that waits in another thread; returns a function that returns its outcome."""
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(of(call, *words)), daemon=True)
    thread.start()
    time.sleep(0.05)

    def result():
        thread.join(LIMIT_S)
        return outcome[0] if outcome else "waits"

    return result


def fill(end):
    """Sends until there is no room, and a little later neither."""
    end.setblocking(False)
    total, idle = 0, 0
    while idle < 3:
        try:
            total += end.send(b"x" * 10_000)
            idle = 0
        except BlockingIOError:
            idle += 1
            time.sleep(0.02)
    return total


def drain(end, octets):
    count = 0
    while count < octets:
        count += len(end.recv(min(1 << 16, octets - count)))


def tcp_state(end):
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0]


def peek(one, other):
    one.sendall(b"abcdef")
    arrives(other, 6)
    yield of(other.recv, 3, PEEK), of(other.recv, 10, PEEK), number(other, termios.FIONREAD)
    yield polled(other), of(other.recv, 4), of(other.recv, 10, PEEK), of(other.recv, 10)
    yield of(other.recv, 10, PEEK | DONTWAIT), polled(other)


def peek_waits(one, other):
    for flags in [PEEK, PEEK | WAITALL]:
        first = meanwhile(other.recv, 6, flags)
        one.sendall(b"abc")
        time.sleep(0.05)
        one.sendall(b"def")
        yield first(), of(other.recv, 6, WAITALL)


def peek_around_the_end(one, other):
    one.sendall(b"abc")
    one.shutdown(socket.SHUT_WR)
    polled(other, select.POLLRDHUP)
    yield of(other.recv, 2, PEEK), of(other.recv, 9, PEEK | WAITALL), of(other.recv, 3)
    yield of(other.recv, 1, PEEK), of(other.recv, 1, PEEK), of(other.recv, 1), polled(other)
    other.sendall(b"more")
    arrives(one, 4)
    yield of(one.recv, 9, PEEK), of(one.recv, 9)


def peek_of_much(one, other):
    """More than a ring has, in pieces that lie around its end."""
    digest = hashlib.sha256()
    for size in range(1, 400):
        data = bytes([size % 251]) * (size * 7)
        one.sendall(data)
        arrives(other, len(data))
        other.setblocking(size % 2 == 0)
        if other.recv(1 << 16, PEEK) != data or other.recv(1 << 16) != data:
            yield "differs"
        digest.update(data)
    yield digest.hexdigest()


def peek_into_parts(one, other):
    one.sendall(b"abcdefgh")
    arrives(other, 8)
    for flags in [PEEK, PEEK | socket.MSG_TRUNC, 0]:
        parts = [bytearray(3), bytearray(0), bytearray(2)]
        yield of(other.recvmsg_into, parts, 0, flags), bytes(parts[0]), bytes(parts[2])
    yield of(other.recvmsg, 9, 100, PEEK), of(other.recvfrom, 2, PEEK), of(other.recvfrom, 9)


def trunc(one, other):
    one.sendall(b"abcdefgh")
    arrives(other, 8)
    yield len(other.recv(3, PEEK | socket.MSG_TRUNC)), len(other.recv(3, socket.MSG_TRUNC))
    yield of(other.recv, 9)


def waitall(one, other):
    first = meanwhile(other.recv, 6, WAITALL)
    one.sendall(b"abc")
    time.sleep(0.05)
    one.sendall(b"defg")
    yield first()
    one.sendall(b"hi")
    second = meanwhile(other.recv, 6, WAITALL)
    one.shutdown(socket.SHUT_WR)
    yield second(), of(other.recv, 6, WAITALL)


def waitall_of_much(one, other):
    data = bytes(range(250)) * 8000
    first = meanwhile(other.recv, len(data), WAITALL)
    one.sendall(data)
    yield first() == of(bytes, data)


def waitall_that_does_not_wait(one, other):
    one.sendall(b"abc")
    arrives(other, 3)
    yield of(other.recv, 6, WAITALL | DONTWAIT), of(other.recv, 6, WAITALL | DONTWAIT)


def no_octets(one, other):
    yield of(other.recv, 0, DONTWAIT), of(other.send, b""), of(other.recv, 1, DONTWAIT)
    one.sendall(b"abc")
    arrives(other, 3)
    yield of(other.recv, 0), of(other.recvmsg, 0), of(other.recv, 9)
    one.close()
    polled(other, select.POLLRDHUP)
    yield of(other.recv, 0)


def parts(one, other):
    yield of(one.sendmsg, [b"a", b"", b"bc"]), of(one.sendmsg, [b""] * 1000 + [b"d"])
    yield of(one.sendmsg, [b"e"] * 1025), of(one.sendto, b"f", ("127.0.0.1", 9))
    arrives(other, 5)
    yield of(other.recvmsg, 9, 100)


def flags_of_send(one, other):
    for flags in [socket.MSG_MORE, socket.MSG_NOSIGNAL, DONTWAIT, socket.MSG_EOR, 0x40, 0]:
        yield of(one.send, b"ab", flags)
    arrives(other, 12)
    yield of(other.recv, 20)


def corked(one, other):
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    one.sendall(b"abc")
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    yield of(other.recv, 9), one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    yield one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    # From here on the connection is TCP's, which holds this back.
    os.close(os.dup(one.fileno()))
    one.sendall(b"abc")
    yield of(other.recv, 9, DONTWAIT), one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    yield of(other.recv, 9), of(one.setsockopt, socket.IPPROTO_TCP, socket.TCP_CORK, b"a")


def queue_of_sender(one, other):
    for request in [SIOCOUTQ, SIOCOUTQNSD]:
        one.sendall(b"abc")
        yield until(lambda: number(one, request) == 0), of(other.recv, 9)


def queue_of_a_full_sender(one, other):
    octets = fill(one)
    yield number(one, SIOCOUTQ) > 0, polled(one)
    yield number(one, termios.FIONREAD), number(other, SIOCOUTQ)
    drain(other, octets)
    yield until(lambda: number(one, SIOCOUTQ) == 0), number(one, SIOCOUTQNSD), polled(one)


def queue_of_receiver(one, other):
    one.sendall(b"abc")
    arrives(other, 3)
    yield number(other, termios.FIONREAD), of(other.recv, 1), number(other, termios.FIONREAD)
    one.close()
    polled(other, select.POLLRDHUP)
    yield number(other, termios.FIONREAD), of(other.recv, 9), number(other, termios.FIONREAD)


def error_of_none(one, other):
    yield error_of(one), error_of(other)


def error_of_a_reset(one, other):
    reset(one)
    yield polled(other, select.POLLERR), error_of(other), error_of(other), polled(other)
    yield of(other.recv, 1), of(other.recv, 1), of(other.send, b"a"), of(other.send, b"a")
    yield of(other.getpeername), of(other.shutdown, socket.SHUT_WR)


def receive_of_a_reset(one, other):
    one.sendall(b"abc")
    arrives(other, 3)
    reset(one)
    polled(other, select.POLLERR)
    yield of(other.recv, 2), of(other.recv, 9, PEEK), of(other.recv, 9), of(other.recv, 9)
    yield of(other.recv, 9), error_of(other), of(other.send, b"a")


def peek_of_a_reset(one, other):
    reset(one)
    polled(other, select.POLLERR)
    yield of(other.recv, 9, PEEK), of(other.recv, 9, PEEK), of(other.recv, 9), error_of(other)


def send_of_a_reset(one, other):
    reset(one)
    polled(other, select.POLLERR)
    yield of(other.send, b"a"), of(other.send, b"a"), of(other.recv, 9), error_of(other)


def receive_that_waits_for_a_reset(one, other):
    first = meanwhile(other.recv, 9)
    reset(one)
    yield first(), of(other.recv, 9), error_of(other)


def send_that_waits_for_a_reset(one, other):
    fill(other)
    other.setblocking(True)
    first = meanwhile(other.sendall, b"x" * 10_000_000)
    # It leaves octets unread.
    one.close()
    yield first(), of(other.send, b"a"), of(other.recv, 9), error_of(other)


def send_to_the_closed(one, other):
    one.close()
    yield polled(other, select.POLLRDHUP), of(other.send, b"a")
    yield polled(other, select.POLLERR), error_of(other), of(other.recv, 9), of(other.send, b"b")


def send_to_the_closed_unasked(one, other):
    one.close()
    polled(other, select.POLLRDHUP)
    yield of(other.send, b"a"), until(lambda: of(other.send, b"a") == "EPIPE")
    yield of(other.recv, 9), of(other.recv, 9)


def close_with_octets_unread(one, other):
    other.sendall(b"unread")
    arrives(one, 6)
    one.close()
    yield polled(other), error_of(other), of(other.recv, 9), of(other.send, b"a")


def close_with_octets_unread_and_sent(one, other):
    other.sendall(b"unread")
    arrives(one, 6)
    one.sendall(b"last")
    arrives(other, 4)
    one.close()
    yield of(other.recv, 9), of(other.recv, 9), of(other.recv, 9), of(other.send, b"a")


def close_with_octets_peeked(one, other):
    other.sendall(b"unread")
    yield of(one.recv, 9, PEEK)
    one.close()
    yield of(other.send, b"a"), of(other.send, b"a"), of(other.recv, 9)


def close_with_octets_unread_of_a_waiting_peer(one, other):
    other.sendall(b"unread")
    arrives(one, 6)
    first = meanwhile(other.recv, 9)
    one.close()
    yield first(), of(other.recv, 9), error_of(other)


def close_with_some_octets_read(one, other):
    other.sendall(b"unread")
    arrives(one, 6)
    yield of(one.recv, 5)
    one.close()
    yield of(other.recv, 9), of(other.recv, 9)


def exit_with_octets_unread(*_):
    """Of another process, whose C library does not close its socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = [sys.executable, __file__, "exit", str(listener.getsockname()[1])]
        child = subprocess.Popen(words)
        other = listener.accept()[0]
    for _ in range(2):
        other.sendall(TRIP)
        assert other.recv(len(TRIP), WAITALL) == TRIP
    other.sendall(b"unread")
    yield child.wait(), polled(other, select.POLLERR), error_of(other), of(other.recv, 9)


def exit_unread(port):
    end = socket.create_connection(("127.0.0.1", port))
    for _ in range(2):
        assert end.recv(len(TRIP), WAITALL) == TRIP
        end.sendall(TRIP)
    arrives(end, 6)
    end.detach()
    sys.exit()


def signals_of_a_broken_pipe(one, other):
    count = []
    signal.signal(signal.SIGPIPE, lambda *_: count.append(1))
    reset(one)
    polled(other, select.POLLERR)
    yield of(other.recv, 9), of(other.send, b"a", socket.MSG_NOSIGNAL), len(count)
    yield of(os.write, other.fileno(), b"a"), until(lambda: len(count) == 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def signals_of_an_own_end(one, other):
    count = []
    signal.signal(signal.SIGPIPE, lambda *_: count.append(1))
    one.shutdown(socket.SHUT_WR)
    yield of(one.send, b"a", socket.MSG_NOSIGNAL), len(count)
    yield of(os.write, one.fileno(), b"a"), until(lambda: len(count) == 1)
    yield of(one.send, b""), error_of(one), of(other.recv, 9)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def shut_for_reading(one, other):
    other.sendall(b"abc")
    arrives(one, 3)
    one.shutdown(socket.SHUT_RD)
    yield polled(one), of(one.recv, 2), of(one.recv, 9), of(one.recv, 9)
    yield of(other.send, b"d"), of(one.send, b"e"), of(other.recv, 9)


def shut_for_both(one, other):
    other.sendall(b"abc")
    arrives(one, 3)
    one.shutdown(socket.SHUT_RDWR)
    yield of(one.recv, 9), of(one.recv, 9), of(one.send, b"a"), of(other.recv, 9)
    yield of(one.shutdown, socket.SHUT_RDWR)


def events_of_ends(one, other):
    yield polled(one), polled(other)
    one.shutdown(socket.SHUT_WR)
    yield polled(other, select.POLLRDHUP), polled(one)
    other.shutdown(socket.SHUT_WR)
    yield polled(other, select.POLLHUP), polled(one, select.POLLHUP)


def order_in_a_set(one, other):
    """A set reports the connections to which octets came while nobody waited, and ends, in their
    order."""
    ends = [(one, other)] + [pair() for _ in range(3)]
    for sender, _ in ends:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with select.epoll() as events:
        places = {end.fileno(): place for place, (_, end) in enumerate(ends)}
        for fd in places:
            events.register(fd, select.EPOLLIN)

        def told(room):
            return [places[fd] for fd, _ in events.poll(LIMIT_S, room)]

        for order in [(0, 1, 2, 3), (3, 1, 2, 0), (2, 3, 0, 1), (1, 0, 3, 2)]:
            for place in order:
                ends[place][0].sendall(b"a")
            yield told(4), told(1), told(1), told(1), told(1), told(4)
            for _, end in ends:
                end.recv(9)
            yield events.poll(0)
        ends[2][0].sendall(b"a")
        ends[3][0].close()
        ends[0][0].sendall(b"a")
        ends[1][0].close()
        yield told(4)
    for place in [(1, 1), (2, 0), (2, 1), (3, 1)]:
        ends[place[0]][place[1]].close()


def beside_a_ready_listener(one, other):
    """What is always ready does not keep a set from reporting what else is."""
    with socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as events:
        waiting = socket.create_connection(listener.getsockname())
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        events.register(listener, select.EPOLLIN)
        events.register(other, select.EPOLLIN)
        names = {listener.fileno(): "listener", other.fileno(): "other"}
        for _ in range(5):
            one.sendall(b"a")
            yield sorted(names[fd] for fd, _ in events.poll(LIMIT_S, 2))
            yield sorted({names[fd] for _ in range(4) for fd, _ in events.poll(LIMIT_S, 1)})
            other.recv(9)
            yield [names[fd] for fd, _ in events.poll(LIMIT_S, 2)]
        waiting.close()


def out_of_band(one, other):
    yield of(other.recv, 1, socket.MSG_OOB), of(one.send, b"abc")
    yield of(one.send, b"x", socket.MSG_OOB), of(one.send, b"de")
    yield polled(other, select.POLLPRI | select.POLLIN), select.select([], [], [other], 0)[2] != []
    yield number(other, 0x8905), of(other.recv, 9, socket.MSG_OOB), of(other.recv, 9)
    yield number(other, 0x8905), of(other.recv, 9), of(other.recv, 9, socket.MSG_OOB)


def out_of_band_inline(one, other):
    other.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    one.send(b"ab")
    one.send(b"x", socket.MSG_OOB)
    arrives(other, 2)
    yield of(other.recv, 9), of(other.recv, 9), of(other.recv, 1, socket.MSG_OOB)


def out_of_band_behind_octets(one, other):
    """Octets of a ring are before the mark."""
    for _ in range(100):
        one.send(b"abc")
    one.send(b"x", socket.MSG_OOB)
    polled(other, select.POLLPRI)
    yield of(other.recv, 9, socket.MSG_OOB), of(other.recv, 400, DONTWAIT)


def least_octets(one, other):
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 5)
    yield other.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
    first = meanwhile(other.recv, 9)
    one.sendall(b"abc")
    arrives(other, 3)
    yield polled(other)
    one.sendall(b"def")
    yield first()
    one.sendall(b"g")
    arrives(other, 1)
    yield polled(other), of(other.recv, 1), of(other.recv, 1, DONTWAIT)


def limit(end, option, seconds, micros=0):
    end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, micros))


def limit_of_a_receive(one, other):
    for set_by in [other, one]:
        limit(set_by, socket.SO_RCVTIMEO, 0, 60_000)
        begin = time.monotonic()
        yield of(set_by.recv, 9), of(set_by.recv, 9, PEEK), time.monotonic() - begin > 0.1
    one.sendall(b"ab")
    yield of(other.recv, 9, WAITALL), of(other.recv, 9)


def limit_of_a_send(one, other):
    fill(one)
    one.setblocking(True)
    limit(one, socket.SO_SNDTIMEO, 0, 60_000)
    begin = time.monotonic()
    # Some octets are sent if acknowledgements have made room meanwhile.
    yield of(one.send, b"x" * 10_000_000) != 10_000_000, time.monotonic() - begin > 0.05
    yield len(one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16))


def limit_of_a_send_by_parts(one, other):
    """What there is room for is sent."""
    limit(one, socket.SO_SNDTIMEO, 0, 60_000)
    sent = one.send(b"x" * 50_000_000)
    yield 0 < sent < 50_000_000
    drain(other, sent)
    yield of(one.send, b"last"), of(other.recv, 9)


def limit_of_all_waits(one, other):
    """Octets that arrive do not begin the time again."""
    limit(other, socket.SO_RCVTIMEO, 0, 400_000)
    first = meanwhile(other.recv, 100, WAITALL)
    for _ in range(40):
        one.send(b"a")
        time.sleep(0.05)
    yield 0 < len(first()) < 40


def limit_of_sleeps_for_the_bell(one, other):
    """Two threads wait, and a set has the socket."""
    limit(other, socket.SO_RCVTIMEO, 0, 200_000)
    both = [meanwhile(other.recv, 9), meanwhile(other.recv, 9)]
    yield [outcome() for outcome in both]
    with select.epoll() as events:
        events.register(other, select.EPOLLIN)
        yield of(other.recv, 9), events.poll(0)
        one.send(b"a")
        yield len(events.poll(LIMIT_S)), of(other.recv, 9), of(other.recv, 9)


def limits_that_change(one, other):
    limit(other, socket.SO_RCVTIMEO, 0, 1000)
    yield of(other.recv, 9)
    limit(other, socket.SO_RCVTIMEO, LIMIT_S)
    first = meanwhile(other.recv, 9)
    one.send(b"a")
    yield first(), of(limit, other, socket.SO_RCVTIMEO, 0, 1_000_000)
    limit(other, socket.SO_RCVTIMEO, 0)
    first = meanwhile(other.recv, 9)
    one.send(b"b")
    yield first()
    limit(other, socket.SO_RCVTIMEO, -1)
    yield of(other.recv, 9)


def limit_of_a_listener(*_):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        limit(listener, socket.SO_RCVTIMEO, 0, 300_000)
        with socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
            one.sendall(TRIP)
            yield of(other.recv, len(TRIP), WAITALL), of(other.recv, 9)


def limits_and_signals(one, other):
    """A call whose time has a limit is ended by a handler with SA_RESTART, too."""
    library = ctypes.CDLL(None, use_errno=True)
    thread, signals = threading.get_ident(), [0]
    signal.signal(signal.SIGUSR1, lambda *_: None)

    def send_signals(returned, octets):
        while not returned.wait(0.02):
            signal.pthread_kill(thread, signal.SIGUSR1)
            signals[0] += 1
            if signals[0] == 5:
                one.send(octets)

    for seconds, does_end, before, octets in [
            (0, False, b"", b"ab"), (0, True, b"", b""), (LIMIT_S, False, b"", b""),
            (LIMIT_S, True, b"", b""), (LIMIT_S, False, b"abc", b"")]:
        limit(other, socket.SO_RCVTIMEO, seconds)
        signal.siginterrupt(signal.SIGUSR1, does_end)
        one.send(before)
        returned, signals[0] = threading.Event(), 0
        sender = threading.Thread(target=send_signals, args=[returned, octets])
        sender.start()
        flags = WAITALL if before else 0
        taken = library.recv(other.fileno(), ctypes.create_string_buffer(9), 9, flags)
        error = ctypes.get_errno() if taken < 0 else 0
        returned.set()
        sender.join()
        yield taken, errno.errorcode.get(error, 0)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def lingering(one, other):
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    yield struct.unpack("ii", one.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
    one.sendall(b"abc")
    one.close()
    yield of(other.recv, 9), of(other.recv, 9)


def lingering_for_nothing(one, other):
    one.sendall(b"abc")
    arrives(other, 3)
    reset(one)
    yield of(other.recv, 9), of(other.recv, 9), of(other.recv, 9)


def info_of_states(one, other):
    yield tcp_state(one), tcp_state(other)
    one.shutdown(socket.SHUT_WR)
    polled(other, select.POLLRDHUP)
    yield until(lambda: tcp_state(one) == 5), tcp_state(other)
    reset(other)
    yield until(lambda: tcp_state(one) == 7), polled(one)


def info_of_queues(one, other):
    """tcpi_unacked and tcpi_notsent_bytes."""
    one.sendall(b"abc" * 1000)

    def is_empty():
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return struct.unpack_from("I", info, 24) == struct.unpack_from("I", info, 144) == (0,)

    yield until(is_empty), of(other.recv, 3000, WAITALL)


def second_connect(one, other):
    yield of(one.connect, other.getsockname()), of(other.listen, 1), of(one.send, b"a")
    yield of(other.recv, 9)


CASES = [
    peek, peek_waits, peek_around_the_end, peek_of_much, peek_into_parts, trunc, waitall,
    waitall_of_much, waitall_that_does_not_wait, no_octets, parts, flags_of_send, corked,
    queue_of_sender, queue_of_a_full_sender, queue_of_receiver, error_of_none, error_of_a_reset,
    receive_of_a_reset, peek_of_a_reset, send_of_a_reset, receive_that_waits_for_a_reset,
    send_that_waits_for_a_reset, send_to_the_closed, send_to_the_closed_unasked,
    close_with_octets_unread, close_with_octets_unread_and_sent, close_with_octets_peeked,
    close_with_octets_unread_of_a_waiting_peer, close_with_some_octets_read,
    exit_with_octets_unread,
    signals_of_a_broken_pipe, signals_of_an_own_end, shut_for_reading, shut_for_both,
    events_of_ends, order_in_a_set, beside_a_ready_listener, out_of_band, out_of_band_inline,
    out_of_band_behind_octets, least_octets,
    limit_of_a_receive, limit_of_a_send, limit_of_a_send_by_parts, limit_of_all_waits,
    limit_of_sleeps_for_the_bell, limits_that_change, limit_of_a_listener, limits_and_signals,
    lingering, lingering_for_nothing, info_of_states,
    info_of_queues, second_connect,
]
if sys.argv[1:2] == ["exit"]:
    exit_unread(int(sys.argv[2]))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPIPE])
NAMED = sys.argv[1 + HAS_RINGS:]
for case in CASES:
    if not NAMED or case.__name__ in NAMED:
        ends = pair()
        for at, outcome in enumerate(case(*ends)):
            print(case.__name__, at, outcome, flush=True)
        for end in ends:
            end.close()
