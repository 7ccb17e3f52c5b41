"""Helpers for the Python tests: paged processes, daemons, a small Redis client, checked values.

SPILLWAY and LAB_SIZE have the same meaning as in lab.sh.
"""

import atexit
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib

LAB = pathlib.Path(__file__).resolve().parent
SPILLWAY = os.environ.get("SPILLWAY", str(LAB.parent / "target/release/spillway"))
SPILLWAYD = str(pathlib.Path(SPILLWAY).with_name("spillwayd"))
PLAIN = SPILLWAY == "plain"
CI = os.environ.get("LAB_SIZE") == "ci"
BUILT = LAB / "cache/bin"
WORK = pathlib.Path(tempfile.mkdtemp(prefix="spillway-lab."))
STATS = WORK / "stats.json"
os.environ["LAB_WORK"] = str(WORK)
_started = []


@atexit.register
def _clean():
    # A daemon's keeper ends the daemon only on SIGTERM.
    for process in _started:
        if process.poll() is None:
            process.terminate()
    for process in _started:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(WORK, ignore_errors=True)


class Ended(SystemExit):
    """Somebody else ends this process; nothing is tried again."""


def _end(*_):
    # timeout(1) signals twice: the process, then its group. The second signal must not stop the cleanup.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Ended("FAILED: ended by SIGTERM")


# A time limit ends a test by SIGTERM; the test then still cleans up.
signal.signal(signal.SIGTERM, _end)


def fail(line):
    sys.exit(f"FAILED: {line}")


def by_size(full, ci):
    """Returns the size for LAB_SIZE."""
    return ci if CI else full


def command(local, *program, options=()):
    """Returns the command line that runs `program` paged within `local`."""
    if PLAIN:
        return [str(part) for part in program]
    return [SPILLWAY, "run", "--local", local, "--stats", str(STATS), *options, "--", *map(str, program)]


def start(line, **options):
    """Starts a process that ends when this test ends, or earlier."""
    options.setdefault("stdin", subprocess.DEVNULL)
    process = subprocess.Popen([str(part) for part in line], **options)
    _started.append(process)
    return process


def tool(name, *libraries):
    """Returns a program of lab/tools; builds it if its source is newer."""
    program, source = BUILT / name, LAB / f"tools/{name}.c"
    BUILT.mkdir(parents=True, exist_ok=True)
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["gcc", "-O2", "-o", program, source, *libraries], check=True)
    return program


def stat(name):
    """Returns a number of the last ended paged run; `name` is a path such as counters.fetches."""
    node = json.loads(STATS.read_text())
    for part in name.split("."):
        if part not in node:
            fail(f"the statistics have no {name}")
        node = node[part]
    return node


def went_far(pages):
    """Fails unless at least `pages` pages left local memory."""
    if PLAIN:
        return
    evictions = stat("counters.evictions")
    print(f"evictions {evictions}, fetches {stat('counters.fetches')}")
    if evictions < pages:
        fail(f"only {evictions} pages went far, expected {pages}")


def until(condition, what, seconds=60):
    """Waits until `condition` returns a true value, and returns it."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > end:
            fail(f"waited {seconds} s for {what}")
        time.sleep(0.02)
    return answer


def stop(pid):
    """Stops a process. Waits for all its threads, because one that still runs could answer a request."""
    os.kill(pid, signal.SIGSTOP)
    tasks = list(pathlib.Path(f"/proc/{pid}/task").glob("*/stat"))
    until(lambda: all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks), "all threads to stop", 10)


def ends(process, seconds=60):
    """Returns the exit status of a process that must end by itself."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        fail(f"{process.args} did not end within {seconds} s")


def paged_resident_kib(pid):
    """Returns the resident KiB of those mappings of a process that are registered with a userfaultfd."""
    total = resident = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line.startswith("Rss:"):
            resident = int(line.split()[1])
        elif line.startswith("VmFlags:") and " um" in line:
            total += resident
    return total


def memory_kib(pid, name):
    """Returns the memory of a process, now (VmRSS) or at its peak (VmHWM), in KiB."""
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return fail(f"process {pid} has no {name}")


def tasks():
    """Returns every process that is not a zombie: {pid: (parent, command line)}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat_line = (entry / "stat").read_text()
                state, parent = stat_line.rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    arguments = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = (int(parent), arguments)
            except (FileNotFoundError, ProcessLookupError):
                pass
    return found


def preloaded():
    """Returns this test's processes that have the preload library mapped, whatever their parent is."""
    mark = f"LAB_WORK={WORK}".encode()
    found = set()
    for pid in tasks():
        process = pathlib.Path(f"/proc/{pid}")
        try:
            if mark in (process / "environ").read_bytes() and "libspillway_preload" in (process / "maps").read_text():
                found.add(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass
    return found


class Traces:
    """Records the files on the machine before a run, to check that nothing is left behind."""

    def __init__(self, *directories):
        self.directories = [pathlib.Path("/dev/shm"), *directories]
        self.files = self._files()

    def _files(self):
        found = {path for directory in self.directories for path in directory.rglob("*")}
        # Skips the files of a test that runs at the same time.
        return {path for path in found if not path.is_relative_to("/dev/shm") or "spillway-lab" not in path.parts[3]}

    def must_be_gone(self, when):
        until(lambda: not preloaded(), f"the tasks to end {when}", 10)
        left = self._files() - self.files
        if left:
            fail(f"{when}: left behind {sorted(map(str, left))}")


def hold(local, *arguments, options=(), **streams):
    """Starts tools/hold within `local`; returns it and its pid when it has filled its memory."""
    process = start(command(local, BUILT / "hold", *arguments, options=options),
                    stdout=subprocess.PIPE, text=True, **streams)
    if process.stdout.readline() != "ready\n":
        fail("hold did not get ready")
    return process, child_of(process)


def child_of(process):
    """Returns the pid of the program that a supervisor started; in a plain run, the process's own."""
    if PLAIN:
        return process.pid
    name = str(BUILT / "hold")
    mine = {pid for pid in preloaded() if name_of(pid) not in ("spillway-pager", "spillway-watch")}
    found = [pid for pid, (parent, line) in tasks().items() if pid in mine and line.startswith(name)]
    if len(found) != 1:
        fail(f"expected one program, found {found}")
    return found[0]


def pagers():
    """Returns the tasks that page a process: they share its memory, not its thread group."""
    return {pid for pid in preloaded() if name_of(pid) == "spillway-pager"}


def only(name):
    """Returns this test's one process with this name that has the preload library; None unless there is one."""
    found = [pid for pid in preloaded() if name_of(pid) == name]
    return found[0] if len(found) == 1 else None


def name_of(pid):
    """Returns a process's name, or None when it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def value_of(key, generation, length=4000):
    """Returns a distinct value for each key and generation; half is text, half does not compress."""
    seed = zlib.crc32(f"{key} {generation}".encode())
    words = (f"value {generation} of key {key} " * (length // 30 + 1)).encode()[: length // 2]
    return words + random.Random(seed).randbytes(length - len(words))


class Connection:
    """A connected socket, read by lines and by lengths: a Unix socket's path, or an address and a TCP port."""

    def __init__(self, place):
        if isinstance(place, tuple):
            self.socket = socket.create_connection(place)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(str(place))
        self.file = self.socket.makefile("rb")

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            fail("the server closed the connection")
        return line[:-2]

    def exactly(self, length):
        data = self.file.read(length + 2)
        if len(data) != length + 2:
            fail("the server closed the connection")
        return data[:-2]


class Redis(Connection):
    """A client with the part of RESP that the tests need."""

    def send(self, *parts):
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))

    def answer(self):
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            fail(f"redis says {rest.decode()}")
        if kind == b"$":
            return None if rest == b"-1" else self.exactly(int(rest))
        return int(rest) if kind == b":" else rest

    def ask(self, *parts):
        self.send(*parts)
        return self.answer()

    def info(self, name):
        for line in self.ask("INFO").decode().splitlines():
            if line.startswith(name + ":"):
                return line.split(":")[1].strip()
        return fail(f"redis has no {name}")

    def fill(self, count, generation):
        for key in range(count):
            self.ask("SET", f"key:{key}", value_of(key, generation))

    def verify(self, count, generation, when):
        for key in range(count):
            if self.ask("GET", f"key:{key}") != value_of(key, generation):
                fail(f"{when}: key {key} is wrong")


def connect(kind, path, seconds=30):
    """Connects to a server that is still starting."""

    def attempt():
        try:
            return kind(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    return until(attempt, f"a server at {path}", seconds)


def free_port():
    """Returns a free TCP port of the loopback interface. It is none that the kernel gives to outgoing connections, of which
    another test may make one before this port is used."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first // 2, first)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


class Blade:
    """A daemon for this test that serves a ring and NVMe/TCP."""

    def __init__(self, name="blade", capacity="512M", settings=(), config=None):
        self.folder = WORK / name
        self.folder.mkdir()
        self.config = config
        self.port = free_port()
        self.capacity = capacity
        self.settings = dict(settings)
        self.start()

    def start(self):
        settings = {
            "listen.dir": f'"{self.folder}"',
            "listen.nvme_tcp": f'"127.0.0.1:{self.port}"',
            "store.capacity": f'"{self.capacity}"',
            "process.keeper": "false",
            "unnamed.hosts": "true",
            **self.settings,
        }
        line = [SPILLWAYD, *(["--config", self.config] if self.config else [])]
        for name, value in settings.items():
            line += ["--set", f"{name}={value}"]
        self.process = start(line, stdout=open(self.folder / "log", "a"), stderr=subprocess.STDOUT)
        connect(lambda path: socket.socket(socket.AF_UNIX).connect(str(path)) or True, self.folder / "api.sock")
        until(self._listens, f"a daemon at port {self.port}")

    def _listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        except ConnectionRefusedError:
            return False

    def url(self, kind):
        return f"ring:{self.folder}/spillway.sock" if kind == "ring" else f"nvme+tcp://127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def pools(self):
        """Returns the number of pages in each pool."""
        line = [SPILLWAY, "pool", "list", "-o", "json", "--api", self.folder / "api.sock"]
        listed = json.loads(subprocess.run(list(map(str, line)), check=True, capture_output=True).stdout)
        return [pool["pages"] for pool in listed]

    def must_be_empty(self, when):
        until(lambda: not self.pools(), f"the blade to be empty {when}", 30)


def redis_server(name, *options):
    """Returns the command line of a Redis server for this test, and its socket."""
    path = WORK / f"{name}.sock"
    line = ["redis-server", "--port", 0, "--unixsocket", path, "--dir", WORK, "--save", "",
            "--dbfilename", f"{name}.rdb", "--appendonly", "no", "--enable-debug-command", "no",
            "--logfile", WORK / f"{name}.log", *options]
    return line, path


def end_with(process, sent=signal.SIGTERM, seconds=60):
    """Ends a server; fails unless it ends cleanly."""
    process.send_signal(sent)
    status = ends(process, seconds)
    if status not in (0, -sent):
        fail(f"{process.args} ended with {status}")
