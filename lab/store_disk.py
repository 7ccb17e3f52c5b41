"""Helpers for tests of `store.disk`: a small file system, verified loads, an NBD client, kills."""

import json
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import lab
from daemon import Daemon

PAGE = 4096
HOST = "nqn.2026-11.io.spillway:lab"


class FileSystem:
    """An ext4 of its own in a file, mounted as long as the test runs."""

    def __init__(self, megabytes):
        image, self.dir = lab.WORK / "image", lab.WORK / "disk"
        self.dir.mkdir()
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, self.dir], check=True)
        self.store = self.dir / "store"
        self.store.mkdir()

    def fill(self):
        """Leaves no room."""
        with open(self.dir / "filler", "wb") as file:
            at, step = 0, 1 << 30
            while step >= PAGE:
                try:
                    os.posix_fallocate(file.fileno(), at, step)
                    at += step
                except OSError:
                    step //= 2

    def make_room(self):
        (self.dir / "filler").unlink()

    def end(self):
        subprocess.run(["umount", self.dir], check=True)


class Nbd:
    """A client of one export, over the daemon's Unix socket: what it reads is compared with what it wrote."""

    def __init__(self, path, export):
        self.path, self.export = str(path), export.encode()
        # Blocks of 16 pages: the versions that may be there.
        self.versions = {}
        self.errors = self.reads = self.writes = self.reconnects = 0
        self.connect()

    def connect(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(self.path)
        self.receive(18)
        self.socket.sendall(struct.pack(">I", 3))
        # NBD_OPT_GO without questions.
        body = struct.pack(">I", len(self.export)) + self.export + struct.pack(">H", 0)
        self.socket.sendall(b"IHAVEOPT" + struct.pack(">II", 7, len(body)) + body)
        while True:
            _, _, reply, length = struct.unpack(">QIII", self.receive(20))
            self.receive(length)
            if reply == 1:
                return
            if reply >> 31:
                raise OSError(f"NBD says {reply:#x}")

    def receive(self, length):
        data = bytearray()
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            if not part:
                raise ConnectionError("the NBD connection has ended")
            data += part
        return bytes(data)

    def again(self):
        self.reconnects += 1
        end = time.monotonic() + 30
        while True:
            try:
                return self.connect()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def ask(self, kind, offset, length, data=b""):
        """The answer's data; none after an error of the device."""
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, kind, 1, offset, length) + data)
        _, error, _ = struct.unpack(">IIQ", self.receive(16))
        if error:
            return None
        return self.receive(length) if kind == 0 else b""

    @staticmethod
    def content(block, version):
        source = random.Random(block << 20 | version)
        return struct.pack("<QQ", block, version) + source.randbytes(16 * PAGE - 16)

    def write(self, block):
        known = self.versions.get(block, {0})
        version = max(known) + 1
        self.versions[block] = known | {version}
        try:
            if self.ask(1, block * 16 * PAGE, 16 * PAGE, self.content(block, version)) is None:
                # Some pages may be written.
                self.errors += 1
                self.versions[block] = known | {version, 0, -1}
                return
        except OSError:
            self.versions[block] |= {-1}
            return self.again()
        self.writes += 1
        self.versions[block] = {version}

    def read(self, block):
        try:
            data = self.ask(0, block * 16 * PAGE, 16 * PAGE)
        except OSError:
            return self.again()
        if data is None:
            self.errors += 1
            return
        self.reads += 1
        known = self.versions.get(block, {0})
        pages = range(0, 16 * PAGE, PAGE)
        # A write that was cut short may have changed any of the pages.
        rights = [self.content(block, version) if version > 0 else bytes(16 * PAGE) for version in known]
        if data not in rights and not (
            -1 in known and all(any(data[at:at + PAGE] == right[at:at + PAGE] for right in rights) for at in pages)
        ):
            lab.fail(f"NBD: block {block} has other bytes than any of the versions {known}")

    def load(self, blocks, stop):
        """Writes and reads until `stop` is set; then reads all."""
        for block in range(blocks):
            self.write(block)
        source = random.Random(blocks)
        while not stop.is_set():
            (self.write if source.random() < 0.4 else self.read)(source.randrange(blocks))
        self.read_all(blocks)

    def read_all(self, blocks):
        """How many reads failed."""
        before = self.errors
        for block in range(blocks):
            self.read(block)
        return self.errors - before


class Loads:
    """Verified loads through the ring, NVMe/TCP and NBD at the same time."""

    def __init__(self, daemon, port, export, sizes):
        self.urls = {"ring": f"ring:{daemon.dir}/spillway.sock",
                     "nvme": f"nvme+tcp://127.0.0.1:{port}?host-nqn={HOST}"}
        self.daemon, self.sizes = daemon, sizes
        self.pools, self.there = {}, {}
        self.nbd = Nbd(daemon.dir / "nbd.sock", export)
        folder = pathlib.Path(lab.SPILLWAY).resolve().parent
        self.program = folder / "examples/verified_load"
        if not self.program.exists():
            profile = ["--release"] if folder.name == "release" else []
            subprocess.run(["cargo", "build", "--quiet", *profile, "-p", "spillway-client", "--example",
                            "verified_load"], check=True, cwd=lab.LAB.parent)

    def begin(self, name, seconds, pages, *pool):
        line = [self.program, self.urls[name], pages, seconds, *pool]
        return lab.start(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(self, name, process):
        """What a load found; wrong and lost pages end the test."""
        out, err = process.communicate(timeout=600)
        if process.returncode:
            lab.fail(f"{name}: {err[-2000:]} {out}")
        found = json.loads(out)
        print(name, found)
        if found["wrong"] or found["lost"]:
            lab.fail(f"{name}: pages are wrong or lost")
        return found

    def run(self, seconds, meanwhile=lambda: None):
        """Fills and works for `seconds`; `meanwhile` is called until the time is over."""
        stop = threading.Event()
        failed = []

        def with_nbd():
            try:
                self.nbd.load(self.sizes["nbd"] // 16, stop)
            except BaseException as error:
                failed.append(error)

        nbd = threading.Thread(target=with_nbd)
        began = {name: self.begin(name, seconds, self.sizes[name]) for name in self.urls}
        nbd.start()
        meanwhile()
        found = {}
        for name, process in began.items():
            found[name] = self.ended(name, process)
            self.pools[name] = found[name]["pool"]
        stop.set()
        nbd.join(600)
        if failed or nbd.is_alive():
            lab.fail(f"NBD: {failed}")
        if any(one["refused"] for one in found.values()):
            lab.fail(f"a put was refused, though the disk has room: {disk_of(self.daemon)}, {self.daemon.json('stat')}")
        print("nbd", vars(self.nbd) | {"versions": len(self.nbd.versions), "socket": None})
        return found

    def check(self):
        """Reads all that the loads have left; how many answers were media errors."""
        corrupt = {}
        for name, pool in self.pools.items():
            found = self.ended(name, self.begin(name, 0, self.sizes[name], pool))
            corrupt[name] = found["corrupt"]
            there = found["hits"] + found["corrupt"]
            if self.there.setdefault(name, there) != there:
                lab.fail(f"{name}: {self.there[name]} pages were there, now {there}")
        corrupt["nbd"] = self.nbd.read_all(self.sizes["nbd"] // 16)
        return corrupt


def configure(directory, port, disk_capacity, export_bytes, more=""):
    """As a daemon is by default, but for the disk and who may come in."""
    config = lab.WORK / "config.toml"
    config.write_text(f"""
[store]
disk = "{directory}"
disk_capacity = "{disk_capacity}"
{more}

[listen]
nvme_tcp = "127.0.0.1:{port}"

[[client]]
name = "host"
nqn = "{HOST}"

[[client]]
name = "load"
uid = {os.getuid()}

[[block]]
name = "thin"
client = "load"
size = "{export_bytes}"
reserve = false
""")
    return config


def kill(daemon):
    """kill -9; waits for the next one."""
    killed = daemon.pid()
    os.kill(killed, signal.SIGKILL)
    return lab.until(lambda: (pid := daemon.pid()) not in (None, killed) and pid, "another daemon", 30)


def disk_of(daemon):
    status, store = daemon.ask("GET", "/v1/store")
    if status != 200 or not store["disk"]:
        lab.fail(f"the store has no disk: {store}")
    return store["disk"] | {"bytes": store["disk_bytes"]}


def metric(daemon, name):
    text = daemon.ask("GET", "/metrics")[1]
    return float(re.search(rf"^{name} (\S+)$", text, re.M).group(1))


def flip(daemon, system, every=1):
    """Changes a byte in pages of the daemon's file, which has no name."""
    for entry in pathlib.Path(f"/proc/{daemon.pid()}/fd").iterdir():
        if os.readlink(entry).startswith(str(system.dir)):
            break
    else:
        lab.fail("the daemon has no file on the disk")
    flipped = 0
    with open(entry, "r+b", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        at = 0
        while at < length:
            try:
                at = file.seek(at, os.SEEK_DATA) // PAGE * PAGE
            except OSError:
                break
            file.seek(at + 1234)
            byte = file.read(1)
            file.seek(at + 1234)
            file.write(bytes([byte[0] ^ 16]))
            flipped += 1
            at += every * PAGE
        os.fsync(file.fileno())
    return flipped


def all_of_it(capacity, disk_capacity, system_mib, sizes, seconds, kills):
    """The whole test, in any size. Of `sizes`, "full" is what is offered when the file system is full: more than memory."""
    system = FileSystem(system_mib)
    try:
        port = lab.free_port()
        usual = (system.store, port, disk_capacity, sizes["nbd"] * PAGE)
        daemon = Daemon("d", config=configure(*usual), capacity=capacity)
        loads = Loads(daemon, port, "thin", sizes)
        full_disk(daemon, system, loads, sizes["full"])
        # What is configured anew holds from the next start on; directory and size do not.
        # Longer than a write of a disk that is well takes on a busy machine.
        configure(*usual, "disk_timeout_ms = 1500")
        kill(daemon)
        disk_that_hangs(daemon, system, loads, sizes["full"])
        configure(lab.WORK, port, "4G", usual[-1])
        kill(daemon)
        daemon.logged("store.disk stays on its file system")
        daemon.logged("store.disk_capacity stays")
        configure(*usual)
        kill(daemon)
        loads.nbd.again()

        def kill_some():
            source = random.Random(7)
            for number in range(kills):
                time.sleep(source.uniform(0.2, 2 * seconds / max(kills, 1) - 0.2))
                kill(daemon)

        began = time.monotonic()
        found = loads.run(seconds, kill_some)
        print(f"{kills} kills in {time.monotonic() - began:.0f} s; {disk_of(daemon)}")
        if kills and not sum(one["reconnects"] for one in found.values()) + loads.nbd.reconnects:
            lab.fail("no load noticed a kill")
        corrupt = loads.check()
        disk = disk_of(daemon)
        print(f"nothing is corrupt: {corrupt}; {disk}")
        if any(corrupt.values()) or not disk["read_bytes"] or disk["trouble"]:
            lab.fail("reads of a disk that is well fail")
        if metric(daemon, "spillway_store_disk_read_bytes_total") == 0:
            lab.fail("the metric of reads is nothing")
        if "full again" in sizes:
            full_disk(daemon, system, loads, sizes["full again"], has_gaps=True)
        corrupt_bytes(daemon, system, loads)
        daemon.stop()
    finally:
        for process in lab._started:
            if process.poll() is None:
                process.terminate()
                process.wait(20)
        system.end()


def pools_of(daemon):
    return {pool["number"] for pool in daemon.json("pool", "list")}


def destroy_all_but(daemon, pools):
    for number in pools_of(daemon) - pools:
        daemon.command("pool", "destroy", number)


def serves_again(daemon):
    """It is tried each second, whether anybody puts or not."""
    lab.until(lambda: not disk_of(daemon)["trouble"], "a disk that takes pages again", 10)


def full_disk(daemon, system, loads, pages, has_gaps=False):
    """Puts are refused, nothing is lost, it is said once, and it goes on when there is room. Gaps in a file that was
    in use may have room for all the pages that it may have."""
    before = pools_of(daemon)
    system.fill()
    found = loads.ended("ring, full disk", loads.begin("ring", 0, pages))
    trouble = str(disk_of(daemon)["trouble"])
    line = "store.disk takes no pages, which stay in memory: No space left"
    if has_gaps and "as many pages as it may have" in trouble:
        line = "store.disk is full"
    elif "No space left" not in trouble:
        lab.fail(f"the disk is full, but {found}, {disk_of(daemon)}")
    if not found["refused"] or f"TAKES NO PAGES: {trouble}" not in daemon.command("stat"):
        lab.fail(f"spillway stat does not show that the disk is full: {found}")
    if metric(daemon, "spillway_store_disk_trouble") != 1:
        lab.fail("the metric does not show it")
    daemon.logged(line)
    if any(loads.check().values()):
        lab.fail("pages are lost on a full disk")
    system.make_room()
    if has_gaps:
        destroy_all_but(daemon, before)
    serves_again(daemon)
    again = loads.ended("ring, with room again", loads.begin("ring", 0, min(pages // 4, 20_000)))
    if again["refused"] or disk_of(daemon)["trouble"]:
        lab.fail(f"it does not take pages again: {again}, {disk_of(daemon)}")
    last = disk_of(daemon)
    if not has_gaps and ("No space left" not in str(last["last_error"]) or last["last_error_s"] is None
                         or f"ago: {last['last_error']}" not in daemon.command("stat")):
        lab.fail(f"the last error is not shown once the disk works again: {last}")
    daemon.logged("store.disk takes pages again", 20)
    said = len(re.findall(line, daemon.log.read_text()))
    print(f"full disk: {found['refused']} puts refused, said {said} times, {again['refused']} refused afterwards")
    if said > 2:
        lab.fail(f"the log says {said} times that the disk is full")
    destroy_all_but(daemon, before)


def disk_that_hangs(daemon, system, loads, pages):
    """Writes that do not end: puts are refused at the deadline, what is in memory is served meanwhile."""
    before = pools_of(daemon)
    near = loads.ended("nvme, few pages", loads.begin("nvme", 0, 1000))
    subprocess.run(["fsfreeze", "--freeze", system.dir], check=True)
    try:
        putting = loads.begin("ring", 0, pages)
        lab.until(lambda: disk_of(daemon)["trouble"], "a write that takes too long", 20)
        began = time.monotonic()
        loads.ended("nvme meanwhile", loads.begin("nvme", 0, 1000, near["pool"]))
        took = time.monotonic() - began
        shown = daemon.command("stat")
        found = loads.ended("ring, frozen disk", putting)
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", system.dir], check=True)
    print(f"a disk that hangs: {found['refused']} of {pages} puts refused, 1000 gets meanwhile took {took:.2f} s")
    if not found["refused"] or "TAKES NO PAGES: the disk does not answer in time" not in shown:
        lab.fail(f"a disk that hangs is not noticed: {found}, {shown}")
    daemon.logged("store.disk takes no pages, which stay in memory: the disk does not answer in time")
    if took > 5:
        lab.fail("gets of pages in memory wait for the disk")
    destroy_all_but(daemon, before)
    serves_again(daemon)
    again = loads.ended("ring, disk well again", loads.begin("ring", 0, pages))
    if again["refused"] or disk_of(daemon)["trouble"]:
        lab.fail(f"it does not take pages again: {again}, {disk_of(daemon)}")
    destroy_all_but(daemon, before)


def corrupt_bytes(daemon, system, loads):
    """Each corrupt page is an error, after a restart too; the others are right."""
    flipped = flip(daemon, system, 3)
    corrupt = loads.check()
    print(f"{flipped} pages corrupt: {corrupt}")
    if not all(corrupt.values()):
        lab.fail("corrupt pages were not noticed everywhere")
    daemon.logged("store.disk returned other bytes than were written")
    if metric(daemon, "spillway_store_disk_corrupt_reads_total") == 0:
        lab.fail("the metric does not show corrupt reads")
    # A directory that can't be used any more is no reason to give up the store.
    system.store.rename(system.dir / "elsewhere")
    kill(daemon)
    daemon.logged("No such file or directory.*; the store continues with its present file")
    loads.nbd.again()
    after = loads.check()
    print(f"after a kill: {after}")
    if not all(after.values()):
        lab.fail("corrupt pages were not noticed after a restart")
    # What is written anew is right again.
    for block in range(loads.sizes["nbd"] // 16):
        loads.nbd.write(block)
    if loads.nbd.read_all(loads.sizes["nbd"] // 16):
        lab.fail("pages that were written anew are not right")


def bad_paths():
    """Each mistake is one line, before anything is served."""
    closed = lab.WORK / "closed"
    closed.mkdir(mode=0o700)
    lab.WORK.chmod(0o755)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    for user, value, why in [([], "store.disk=/nowhere/at/all", "No such file"), ([], "store.disk=/dev/shm", "tmpfs"),
                             ([], "store.disk=/etc/passwd", "Not a directory"),
                             (nobody, f"store.disk={closed}", "Permission denied"),
                             (["prlimit", "--fsize=1000000"], f"store.disk={closed}", "RLIMIT_FSIZE")]:
        for check in [["--check"], []]:
            line = [*user, lab.SPILLWAYD, *check, "--set", value, "--set", f"listen.dir={lab.WORK}/bad",
                    "--set", "store.capacity=32M", "--set", "store.disk_capacity=64M"]
            done = subprocess.run(line, capture_output=True, text=True, timeout=20)
            lines = [text for text in done.stderr.splitlines() if text.strip()]
            if done.returncode != 2 or len(lines) != 1 or why not in lines[0]:
                lab.fail(f"{value}: status {done.returncode}, {done.stderr}")
