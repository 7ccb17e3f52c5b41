"""The clients of lab/long/day: one thread for each kind, which connects, works and disconnects again and again, and
compares each value that it gets with those that it has put. What they know outlasts connections and daemons."""

import http.client
import random
import socket
import ssl
import struct
import subprocess
import threading
import time
import traceback
import zlib

import lab
from daemon import Http
from store_disk import Nbd
from valkey import Client, Failed

KEYS = 48
# Operations of a connection.
OPERATIONS = 6
NBD_BLOCKS = 64


class Wrong(Exception):
    """A value that nobody put."""


class World:
    """What the threads share. The epoch is odd while the test kills the daemon or renews its keys: an error of a connection
    that has seen such a time proves nothing."""

    def __init__(self):
        self.epoch = 0
        self.stop = threading.Event()
        self.failures = []

    def __enter__(self):
        self.epoch += 1

    def __exit__(self, *_):
        self.epoch += 1

    def quiet_since(self, began):
        return began % 2 == 0 and self.epoch == began

    def fail(self, line):
        self.failures.append(line)
        self.stop.set()


class Values:
    """Keys with the versions that each may have; 0 is no value."""

    def __init__(self, name):
        self.name, self.last, self.known = name, 0, {key: {0} for key in range(KEYS)}

    def content(self, key, version):
        if version == 0:
            return None
        return lab.value_of(f"{self.name} {key}", version, 100 + zlib.crc32(b"%d" % version) % 20_000)

    def put(self, key, put, refused_leaves_none=True):
        """`put` says whether the value was taken."""
        self.last += 1
        before = self.known[key]
        self.known[key] = before | {self.last, 0}
        if put(self.content(key, self.last)):
            self.known[key] = {self.last}
        else:
            self.known[key] = {0} if refused_leaves_none else before | {0}

    def check(self, key, got):
        for version in self.known[key]:
            if got == self.content(key, version):
                self.known[key] = {version}
                return
        shown = None if got is None else f"{len(got)} bytes, {got[:40]!r}"
        raise Wrong(f"{self.name}: key {key} has {shown}, not one of the versions {sorted(self.known[key])}")

    def delete(self, key, delete):
        self.known[key] = self.known[key] | {0}
        delete()
        self.known[key] = {0}

    def work(self, put, get, delete, **how):
        for _ in range(OPERATIONS):
            key, what = random.randrange(KEYS), random.random()
            if what < 0.4:
                self.put(key, lambda value, key=key: put(f"key {key}", value), **how)
            elif what < 0.95:
                self.check(key, get(f"key {key}"))
            else:
                self.delete(key, lambda key=key: delete(f"key {key}"))

    def check_all(self, get):
        for key in range(KEYS):
            self.check(key, get(f"key {key}"))


class Kind(threading.Thread):
    """Connects every `pace_s` seconds until the day ends; then `verify` reads all that is known."""

    def __init__(self, name, world, place, pace_s):
        super().__init__(name=name, daemon=True)
        self.world, self.place, self.pace_s = world, place, pace_s
        self.connections = self.excused = 0

    def connection(self):
        raise NotImplementedError

    def prepare(self):
        """Makes what has no room when others have filled the store."""

    def verify(self):
        """Reads all values that are known."""

    def run(self):
        due = time.monotonic() + random.random() * self.pace_s
        while not self.world.stop.wait(max(0, due - time.monotonic())):
            due += self.pace_s
            began = self.world.epoch
            try:
                self.connection()
            except Wrong as wrong:
                self.world.fail(str(wrong))
            except (Exception, SystemExit) as error:
                if self.world.quiet_since(began):
                    self.world.fail(f"{self.name}: {type(error).__name__}: {error}\n{traceback.format_exc()}")
                self.excused += 1
            self.connections += 1


class Cache(Kind):
    """The Python package, over the ring, NVMe/TCP, or NVMe/TCP in TLS: another cache by turns."""

    def __init__(self, name, world, place, pace_s, url):
        super().__init__(name, world, place, pace_s)
        self.url = url
        self.values = [Values(f"{name} {number}") for number in range(3)]

    def open(self, number):
        import spillway

        return spillway.open(self.url, name=f"{self.name} {number}", timeout_s=30)

    def prepare(self):
        for number in range(len(self.values)):
            self.open(number).close()

    def connection(self):
        number = random.randrange(len(self.values))
        with self.open(number) as cache:
            self.values[number].work(cache.put, cache.get, cache.delete)

    def verify(self):
        for number, values in enumerate(self.values):
            with self.open(number) as cache:
                values.check_all(cache.get)


class Resident(Cache):
    """Keeps its connection until the daemon ends it."""

    cache = None

    def connection(self):
        self.cache = self.cache or self.open(0)
        try:
            self.values[0].work(self.cache.put, self.cache.get, self.cache.delete)
        except Exception:
            self.cache.close()
            self.cache = None
            # It was opened in another epoch than it is used in.
            if self.opened == self.world.epoch:
                raise
            self.excused += 1

    def open(self, number):
        self.opened = self.world.epoch
        return super().open(number)


class RespClient(Client):
    """One that may meet the end of the daemon."""

    def __init__(self, place):
        super().__init__(place)
        self.socket.settimeout(30)

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("the daemon closed the connection")
        return line[:-2]

    def exactly(self, length):
        data = self.file.read(length + 2)
        if len(data) != length + 2:
            raise EOFError("the daemon closed the connection")
        return data[:-2]

    def set(self, key, value):
        answer = self.attempt("SET", key, value)
        if isinstance(answer, Failed) and not str(answer).startswith("OOM"):
            raise OSError(f"SET: {answer}")
        return answer == b"OK"

    def get(self, key):
        return self.wanted("GET", key)

    def delete(self, key):
        return self.wanted("DEL", key)

    def wanted(self, *parts):
        answer = self.attempt(*parts)
        if isinstance(answer, Failed):
            raise OSError(f"{parts[0]}: {answer}")
        return answer


class Resp(Kind):
    """RESP: at the Unix socket, or with a password over TCP."""

    def __init__(self, name, world, place, pace_s, address, password=None):
        super().__init__(name, world, place, pace_s)
        self.address, self.password, self.values = address, password, Values(name)

    def open(self):
        client = RespClient(self.address)
        if self.password:
            client.wanted("AUTH", "cache", self.password.read_text().strip())
        return client

    def connection(self):
        client = self.open()
        self.values.work(client.set, client.get, client.delete, refused_leaves_none=False)
        # It expires by itself. The daemon may refuse it.
        client.attempt("SET", f"short {self.connections}", b"value" * 100, "EX", 2)
        client.socket.close()

    def verify(self):
        client = self.open()
        self.values.check_all(client.get)
        client.socket.close()


class Disk(Kind):
    """NBD: each second connection says that it ends."""

    device = None

    def connection(self):
        if self.device is None:
            self.device = Nbd(self.place.nbd, "disk")
        else:
            self.device.connect()
        reconnects = self.device.reconnects
        for _ in range(OPERATIONS // 2):
            self.device.write(random.randrange(NBD_BLOCKS))
            self.device.read(random.randrange(NBD_BLOCKS))
        if self.connections % 2:
            self.device.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 2, 1, 0, 0))
        self.device.socket.close()
        if self.device.errors or self.device.reconnects != reconnects:
            raise ConnectionError(f"NBD: {self.device.errors} errors, {self.device.reconnects - reconnects} reconnects")

    def verify(self):
        self.device.connect()
        if self.device.read_all(NBD_BLOCKS):
            raise Wrong("a block of the disk can't be read")
        self.device.socket.close()


class Operator(Kind):
    """HTTP, at the Unix socket and over TCP with the token that may only read."""

    PATHS = ("/v1/version", "/v1/clients", "/v1/pools", "/v1/history", "/metrics", "/v1/policy", "/v1/health")

    def connection(self):
        connection, headers = Http(self.place.api), {}
        if self.connections % 2:
            connection = http.client.HTTPConnection("127.0.0.1", self.place.api_port, timeout=30)
            headers = {"Authorization": f"Bearer {self.place.read_token.read_text().strip()}"}
        for _ in range(2):
            path = random.choice(self.PATHS)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            if answer.status != 200 or not answer.read():
                raise OSError(f"GET {path}: {answer.status}")
        connection.close()


class Program(Kind):
    """Programs in less memory than they need, which check all of it: each second one on the daemon as a blade."""

    def connection(self):
        line = [lab.SPILLWAY, "run", "--local", "4M", "--register", self.place.programs]
        if self.connections % 2:
            line += ["--store", "1M", "--blade", f"ring:{self.place.ring}"]
        done = subprocess.run([*map(str, line), "--", lab.BUILT / "hold", "8", "2"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120)
        if done.returncode or done.stdout != "ready\nok\n":
            raise OSError(f"a program ended with {done.returncode}: {done.stdout} {done.stderr}")


# Some policies leave nothing to a newcomer.
VISIT = """
import os, sys
import spillway
try:
    with spillway.open(sys.argv[1]) as cache:
        values = {f"v{n}": os.urandom(5000) for n in range(4)}
        for key, value in values.items():
            taken = cache.put(key, value)
            assert cache.get(key) == (value if taken else None), "another value came back"
except spillway.FullError:
    pass
"""


class Visitor(Kind):
    """A user whom the configuration does not name, each time another: the daemon forgets him and his values."""

    def connection(self):
        uid = 30_000 + self.connections % 500
        done = subprocess.run(["/usr/bin/python3", "-c", VISIT, f"ring:{self.place.ring}"], user=uid, group=uid, extra_groups=[],
                              env={"PYTHONPATH": self.place.package}, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise OSError(f"user {uid}: {done.stderr[-500:]}")


class Stranger(Kind):
    """Connections that are dropped in the middle of what they say."""

    def connection(self):
        place = self.place
        where, first = random.choice((
            (place.nbd, b"\0\0\0\3IHAVE"),
            (place.resp, b"*3\r\n$3\r\nSET\r\n$1\r\n"),
            (place.api, b"GET /v1/cli"),
            (("127.0.0.1", place.api_port), b"POST /v1/clients HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"),
            (("127.0.0.1", place.nvme_port), struct.pack("<BBBBI", 0, 0, 128, 0, 128) + bytes(60)),
            (("127.0.0.1", place.resp_port), b"*2\r\n$4\r\nAUTH\r\n$5\r\nwrong\r\n"),
            (("127.0.0.1", place.tls_port), b"\x16\x03\x01\x02\x00\x01"),
            (("127.0.0.1", place.tls_port), None),
            (place.ring, b"spillrng"),
            (place.programs, b"no message"),
        ))
        sort = socket.SOCK_SEQPACKET if where in (place.ring, place.programs) else socket.SOCK_STREAM
        connection = socket.socket(socket.AF_INET if isinstance(where, tuple) else socket.AF_UNIX, sort)
        connection.settimeout(10)
        connection.connect(where if isinstance(where, tuple) else str(where))
        try:
            if first is None:
                # A client of TLS without a certificate.
                context = ssl.create_default_context(cafile=place.client / "ca.pem")
                connection = context.wrap_socket(connection, server_hostname="localhost")
                connection.recv(1)
            elif random.random() < 0.8:
                connection.sendall(first)
                time.sleep(random.random() * 0.1)
        except OSError:
            pass
        connection.close()


def kinds(world, place, seconds, connections):
    """The threads, which make so many connections together."""
    client = place.client
    tls = f"certificate={client}/cert.pem&key={client}/key.pem&authority={client}/ca.pem"
    nvme = f"nvme+tcp://127.0.0.1:{place.nvme_port}?host-nqn={place.nqn}&secret-file={client}/secret"
    made = (
        (0.20, Cache, "ring", f"ring:{place.ring}"),
        (0.12, Cache, "nvme", nvme),
        (0.08, Cache, "tls", f"nvme+tls://localhost:{place.tls_port}?{tls}"),
        (0.15, Resp, "resp", place.resp),
        (0.11, Resp, "resp-tcp", ("127.0.0.1", place.resp_port), client / "password"),
        (0.10, Disk, "nbd"),
        (0.07, Operator, "http"),
        (0.02, Program, "program"),
        (0.03, Visitor, "visitor"),
        (0.12, Stranger, "stranger"),
    )
    threads = [kind(name, world, place, seconds / connections / share, *more) for share, kind, name, *more in made]
    # It makes hardly any connection, and always has one.
    threads.append(Resident("resident", world, place, min(5, seconds / 100), f"ring:{place.ring}"))
    return threads
