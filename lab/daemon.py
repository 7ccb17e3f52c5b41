"""Helpers for tests of the daemon: a daemon for the test, its commands, its HTTP interface."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import lab

if lab.PLAIN:
    print("a plain run has no daemon: nothing to see")
    sys.exit()
SPILLWAYD = str(pathlib.Path(lab.SPILLWAY).with_name("spillwayd"))
JSON = {"Content-Type": "application/json"}


class Http(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Daemon:
    """`spillway serve` with a directory of its own."""

    def __init__(self, name, *settings, config=None, capacity="64M", **options):
        self.dir = lab.WORK / name
        self.api = self.dir / "api.sock"
        self.log = lab.WORK / f"{name}.log"
        self.line = [lab.SPILLWAY, "serve", "--dir", self.dir, "--capacity", capacity]
        self.line += ["--config", config] if config else []
        for setting in settings:
            self.line += ["--set", setting]
        self.options = options
        self.start()

    def start(self):
        with open(self.log, "w") as log:
            self.process = lab.start(self.line, stdout=log, stderr=log, **self.options)
        lab.until(lambda: self.process.poll() is not None or self.pid(), "the daemon")
        if self.process.poll() is not None:
            lab.fail(f"the daemon ended: {self.log.read_text()}")

    def ask(self, method, path, body=None):
        """Status and answer."""
        connection = Http(self.api)
        connection.request(method, path, body=None if body is None else json.dumps(body), headers=JSON)
        answer = connection.getresponse()
        text = answer.read()
        kind = answer.getheader("content-type") or ""
        return answer.status, json.loads(text) if "json" in kind else text.decode()

    def pid(self):
        """The daemon's process id; none when it does not answer."""
        try:
            return self.ask("GET", "/v1/version")[1]["pid"]
        except (OSError, http.client.HTTPException):
            return None

    def command(self, *arguments, status=0, **options):
        """What `spillway ARGUMENTS` prints; its lines of complaint when it must fail."""
        options.setdefault("text", True)
        done = subprocess.run([lab.SPILLWAY, *map(str, arguments), "--api", str(self.api)],
                              capture_output=True, timeout=60, **options)
        if done.returncode != status:
            lab.fail(f"spillway {arguments} ended with {done.returncode}: {done.stderr}")
        return done.stderr if status else done.stdout

    def json(self, *arguments):
        return json.loads(self.command(*arguments, "-o", "json"))

    def logged(self, pattern, seconds=10):
        """Waits for a line of the log."""
        lab.until(lambda: re.search(pattern, self.log.read_text()), f"a line with {pattern}", seconds)

    def signal(self, number):
        os.kill(self.pid(), number)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if lab.ends(self.process, 20) != 0:
            lab.fail(f"the daemon did not end well: {self.log.read_text()}")
