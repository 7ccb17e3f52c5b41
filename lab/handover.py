"""Helpers for tests of handed-over guest memory: `spillway guest-memory`, a small monitor, killing managers."""

import json
import os
import signal
import subprocess
import time

import lab

MONITOR = lab.tool("handover_monitor", "-pthread")


class Served:
    """A `spillway guest-memory` and what it says."""

    def __init__(self, name, *options):
        self.socket = lab.WORK / f"{name}.sock"
        self.stats = lab.WORK / f"{name}.json"
        self.log = lab.WORK / f"{name}.log"
        self.process = lab.start([lab.SPILLWAY, "guest-memory", "--listen", self.socket, "--stats", self.stats, *options],
                                 stderr=open(self.log, "w"))
        lab.until(self.socket.exists, "the socket", 20)

    def said(self):
        return self.log.read_text()

    def manager(self):
        """The manager's process, if there is one."""
        for pid, (parent, line) in lab.tasks().items():
            if parent == self.process.pid and "guest-memory-part manager" in line:
                return pid
        return None

    def kill_manager(self):
        pid = lab.until(self.manager, "a manager", 20)
        os.kill(pid, signal.SIGKILL)

    def ends(self, seconds=30, status=0):
        """Its statistics, when it has ended by itself."""
        if lab.ends(self.process, seconds) != status:
            lab.fail(f"spillway guest-memory ended with {self.process.returncode}:\n{self.said()}")
        print(self.said(), end="")
        return json.loads(self.stats.read_text())


def monitor(served, kind, mib, seconds, *file):
    """Starts the small monitor."""
    return lab.start([MONITOR, served.socket, kind, mib, seconds, *file], stdout=subprocess.PIPE, text=True)


def passes(process, seconds):
    """What a monitor printed that must end well."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        lab.fail(f"the guest hangs: it did not end within {seconds} s")
    print(said, end="")
    if process.returncode or "\nok: " not in said:
        lab.fail(f"the guest ended with {process.returncode}")
    return said


def killed_every(served, guest, pause, most):
    """Kills the manager again and again as long as the guest runs, at most so often."""
    kills = 0
    end = time.monotonic() + pause
    while guest.poll() is None:
        if time.monotonic() >= end and kills < most:
            served.kill_manager()
            kills += 1
            end += pause
        time.sleep(0.05)
    return kills
