"""Sets up and removes the memcached study's sides: a link to a namespace, a blade, and memcached with all its memory
local, on the blade, or on zram."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import lab
from daemon import Daemon

LOAD = pathlib.Path(lab.SPILLWAY).with_name("spillway-load")
MIB = 1 << 20
PORT = 11211
# Of the sixth, the part that is the store inside the run; pages on their way to the blade lie there.
STORE_PART = 8
# memcached's default. Each thread that waits for a page keeps its connections waiting.
THREADS = 4
GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
PAGE_CLUSTER = pathlib.Path("/proc/sys/vm/page-cluster")
ZRAM_CONTROL = pathlib.Path("/sys/class/zram-control")
SAMPLE_S = 0.2
SHAPE = "tbf rate 1gbit burst 128kb latency 50ms"


def run(line):
    """Runs a command of the system that must succeed; its first line of complaint otherwise."""
    done = subprocess.run(line.split(), capture_output=True, text=True, timeout=60)
    if done.returncode:
        lab.fail(f"{line}: {(done.stderr.splitlines() or ['no message'])[0]}")
    return done.stdout


@contextlib.contextmanager
def held():
    """Signals that would end this process wait meanwhile: between making something and noting how it is taken away again."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Link:
    """A namespace for the server, at the other end of a veth pair; both ends are shaped to 1 Gbit/s if `shaped`."""

    def __init__(self, shaped):
        number = os.getpid()
        self.name, ends = f"blade-study-{number}", (f"bs{number}a", f"bs{number}b")
        # A part of the range that is set aside for benchmarks.
        network = f"198.18.{number % 254 + 1}"
        self.address = f"{network}.2"
        self.undo = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            with held():
                run(f"ip netns add {self.name}")
                undo.callback(run, f"ip netns delete {self.name}")
                run(f"ip link add {ends[0]} type veth peer name {ends[1]} netns {self.name}")
                # The pair would go with the namespace only when its last process has.
                undo.callback(run, f"ip link delete {ends[0]}")
            inside = f"ip -n {self.name}"
            for command, end, host in ("ip", ends[0], 1), (inside, ends[1], 2):
                run(f"{command} address add {network}.{host}/30 dev {end}")
                run(f"{command} link set {end} up")
            run(f"{inside} link set lo up")
            if shaped:
                run(f"tc qdisc add dev {ends[0]} root {SHAPE}")
                run(f"tc -n {self.name} qdisc add dev {ends[1]} root {SHAPE}")
            self.undo = undo.pop_all()

    def inside(self, line):
        """The command line of a program that has the namespace's network. Not `ip netns exec`: that hides control groups."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *line]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.undo.close()


@contextlib.contextmanager
def zram_group(limit_bytes, swap_bytes):
    """A control group with this limit and swap on a zram device of its own; gives the group's folder."""
    with contextlib.ExitStack() as undo:
        with held():
            number = int((ZRAM_CONTROL / "hot_add").read_text())
            undo.callback((ZRAM_CONTROL / "hot_remove").write_text, str(number))
        device, folder = f"/dev/zram{number}", pathlib.Path(f"/sys/block/zram{number}")
        (folder / "comp_algorithm").write_text("lz4")
        (folder / "disksize").write_text(str(swap_bytes))
        undo.callback((folder / "reset").write_text, "1")
        run(f"mkswap {device}")
        with held():
            run(f"swapon -p 100 {device}")
            undo.callback(run, f"swapoff {device}")
        # Reading neighbours ahead does not pay for accesses in no order.
        before = PAGE_CLUSTER.read_text()
        undo.callback(PAGE_CLUSTER.write_text, before)
        PAGE_CLUSTER.write_text("0")
        group = GROUPS / f"blade-study-{os.getpid()}"
        with held():
            group.mkdir()
            undo.callback(remove_group, group)
        (group / "memory.swappiness").write_text("100")
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield group


def remove_group(group):
    """A group is busy until the kernel has buried its last process."""

    def removed():
        try:
            group.rmdir()
            return True
        except OSError:
            return False

    lab.until(removed, f"{group} to be free", 10)


class Killed(Exception):
    """The kernel killed the server for want of memory in its control group, although there was swap."""


class Server:
    """A memcached that answers. `prefix` is what it runs under."""

    def __init__(self, size_mib, where, prefix=()):
        line = [*prefix, "memcached", "-u", "root", "-m", size_mib, "-t", THREADS, *where]
        self.log = lab.WORK / "memcached.log"
        with open(self.log, "w") as log:
            self.process = lab.start(line, stderr=log)

    def kill(self):
        """Ends it at once; asked to end, it takes a second."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def must_run(self):
        if self.process.poll() is not None:
            lab.fail(f"memcached ended: {self.log.read_text().strip()[-300:]}")


class PlainSide:
    """All memory local."""

    name = "all-local"

    def __init__(self, plan, link):
        self.plan, self.link, self.undo = plan, link, contextlib.ExitStack()
        self.where = ["-l", link.address, "-p", PORT] if link else ["-s", lab.WORK / "memcached.socket"]
        self.server = f"{link.address}:{PORT}" if link else str(lab.WORK / "memcached.socket")

    def prefix(self):
        return self.link.inside([]) if self.link else []

    def misses(self):
        """Pages that came from far, so far; none when there is nobody to ask."""
        return 0

    def begin(self):
        self.memcached = Server(self.plan["memcached_mib"], self.where, self.prefix())
        self.undo.callback(self.memcached.kill)
        lab.until(lambda: self.memcached.must_run() or answers(self.server), "memcached", 30)

    def memory(self):
        """Bytes that the side takes of this machine's memory, the blade's or zram's apart."""
        pss = pathlib.Path(f"/proc/{self.memcached.process.pid}/smaps_rollup").read_text()
        return int(re.search(r"^Pss:\s+(\d+) kB", pss, re.M)[1]) << 10

    def end(self):
        """Ends the server; what else there is to say of the run."""
        self.memcached.kill()
        return {}

    def was_killed(self):
        """Whether the kernel may kill it, and did."""
        return False

    def close(self):
        """Takes away what was set up, whatever happened."""
        self.undo.close()


class SpillwaySide(PlainSide):
    """A sixth local, store included; the rest on a blade, over the ring."""

    name = "spillway"

    def begin(self):
        # Programs register to be counted; a limit that none of them reaches.
        settings = ["memory.programs=75%", "memory.policy=greedy", "memory.interval_ms=100", "process.keeper=false"]
        self.daemon = Daemon(f"blade-{time.monotonic_ns()}", *settings, capacity=f"{self.plan['blade_mib']}M")
        self.undo.callback(lab.end_with, self.daemon.process)
        self.stats = lab.WORK / "stats.json"
        super().begin()

    def prefix(self):
        store = self.plan["local_bytes"] // STORE_PART
        line = [lab.SPILLWAY, "run", "--local", self.plan["local_bytes"] - store, "--store", store, "--stats", self.stats,
                "--blade", f"ring:{self.daemon.dir}/spillway.sock", "--register", self.daemon.dir / "programs.sock", "--"]
        return self.link.inside(line)

    def misses(self):
        programs = [it for it in self.daemon.ask("GET", "/v1/clients")[1] if "program" in it["identity"]]
        return programs[0]["statistics"]["misses"] if programs else None

    def memory(self):
        return None

    def end(self):
        # A run that ends by itself writes its statistics.
        lab.end_with(self.memcached.process)
        stats = json.loads(self.stats.read_text())
        if stats["counters"]["lost_pages"] or stats["counters"]["corrupt_reads"] or not stats["counters"]["blade_reads"]:
            lab.fail(f"pages were lost, or none came from the blade: {stats['counters']}")
        return {"stats": stats, "memory_bytes": stats["peaks"]["tree_pss_bytes"]}


class ZramSide(PlainSide):
    """A control group with the same sixth; the rest on the kernel's zram."""

    name = "zram"

    def begin(self):
        self.group = self.undo.enter_context(zram_group(self.plan["local_bytes"], self.plan["blade_mib"] * MIB))
        super().begin()

    def prefix(self):
        join = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', self.group / "cgroup.procs"]
        return [*join, *self.link.inside([])]

    def misses(self):
        return int(re.search(r"^total_pgmajfault (\d+)", (self.group / "memory.stat").read_text(), re.M)[1])

    def was_killed(self):
        try:
            return self.memcached.process.wait(1) == -signal.SIGKILL
        except (AttributeError, subprocess.TimeoutExpired):
            return False

    def memory(self):
        return int((self.group / "memory.max_usage_in_bytes").read_text())

SIDES = [PlainSide, SpillwaySide, ZramSide]


def answers(server):
    """Whether memcached listens."""
    try:
        host, _, port = server.rpartition(":")
        connection = lab.socket.create_connection((host, int(port)), 1) if host else lab.Connection(server).socket
        connection.close()
        return True
    except OSError:
        return False


class Samples:
    """A side's page misses over time, read a few times a second."""

    def __init__(self, side):
        self.side, self.taken, self.over = side, [], threading.Event()
        self.thread = threading.Thread(target=self.take, daemon=True)
        self.thread.start()

    def take(self):
        while not self.over.wait(SAMPLE_S):
            if (misses := self.side.misses()) is not None:
                self.taken.append((time.time(), misses))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(30)

    def between(self, began_s, ended_s):
        """Misses a second in this time, between the first and the last sample in it."""
        inside = [it for it in self.taken if began_s <= it[0] <= ended_s]
        if len(inside) < 2:
            return None
        (first_s, first), (last_s, last) = inside[0], inside[-1]
        return (last - first) / (last_s - first_s)


def load(name, *arguments, seconds):
    """What `spillway-load NAME` measures. It ends within `seconds`."""
    output = lab.WORK / "load.json"
    output.unlink(missing_ok=True)
    process = lab.start([LOAD, name, *arguments, "--output", output], stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        lab.fail(f"spillway-load {name} did not end within {seconds} s")
    if process.returncode:
        lab.fail(f"spillway-load {name}: {' '.join(errors.partition('Stack backtrace')[0].split())}")
    return json.loads(output.read_text())


def measure(side, trace, seconds, rate):
    """One run of a side: fills its memcached, asks it, reads all values, ends it."""
    try:
        side.begin()
        options = ["--rate", rate] if rate else []
        with Samples(side) as samples:
            measured = load("study", "--server", side.server, *trace, "--seconds", seconds, *options, seconds=600 + 6 * seconds)
        memory = side.memory()
        for phase in measured["phases"]:
            phase["page_misses_per_second"] = samples.between(phase["began_s"], phase["ended_s"])
        return {"side": side.name, **measured, "memory_bytes": memory, **side.end()}
    except lab.Ended:
        raise
    except SystemExit as failure:
        if side.was_killed():
            raise Killed from failure
        raise
    finally:
        side.close()
