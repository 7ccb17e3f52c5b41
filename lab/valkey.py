"""Helpers for tests of the module: Redis and Valkey with the module, and a client that returns errors as answers."""

import os
import pathlib
import shutil
import signal
import subprocess

import lab
from daemon import Daemon

MODULE = pathlib.Path(lab.SPILLWAY).with_name("libspillway_valkey.so")
# How long a command may wait for the store, unless a test says otherwise.
DEADLINE_S = 3
# Debian's Redis, and Valkey of its backports as lab/setup unpacks it; or what SERVERS names.
UNPACKED = lab.LAB / "cache/valkey/usr/bin/valkey-server"


def servers():
    """The servers to test with."""
    if named := os.environ.get("SERVERS", "").split():
        if missing := [program for program in named if not shutil.which(program)]:
            lab.fail(f"SERVERS: no program {missing[0]}: give its path")
        return named
    found = [program for program in ("redis-server", "valkey-server") if shutil.which(program)]
    if UNPACKED.exists() and "valkey-server" not in found:
        found.append(str(UNPACKED))
    if not found:
        lab.fail("neither Redis nor Valkey: run lab/setup bench")
    return found


class Failed(Exception):
    """A server's error."""


class Client(lab.Connection):
    """RESP2."""

    def send(self, *parts):
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))

    def answer(self):
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            return Failed(rest.decode())
        if kind == b"*":
            return None if rest == b"-1" else [self.answer() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self.exactly(int(rest))
        return int(rest) if kind == b":" else rest

    def ask(self, *parts):
        """The answer; an error is a failure of the test."""
        answer = self.attempt(*parts)
        if isinstance(answer, Failed):
            lab.fail(f"{parts[0]} {str(parts[1:])[:80]}: {answer}")
        return answer

    def attempt(self, *parts):
        self.send(*parts)
        return self.answer()

    def pipeline(self, commands):
        """The answers to commands that are sent together."""
        for command in commands:
            self.send(*command)
        return [self.answer() for _ in commands]

    def refused(self, word, *parts):
        """The command must be answered with an error that has a word."""
        answer = self.attempt(*parts)
        if not isinstance(answer, Failed) or word not in str(answer):
            lab.fail(f"{parts[0]} {str(parts[1:])[:80]} gave {str(answer)[:80]}, not an error with {word}")

    def info(self, name):
        for line in self.ask("INFO", "everything").decode().splitlines():
            if line.startswith(name + ":"):
                return line.split(":")[1].strip()
        return lab.fail(f"INFO has no {name}")

    def stats(self):
        """The module's figures."""
        answer = self.ask("SPILL.STATS")
        return {name.decode(): figure for name, figure in zip(answer[::2], answer[1::2])}


class Server:
    """A server with the module, whose values lie in a daemon of the test's own."""

    def __init__(self, program, name, daemon, *options, arguments=("min-bytes", "1"), module=True):
        self.program, self.name, self.options = program, name, options
        self.path = lab.WORK / f"{name}.sock"
        self.log = lab.WORK / f"{name}.log"
        self.dump = lab.WORK / f"{name}.rdb"
        self.module = []
        if module:
            # Longer than a busy machine keeps the daemon from an answer. A test that stops the daemon waits for as long.
            if "deadline-ms" not in arguments:
                arguments = (*arguments, "deadline-ms", DEADLINE_S * 1000)
            self.module = ["--loadmodule", MODULE, "url", f"ring:{daemon.dir}/spillway.sock", *arguments]
        self.start()

    def line(self, module=True):
        """The command line of the server."""
        return [self.program, "--port", 0, "--unixsocket", self.path, "--dir", lab.WORK, "--save", "",
                "--dbfilename", self.dump.name, "--appenddirname", f"{self.name}.aof", "--logfile", self.log,
                "--enable-debug-command", "yes", "--enable-module-command", "yes", *self.options,
                *(self.module if module else [])]

    def start(self, module=True):
        self.process = lab.start(self.line(module))
        self.client = lab.connect(Client, self.path)
        lab.until(lambda: not isinstance(self.client.attempt("PING"), Failed), f"{self.name} to load")
        return self.client

    def another(self):
        """One more connection."""
        return lab.connect(Client, self.path)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        lab.end_with(self.process)

    def loads(self, *line):
        """What a server that does not take the module says of it."""
        done = subprocess.run([self.program, "--port", "0", "--unixsocket", lab.WORK / "bad.sock", "--loadmodule", *map(str, line)],
                              capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            lab.fail(f"a server started with {line}")
        return [text for text in done.stdout.splitlines() if "<module> spillway: " in text]


def clear(*names):
    """Removes what servers and daemons of these names have left, for the next to begin anew."""
    for name in names:
        shutil.rmtree(lab.WORK / name, ignore_errors=True)
        shutil.rmtree(lab.WORK / f"{name}.aof", ignore_errors=True)
        (lab.WORK / f"{name}.rdb").unlink(missing_ok=True)


def pages(daemon):
    """Pages of each pool of the daemon."""
    return [pool["pages"] for pool in daemon.json("pool", "list")]


def saved(client):
    """Waits for the child that saves; whether it saved."""
    lab.until(lambda: client.info("rdb_bgsave_in_progress") == "0", "the dump", 120)
    return client.info("rdb_last_bgsave_status") == "ok"


def with_daemon(name, *settings, capacity="256M"):
    """A daemon of the test's own."""
    return Daemon(name, *settings, capacity=capacity)
