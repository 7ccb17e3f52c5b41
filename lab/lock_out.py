#!/usr/bin/python3
"""An attack on a listener: lock_out.py KIND PLACE. Holds as many idle connections as it can, and opens more, until it is
ended. Then it prints how many it has opened."""

import pathlib
import resource
import signal
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

HELD_MAX = 3000
DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"


def tcp(place):
    return socket.create_connection(("127.0.0.1", int(place)), timeout=2)


def unix(place, kind):
    connection = socket.socket(socket.AF_UNIX, kind)
    connection.settimeout(2)
    connection.connect(place)
    return connection


def half_request(place):
    connection = tcp(place)
    connection.sendall(b"GET /v1/clients HTTP/1.1\r\nHost: a\r\nX-Slow: ")
    return connection


def discovery(place):
    from nvme_host import Queue
    host = f"nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-{time.monotonic_ns() & 0xffffffffffff:012x}"
    return Queue(int(place), host, subsystem=DISCOVERY, keep_alive_ms=0xffffffff).socket


KINDS = {
    "discovery": discovery,
    "nbd": lambda place: unix(place, socket.SOCK_STREAM),
    "programs": lambda place: unix(place, socket.SOCK_SEQPACKET),
    "http": half_request,
    "ring": lambda place: unix(place, socket.SOCK_SEQPACKET),
    "resp": lambda place: unix(place, socket.SOCK_STREAM),
}


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    attack, place = KINDS[sys.argv[1]], sys.argv[2]
    held, opened, refused = [], 0, 0
    try:
        while True:
            try:
                held.append(attack(place))
                opened += 1
            except (OSError, ValueError):
                refused += 1
                time.sleep(0.01)
            if len(held) > HELD_MAX:
                held.pop(0).close()
    finally:
        print(opened, refused, flush=True)


main()
