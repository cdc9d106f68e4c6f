"""Ends of a TCP connection that has rings before any octet: `receive PORT BEGIN` receives 64 octets
when there is the file BEGIN, from `send PORT BEGIN`, which sends them when there is that."""

import os
import socket
import sys
import time

OCTETS = 64


def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.01)


def receive(port, begin):
    with socket.create_server(("127.0.0.1", port)) as listener:
        print("ready", flush=True)
        end = listener.accept()[0]
    wait_for(begin)
    print("receives", flush=True)
    print("got", end.recv(OCTETS, socket.MSG_WAITALL).count(b"x"), flush=True)


def send(port, begin):
    end = socket.create_connection(("127.0.0.1", port))
    wait_for(begin)
    end.sendall(b"x" * OCTETS)
    end.recv(1)


{"receive": receive, "send": send}[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
