"""Ends of a TCP connection: `echo PORT` returns what it gets; `ping PORT COUNT BEGIN GO_ON` makes a
few round trips, waits for the file BEGIN, makes COUNT, waits for GO_ON, and makes as many again, or
sleeps in recv if GO_ON is `block`; `once PORT` makes one round trip; `hang_up COUNT` closes
connections to itself; `drain PORT` receives until the end from `pour PORT OCTETS BEGIN`; `change
PORT COUNT` makes round trips before and after calls that only the kernel does, each on a connection
of its own to `serve PORT`; `reasons PORT FOLDER` does so for calls that `urdma status` tells apart,
to `serve PORT COUNT`, each when there is a file in FOLDER; `events PORT CONNECTIONS TRIGGER` echoes
with epoll, level-triggered or by `edge` or `once`, to `visit PORT CONNECTIONS COUNT BEGIN`, which
sends COUNT messages of random lengths on each; `branch PORT FORK END` echoes with epoll to `stages
PORT COUNT FILE...`, which makes COUNT round trips when there is a FILE, and has a child from FORK
to END; `crowd PORT CONNECTIONS` is `events` by `once` with several threads; `duplex PORT OCTETS
BEGIN` sends to `echo` in one thread and receives in another; `spawning PORT` is `echo` and starts
programs; `choose PORT CONNECTIONS SELECTOR` is `events` with another class of Python's selectors,
and `serve_tasks PORT CONNECTIONS` with asyncio and select; `herd PORT OCTETS WAYS` receives in
several threads that sleep, in recv, poll, select and epoll_wait, from `feed PORT OCTETS BEGIN`;
`keys PORT COUNT BEGIN` stores, saves and reads keys of a redis server."""

import array
import asyncio
import ctypes
import errno
import fcntl
import hashlib
import os
import random
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

OCTETS = 64
# Round trips after which both ends have offered their sockets.
FEW = 10


def receive(end, octets):
    """So many octets, or what came before the end."""
    data = b""
    while len(data) < octets:
        part = end.recv(octets - len(data))
        if not part:
            break
        data += part
    return data


def accept(port):
    with socket.create_server(("127.0.0.1", port)) as listener:
        print("ready", flush=True)
        return listener.accept()[0]


def echo(port):
    end = accept(port)
    count = 0
    try:
        while data := receive(end, OCTETS):
            end.sendall(data)
            count += 1
        print("end after", count, flush=True)
    except ConnectionError as error:
        print(type(error).__name__, "after", count, flush=True)


def trips(end, first, count):
    for number in range(first, first + count):
        data = number.to_bytes(8, "little") * (OCTETS // 8)
        end.sendall(data)
        answer = receive(end, OCTETS)
        if not answer:
            print("end after", number, flush=True)
            sys.exit()
        assert answer == data, number


def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.01)


def ping(port, count, begin, go_on):
    end = socket.create_connection(("127.0.0.1", port))
    trips(end, 0, FEW)
    wait_for(begin)
    trips(end, FEW, count)
    print("half", flush=True)
    if go_on == "block":
        print("got", receive(end, 1), flush=True)
        return
    wait_for(go_on)
    trips(end, FEW + count, count)
    print("done", flush=True)


def once(port):
    with socket.create_connection(("127.0.0.1", port)) as end:
        trips(end, 0, 1)


def hang_up(count):
    """The end or reset of a connection has arrived when close returns."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for number in range(count):
            one = socket.create_connection(listener.getsockname())
            other = listener.accept()[0]
            data = number.to_bytes(8, "little")
            one.sendall(data)
            if number % 2 == 0:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
            other.setblocking(False)
            try:
                assert other.recv(9) == data and other.recv(9) == b""
                assert number % 2 == 1
            except ConnectionResetError:
                assert number % 2 == 0
            other.close()
    print("done")


def drain(port):
    end = accept(port)
    digest, count = hashlib.sha256(), 0
    while data := end.recv(1 << 16):
        digest.update(data)
        count += len(data)
    print("end after", count, digest.hexdigest(), flush=True)


def pour(port, octets, begin):
    """Sends octets, says how many, and waits to be killed."""
    end = socket.create_connection(("127.0.0.1", port))
    data = bytes(range(256)) * 4
    count = 0
    while not os.path.exists(begin):
        end.sendall(data)
        count += len(data)
        time.sleep(0.002)
    # The receiver's next call uses rings.
    end.sendall(data)
    time.sleep(0.2)
    end.sendall(data * (octets // len(data)))
    count += len(data) + octets
    print("poured", count, "octets", flush=True)
    time.sleep(600)


def by_select(end):
    assert select.select([end], [end], [], 0) == ([], [end], [])
    return end


def by_select_calls(end):
    """select and pselect with other descriptors: sets, counts, times and masks as the kernel's."""
    library = ctypes.CDLL(None, use_errno=True)
    words = ctypes.c_ulong * 16
    pair = ctypes.c_long * 2
    read_end, write_end = os.pipe()

    def named(*fds):
        given = words()
        for fd in fds:
            given[fd // 64] |= 1 << fd % 64
        return given

    def fds(given):
        return [fd for fd in range(1024) if given[fd // 64] >> fd % 64 & 1]

    fd = end.fileno()
    count = max(fd, write_end) + 1
    for number in range(3000, 3100):
        read, write, limit = named(fd, read_end), named(fd, write_end), pair(20, 0)
        assert library.select(count, read, write, None, limit) == 2
        assert (fds(read), fds(write)) == ([], [fd, write_end])
        assert 0 < limit[0] < 20 or limit[0] == 20 and limit[1] == 0
        read, limit = named(fd, read_end), pair(0, 2000)
        assert library.select(count, read, None, None, limit) == 0
        assert (fds(read), list(limit)) == ([], [0, 0])
        end.sendall(number.to_bytes(8, "little") * (OCTETS // 8))
        read, other, limit = named(fd, read_end), named(fd), pair(20, 0)
        assert library.pselect(count, read, None, other, limit, None) == 1
        assert (fds(read), fds(other), list(limit)) == ([fd], [], [20, 0])
        os.write(write_end, b"x")
        while len(select.select([end, read_end], [], [], 20)[0]) < 2:
            pass
        assert os.read(read_end, 1) == b"x"
        assert receive(end, OCTETS) == number.to_bytes(8, "little") * (OCTETS // 8)
    # A handler ends a wait, by pselect only while its mask lets the signal through.
    got = []
    signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    os.kill(os.getpid(), signal.SIGUSR1)
    assert library.select(count, named(fd), None, None, pair(0, 2000)) == 0
    through = words()
    assert library.pselect(count, named(fd), None, None, pair(20, 0), through) == -1
    assert ctypes.get_errno() == errno.EINTR
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    assert got == [1]
    os.close(read_end)
    read = named(fd, read_end)
    assert library.select(count, read, None, None, None) == -1
    assert (ctypes.get_errno(), fds(read)) == (errno.EBADF, sorted([fd, read_end]))
    os.close(write_end)
    return end


def by_number(end):
    """ppoll and pselect6 by syscall(2)."""
    library = ctypes.CDLL(None, use_errno=True)
    ppoll, pselect6 = {"x86_64": (271, 270), "aarch64": (73, 72)}[os.uname().machine]
    fd = end.fileno()
    entry = (ctypes.c_int * 2)(fd, select.POLLIN)
    limit = (ctypes.c_long * 2)(20, 0)
    for number in (1, 2):
        end.sendall(number.to_bytes(8, "little") * (OCTETS // 8))
        if number == 1:
            assert library.syscall(ppoll, entry, ctypes.c_long(1), limit, None, None) == 1
        else:
            named = (ctypes.c_ulong * 16)()
            named[fd // 64] = 1 << fd % 64
            assert library.syscall(pselect6, fd + 1, named, None, None, limit, None) == 1
        assert receive(end, OCTETS) == number.to_bytes(8, "little") * (OCTETS // 8)
    return end


def by_polled_set(end):
    """poll has the socket and, after it, a set of which another socket is a member."""
    port = end.getpeername()[1]
    with socket.create_connection(("127.0.0.1", port)) as other, select.epoll() as inner:
        trips(other, 0, FEW)
        time.sleep(0.1)
        trips(other, FEW, FEW)
        inner.register(other, select.EPOLLIN)
        polled = select.poll()
        polled.register(end, select.POLLIN)
        polled.register(inner, select.POLLIN)
        for number in range(20, 100):
            data = number.to_bytes(8, "little") * (OCTETS // 8)
            other.sendall(data)
            assert polled.poll(20_000) == [(inner.fileno(), select.POLLIN)]
            assert receive(other, OCTETS) == data
    return end


def by_epoll(end):
    with select.epoll() as events:
        events.register(end, select.EPOLLIN | select.EPOLLOUT)
        assert events.poll(0) == [(end.fileno(), select.EPOLLOUT)]
    return end


def by_edges(end):
    """Each edge is reported once."""
    with select.epoll() as events:
        events.register(end, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        # There is no room for more entries of the kernel's.
        assert events.poll(20, 2) == [(end.fileno(), select.EPOLLOUT)]
        for number in range(8500, 8550):
            assert events.poll(0.001) == []
            data = number.to_bytes(8, "little") * (OCTETS // 8)
            end.sendall(data)
            assert events.poll(20) == [(end.fileno(), select.EPOLLIN | select.EPOLLOUT)]
            assert receive(end, OCTETS) == data
    return end


def by_nested_sets(end):
    with select.epoll() as inner, select.epoll() as outer:
        inner.register(end, select.EPOLLIN)
        trips(end, 5000, 20)
        outer.register(inner, select.EPOLLIN)
        for number in range(5020, 5100):
            data = number.to_bytes(8, "little") * (OCTETS // 8)
            end.sendall(data)
            assert outer.poll(20) == [(inner.fileno(), select.EPOLLIN)]
            assert inner.poll(0) == [(end.fileno(), select.EPOLLIN)]
            assert receive(end, OCTETS) == data
    return end


def by_pwait2(end):
    """epoll_pwait2(2), which is no call of Python's: struct epoll_event has 12 octets on x86-64."""
    library = ctypes.CDLL(None, use_errno=True)
    seconds = ctypes.c_long * 2
    with select.epoll() as events:
        events.register(end, select.EPOLLIN)
        for number in range(4000, 4100):
            found = ctypes.create_string_buffer(16)

            def wait(*limit):
                return library.epoll_pwait2(events.fileno(), found, 1, seconds(*limit), None)

            assert wait(0, 1000) == 0
            data = number.to_bytes(8, "little") * (OCTETS // 8)
            end.sendall(data)
            assert wait(20, 0) == 1
            assert int.from_bytes(found.raw[:4], "little") == select.EPOLLIN
            assert receive(end, OCTETS) == data
    return end


def by_two_readers(end):
    """Two threads sleep in recv."""
    got = []
    threads = [threading.Thread(target=lambda: got.append(receive(end, 8))) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    end.sendall(b"r" * OCTETS)
    for thread in threads:
        thread.join()
    assert got == [b"r" * 8] * 2
    assert receive(end, OCTETS - 16) == b"r" * (OCTETS - 16)
    return end


def by_dup(end):
    copy = end.dup()
    end.close()
    return copy


def by_fork(end):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return end
    trips(end, 7000, 50)
    os._exit(0)


def by_handing_on(end):
    """A child gives the connection to another program, which uses it when that is forgotten."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(end.fileno(), 0)
        os.dup2(read_end, 1)
        os.execv(sys.executable, [sys.executable, __file__, "inherited", "0", "1"])
    os.close(read_end)
    trips(end, 6000, 100)
    time.sleep(0.1)
    trips(end, 6100, 100)
    os.close(write_end)
    assert os.waitpid(child, 0)[1] == 0
    return end


def by_spawn(end):
    words = [sys.executable, __file__, "inherited", str(end.fileno())]
    subprocess.run(words, pass_fds=[end.fileno()], check=True, stdout=subprocess.DEVNULL)
    return end


def by_stdin(end):
    """A vforked child makes the connection the standard input of a program."""
    words = [sys.executable, __file__, "inherited", "0"]
    subprocess.run(words, stdin=end, check=True, stdout=subprocess.DEVNULL)
    return end


def by_spawn_actions(end):
    words = [sys.executable, __file__, "inherited", "0"]
    actions = [(os.POSIX_SPAWN_DUP2, end.fileno(), 0)]
    child = os.posix_spawn(sys.executable, words, os.environ, file_actions=actions)
    assert os.waitpid(child, 0)[1] == 0
    return end


def by_inheritance(end):
    """A program inherits the connection that has no FD_CLOEXEC."""
    end.set_inheritable(True)
    words = [sys.executable, __file__, "inherited", str(end.fileno())]
    assert os.waitpid(os.posix_spawn(sys.executable, words, os.environ), 0)[1] == 0
    return end


def by_pass(end):
    one, other = socket.socketpair(socket.AF_UNIX)
    socket.send_fds(one, [b"x"], [end.fileno()])
    end.close()
    fd = socket.recv_fds(other, 1, 1)[1][0]
    return socket.socket(fileno=fd)


def by_peek(end):
    end.sendall(b"p" * OCTETS)
    assert end.recv(1, socket.MSG_PEEK) == b"p"
    assert receive(end, OCTETS) == b"p" * OCTETS
    return end


def by_length(end):
    end.sendall(b"l" * OCTETS)
    assert len(end.recv(1, socket.MSG_PEEK | socket.MSG_TRUNC)) == 1
    assert receive(end, OCTETS) == b"l" * OCTETS
    return end


def by_count(end):
    end.sendall(b"c" * OCTETS)
    while True:
        count = array.array("i", [0])
        fcntl.ioctl(end, termios.FIONREAD, count)
        if count[0] == OCTETS:
            break
    assert receive(end, OCTETS) == b"c" * OCTETS
    return end


def by_timeout(end):
    end.settimeout(20)
    return end


def by_file(end):
    with end.makefile("rwb", buffering=0) as file:
        file.write(b"f" * OCTETS)
        assert file.read(OCTETS) == b"f" * OCTETS
    return end


def by_stdio(end):
    data = b"s" * OCTETS
    file = os.fdopen(os.dup(end.fileno()), "wb")
    file.write(data)
    file.close()
    assert receive(end, OCTETS) == data
    return end


def by_pending(end):
    """Octets are in both rings when they move to TCP."""
    data = os.urandom(OCTETS) * 200
    end.sendall(data)
    time.sleep(0.02)
    by_select_any(end)
    assert receive(end, len(data)) == data
    return end


def by_select_any(end):
    select.select([end], [end], [], 0)


CHANGES = [by_select, by_select_calls, by_number, by_polled_set, by_epoll, by_edges, by_nested_sets,
           by_pwait2, by_two_readers, by_dup, by_fork, by_handing_on, by_spawn, by_stdin,
           by_spawn_actions, by_inheritance, by_pass, by_peek, by_length, by_count, by_timeout,
           by_file, by_stdio, by_pending]


def change(port, count):
    for action in CHANGES:
        end = socket.create_connection(("127.0.0.1", port))
        trips(end, 0, FEW)
        time.sleep(0.1)
        trips(end, FEW, count)
        end = action(end)
        trips(end, FEW + count, count)
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b"", action
        end.close()
        print(action.__name__, flush=True)
    print("done", flush=True)


def reasons(port, folder):
    """What moves connections to TCP: the last one executes a program."""
    for number, action in enumerate(REASONS):
        end = socket.socket()
        if action is by_least_octets:
            by_least_octets(end)
        end.connect(("127.0.0.1", port))
        trips(end, 0, FEW)
        wait_for(f"{folder}/{number}")
        end = action(end)
        trips(end, FEW, FEW)
        end.close()


def by_least_octets(end):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)
    return end


def by_mark(end):
    fcntl.ioctl(end, 0x8905, array.array("i", [0]))  # SIOCATMARK
    return end


def by_exec(_):
    os.execv("/bin/true", ["true"])


REASONS = [by_dup, by_length, by_mark, by_least_octets, by_exec]


# One of the actions of `change` makes another connection.
def serve(port, count=len(CHANGES) + 1):
    with socket.create_server(("127.0.0.1", port)) as listener:
        print("ready", flush=True)
        threads = []
        for _ in range(count):
            threads.append(threading.Thread(target=serve_one, args=[listener.accept()[0]]))
            threads[-1].start()
        for thread in threads:
            thread.join()
    print("served", flush=True)


def serve_one(end):
    with end:
        while data := receive(end, OCTETS):
            end.sendall(data)


def spawning(port):
    """Echoes, and starts programs in each way that takes no descriptor of the connection."""
    end, count = accept(port), 0
    true = "/bin/true"
    ways = [lambda: subprocess.run([true], check=True),
            lambda: subprocess.run([true], check=True, close_fds=False),
            lambda: subprocess.run([true], check=True, stdin=subprocess.PIPE),
            lambda: os.waitpid(os.posix_spawn(true, [true], {}), 0),
            lambda: os.system(true),
            lambda: os.popen(true).close()]
    while data := receive(end, OCTETS):
        if count % 50 == 25:
            ways[count // 50 % len(ways)]()
        end.sendall(data)
        count += 1
    assert count // 50 > len(ways)
    print("end after", count, flush=True)


def branch(port, fork, end):
    """The child has the connection and the epoll set, and uses neither."""
    child = None
    connection = accept(port)
    with select.epoll() as events:
        events.register(connection, select.EPOLLIN)
        while True:
            if not events.poll(0.01):
                if child and os.path.exists(end):
                    assert os.waitpid(child, 0)[1] == 0
                    child = None
                    print("ended", flush=True)
                continue
            data = receive(connection, OCTETS)
            if not data:
                break
            if not child and os.path.exists(fork) and not os.path.exists(end):
                child = os.fork()
                if not child:
                    wait_for(end)
                    os._exit(0)
            connection.sendall(data)
    print("served", flush=True)


def stages(port, count, *files):
    end = socket.create_connection(("127.0.0.1", port))
    trips(end, 0, FEW)
    for number, file in enumerate(files):
        wait_for(file)
        trips(end, FEW + number * count, count)
        print("stage", number, flush=True)


def keys(port, count, begin):
    end = socket.create_connection(("127.0.0.1", port))
    answers = end.makefile("rb")

    def ask(*words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(w), w) for w in words]
        end.sendall(b"".join(parts))
        answer = answers.readline()
        if answer[:1] != b"$":
            return answer[1:-2]
        length = int(answer[1:])
        return answers.read(length + 2)[:-2]

    def meet():
        for _ in range(FEW):
            assert ask("PING") == b"PONG"

    meet()
    wait_for(begin)
    rng = random.Random(count)
    values = [rng.randbytes(rng.choice([1, 100, 5000, 300_000])) for _ in range(count)]
    for number, value in enumerate(values):
        assert ask("SET", f"key{number}", value) == b"OK"
    for number, value in enumerate(values):
        assert ask("GET", f"key{number}") == value
    assert ask("BGSAVE") == b"Background saving started"
    while b"rdb_bgsave_in_progress:1" in ask("INFO", "persistence"):
        time.sleep(0.01)
    assert b"rdb_last_bgsave_status:ok" in ask("INFO", "persistence")
    print("saved", flush=True)
    meet()
    wait_for(begin + "-again")
    for number, value in enumerate(values):
        assert ask("GET", f"key{number}") == value
    print("done", flush=True)


TRIGGERS = {"level": 0, "edge": select.EPOLLET, "once": select.EPOLLONESHOT}


def events(port, connections, trigger):
    """Echoes on all connections at once; interest in writing is there while octets wait for it."""
    ends, waiting, kind = {}, {}, TRIGGERS[trigger]
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener, select.epoll() as all:
        print("ready", flush=True)
        all.register(listener, select.EPOLLIN)
        left = connections
        while left:
            for fd, _ in all.poll():
                if fd == listener.fileno():
                    end = listener.accept()[0]
                    end.setblocking(False)
                    ends[end.fileno()], waiting[end.fileno()] = end, bytearray()
                    all.register(end, select.EPOLLIN | kind)
                elif not echo_some(ends[fd], waiting[fd]):
                    all.unregister(fd)
                    ends.pop(fd).close()
                    left -= 1
                else:
                    interest = select.EPOLLOUT if waiting[fd] else select.EPOLLIN
                    all.modify(fd, interest | kind)
    print("served", flush=True)


def choose(port, connections, name):
    """The same with select or poll: interest in writing is there while octets wait for it."""
    waiting, left = {}, connections
    with (socket.create_server(("127.0.0.1", port), backlog=128) as listener,
          getattr(selectors, name)() as all):
        print("ready", flush=True)
        all.register(listener, selectors.EVENT_READ)
        while left:
            for key, _ in all.select():
                end = key.fileobj
                if end is listener:
                    end = listener.accept()[0]
                    end.setblocking(False)
                    waiting[end] = bytearray()
                    all.register(end, selectors.EVENT_READ)
                elif not echo_some(end, waiting[end]):
                    all.unregister(end)
                    end.close()
                    left -= 1
                else:
                    both = selectors.EVENT_READ | selectors.EVENT_WRITE
                    all.modify(end, both if waiting[end] else selectors.EVENT_READ)
    print("served", flush=True)


def serve_tasks(port, connections):
    """A loop of asyncio that waits in select."""
    async def run():
        done = asyncio.Semaphore(0)

        async def serve_one(reader, writer):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.close()
            done.release()

        async with await asyncio.start_server(serve_one, "127.0.0.1", port, backlog=128):
            print("ready", flush=True)
            for _ in range(connections):
                await done.acquire()

    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(run())
    print("served", flush=True)


def crowd(port, connections):
    """A connection is one thread's from the report to the next call of modify."""
    ends, waiting, busy, left = {}, {}, set(), [connections]

    def serve_some(all):
        while left[0]:
            for fd, _ in all.poll(0.05):
                assert fd not in busy, fd
                busy.add(fd)
                goes_on = echo_some(ends[fd], waiting[fd])
                time.sleep(0.001)
                busy.remove(fd)
                if goes_on:
                    interest = select.EPOLLOUT if waiting[fd] else select.EPOLLIN
                    all.modify(fd, interest | select.EPOLLONESHOT)
                else:
                    all.unregister(fd)
                    left[0] -= 1

    threading.excepthook = lambda error: (print(error, flush=True), os._exit(1))
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener, select.epoll() as all:
        print("ready", flush=True)
        threads = [threading.Thread(target=serve_some, args=[all]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(connections):
            end = listener.accept()[0]
            end.setblocking(False)
            ends[end.fileno()], waiting[end.fileno()] = end, bytearray()
            all.register(end, select.EPOLLIN | select.EPOLLONESHOT)
        for thread in threads:
            thread.join()
    print("served", flush=True)


def duplex(port, octets, begin):
    end = socket.create_connection(("127.0.0.1", port))
    trips(end, 0, FEW)
    wait_for(begin)
    trips(end, FEW, FEW)
    data = random.Random(octets).randbytes(octets)
    sender = threading.Thread(target=end.sendall, args=[data])
    sender.start()
    assert receive(end, octets) == data
    sender.join()
    print("done", flush=True)


def herd(port, octets, ways):
    """Each octet is received by one thread, and each thread ends at the end of the stream."""
    end = accept(port)
    # The peer's first messages.
    for _ in range(FEW):
        end.sendall(receive(end, OCTETS))
    counts = [[0] * 256 for _ in range(ways)]

    def by_poll():
        polled = select.poll()
        polled.register(end, select.POLLIN)
        polled.poll()

    def by_set():
        with select.epoll() as events:
            events.register(end, select.EPOLLIN)
            while True:
                events.poll()
                yield

    def take(counts, wait, flags, most):
        rng = random.Random(most)
        while True:
            wait()
            try:
                data = end.recv(rng.randrange(1, most), flags)
            except BlockingIOError:
                continue
            if not data:
                return
            for value in data:
                counts[value] += 1

    set_of_one = by_set()
    calls = [(lambda: None, 0), (lambda: None, 0), (lambda: None, 0),
             (by_poll, socket.MSG_DONTWAIT),
             (lambda: select.select([end], [], []), socket.MSG_DONTWAIT),
             (lambda: next(set_of_one), socket.MSG_DONTWAIT)]
    threads = [threading.Thread(target=take, args=[counts[number], *way, 3000])
               for number, way in enumerate(calls[:ways])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sums = [sum(column) for column in zip(*counts)]
    assert sums == counts_of(octets), sums
    assert all(sum(row) for row in counts), [sum(row) for row in counts]
    print("each has some", flush=True)


def counts_of(octets):
    counts = [0] * 256
    for data in pieces(octets):
        for value in data:
            counts[value] += 1
    return counts


def pieces(octets):
    rng = random.Random(octets)
    while octets > 0:
        length = min(octets, rng.choice([1, 10, 100, 1000, 30_000]))
        octets -= length
        yield rng.randbytes(length)


def feed(port, octets, begin):
    end = socket.create_connection(("127.0.0.1", port))
    trips(end, 0, FEW)
    wait_for(begin)
    rng = random.Random(7)
    for data in pieces(octets):
        end.sendall(data)
        if rng.randrange(4) == 0:
            time.sleep(rng.choice([0, 0.0005, 0.002]))
    end.shutdown(socket.SHUT_WR)
    assert end.recv(1) == b""
    print("done", flush=True)


def echo_some(end, waiting):
    """False at the end of the stream."""
    try:
        while True:
            while waiting:
                del waiting[:end.send(waiting)]
            data = end.recv(1 << 16)
            if not data:
                return False
            waiting += data
    except BlockingIOError:
        return True


def visit(port, connections, count, begin):
    ends = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    for end in ends:
        trips(end, 0, FEW)
    wait_for(begin)
    rng = random.Random(connections)
    with select.epoll() as all:
        sent = {}
        for end in ends:
            all.register(end, 0)
            end.setblocking(False)
        for _ in range(count):
            for end in ends:
                length = rng.choice([1, 100, 5000, 300_000])
                sent[end.fileno()] = [end, rng.randbytes(length), 0, bytearray()]
                all.modify(end, select.EPOLLIN | select.EPOLLOUT)
            while sent:
                for fd, events in all.poll():
                    if exchange(sent[fd], events):
                        del sent[fd]
                        all.modify(fd, 0)
                    elif sent[fd][2] == len(sent[fd][1]):
                        all.modify(fd, select.EPOLLIN)
    print("done", flush=True)


def exchange(state, events):
    """Sends and receives what can be; whether the whole message has come back."""
    end, data, done, got = state
    if events & select.EPOLLOUT:
        try:
            state[2] += end.send(data[done:])
        except BlockingIOError:
            pass
    if events & select.EPOLLIN:
        got += end.recv(1 << 16)
    assert data.startswith(got) if len(got) < 200 else data[:len(got)] == got
    return len(got) == len(data)


def inherited(fd, begin=None):
    """Begins at the end of a pipe, if there is one."""
    if begin:
        os.read(begin, 1)
    trips(socket.socket(fileno=fd), 8000, 50)


ALL = [change, reasons, serve, events, choose, serve_tasks, crowd, herd, feed, duplex, visit,
       spawning, branch, stages, keys, inherited, echo, ping, once, hang_up, drain, pour]
if __name__ == "__main__":
    words = [int(word) if word.isdigit() else word for word in sys.argv[2:]]
    {function.__name__: function for function in ALL}[sys.argv[1]](*words)
