"""A server that forks: `forks.py PORT WAY...` accepts a connection for each WAY, and echoes in the
process that it says, once the others have done what it says."""

import os
import select
import signal
import socket
import sys

OCTETS = 64


def echo(end):
    with end:
        while data := end.recv(OCTETS, socket.MSG_WAITALL):
            end.sendall(data)


class Gate:
    """Processes that were forked since it was made wait until one opens it."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()

    def open(self):
        os.write(self.write_end, b"1" * 8)

    def wait(self):
        os.read(self.read_end, 1)


def fork(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return child


def ended(*children):
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


def plain(end, gate):
    """The parent closes the connection at once."""
    def work():
        gate.wait()
        echo(end)
    child = fork(work)
    end.close()
    gate.open()
    ended(child)


def quick(end, _):
    """The child does not wait until its parent has closed the connection."""
    child = fork(lambda: echo(end))
    end.close()
    ended(child)


def forking_again(end, gate):
    """A child of the child has the connection, until the end."""
    def work():
        again = fork(signal.pause)
        gate.wait()
        echo(end)
        os.kill(again, signal.SIGKILL)
        os.waitpid(again, 0)
    child = fork(work)
    end.close()
    gate.open()
    ended(child)


def forking_later(end, gate):
    """The child has rings when it forks, and its child closes the connection."""
    def work():
        gate.wait()
        for _ in range(60):
            end.sendall(end.recv(OCTETS, socket.MSG_WAITALL))
        later, done = Gate(), Gate()
        child = fork(lambda: (end.close(), later.open(), done.wait()))
        later.wait()
        echo(end)
        done.open()
        ended(child)
    child = fork(work)
    end.close()
    gate.open()
    ended(child)


def copied(end, gate):
    """The parent has another descriptor."""
    with end.dup():
        plain(end, gate)


def watched(end, gate):
    """The connection is a member of a set that both processes have."""
    with select.epoll() as events:
        events.register(end, select.EPOLLIN)
        plain(end, gate)


def kept(end, gate):
    """The parent does not close the connection until the child has used it."""
    child = fork(lambda: echo(end))
    ended(child)
    end.close()


def twins(end, gate):
    """Two children have the connection, one of which does not use it."""
    other = fork(signal.pause)
    plain(end, gate)
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)


def given_back(end, gate):
    """The child closes the connection, and lives on."""
    done = Gate()
    child = fork(lambda: (end.close(), gate.open(), done.wait()))
    gate.wait()
    echo(end)
    done.open()
    ended(child)


def killed(end, gate):
    """The child ends with the connection, and the parent goes on."""
    child = fork(lambda: (gate.open(), signal.pause()))
    gate.wait()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    echo(end)


def many(end, gate):
    """Children that have ended, and have shut connections down, leave nothing in their parent."""
    before = len(os.listdir("/proc/self/fd")), maps()
    for _ in range(50):
        one, other = connection()
        child = fork(lambda: other.shutdown(socket.SHUT_WR))
        ended(child)
        one.close()
        other.close()
    after = len(os.listdir("/proc/self/fd")), maps()
    assert after[0] <= before[0] + 5 and after[1] <= before[1] + 25, (before, after)
    echo(end)


def maps():
    with open("/proc/self/maps") as lines:
        return len(list(lines))


def connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


WAYS = [plain, quick, forking_again, forking_later, copied, watched, kept, twins, given_back,
        killed, many]
if __name__ == "__main__":
    ways = {function.__name__: function for function in WAYS}
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
        print("ready", flush=True)
        for way in sys.argv[2:]:
            ways[way](listener.accept()[0], Gate())
    print("served", flush=True)
