"""Starts memcached or Redis, fills it, and asks for values at random, each of which must be the one that was stored:
servers.py memcached|redis KEYS REQUESTS

It prints how many values came, and ends the server."""

import os
import random
import socket
import subprocess
import sys
import time

VALUE_BYTES = 1000
# Keys of one request.
KEYS_AT_ONCE = 32


def value(key):
    # Hexadecimal digits: LZ4 hardly packs them, entropy coding would halve them.
    half = random.Random(key).randbytes(VALUE_BYTES // 4).hex()
    return (half + "0123456789" * (VALUE_BYTES // 20)).encode()


def memcached(path):
    user = ["-u", "root"] if os.getuid() == 0 else []
    return ["memcached", "-m", "8192", "-t", "1", "-s", path, *user]


def redis(path):
    return ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--logfile", "redis.log"]


def store(kind, key):
    if kind == "memcached":
        return b"set %d 0 0 %d\r\n%s\r\n" % (key, VALUE_BYTES, value(key)), b"STORED\r\n"
    return b"SET %d %s\r\n" % (key, value(key)), b"+OK\r\n"


def request(kind, keys):
    numbers = b" ".join(b"%d" % key for key in keys)
    if kind == "memcached":
        answers = b"".join(b"VALUE %d 0 %d\r\n%s\r\n" % (key, VALUE_BYTES, value(key)) for key in keys)
        return b"get %s\r\n" % numbers, answers + b"END\r\n"
    answers = b"".join(b"$%d\r\n%s\r\n" % (VALUE_BYTES, value(key)) for key in keys)
    return b"MGET %s\r\n" % numbers, b"*%d\r\n%s" % (len(keys), answers)


def ask(server, pairs):
    """Sends requests in one piece, and compares their answers."""
    server.sendall(b"".join(line for line, _ in pairs))
    expected = b"".join(answer for _, answer in pairs)
    answer = bytearray()
    while len(answer) < len(expected):
        part = server.recv(1 << 20)
        if not part:
            sys.exit("the server closed the connection")
        answer += part
    if answer != expected:
        sys.exit("the server answered something else")


def connect(path, process):
    deadline = time.monotonic() + 60
    while True:
        server = socket.socket(socket.AF_UNIX)
        server.settimeout(300)
        try:
            server.connect(path)
            return server
        except OSError as error:
            server.close()
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"no connection to the server: {error}")
            time.sleep(0.01)


def main():
    kind, keys, requests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    path = f"{kind}.socket"
    process = subprocess.Popen({"memcached": memcached, "redis": redis}[kind](path), stdout=subprocess.DEVNULL)
    try:
        server = connect(path, process)
        for first in range(0, keys, 64):
            ask(server, [store(kind, key) for key in range(first, min(first + 64, keys))])
        draw = random.Random(1)
        for _ in range(requests // KEYS_AT_ONCE):
            ask(server, [request(kind, [draw.randrange(keys) for _ in range(KEYS_AT_ONCE)])])
        print(kind, keys, requests // KEYS_AT_ONCE * KEYS_AT_ONCE)
    finally:
        process.terminate()
        process.wait(60)
        if os.path.exists(path):
            os.remove(path)


main()
