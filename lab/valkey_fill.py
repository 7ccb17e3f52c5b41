"""What lab/bench-valkey and lab/bench-valkey-guest share: turns of a server that has more values than its memory limit, once
with the module and once with swap space."""

import json
import os
import pathlib
import re
import sys

import lab
from valkey import servers

MIB = 1 << 20
# What a value of 4 KiB takes of the server's memory, its key and its entry included.
VALUE_BYTES, VALUE_TAKES = 4096, 5300
# So often the kernel may kill the server of a side that swaps, in one turn.
KILLED_MAX = 4


class Killed(Exception):
    """The kernel has killed a server, which allocates faster than its group's pages reach the swap space."""


def program():
    """The server that is measured."""
    return os.environ.get("PROGRAM") or servers()[0]


def limited(limit):
    """Options of a server with the module."""
    return "--maxmemory", limit, "--maxmemory-policy", "noeviction"


def check_arguments(socket, times, limit, ratio, distribution, set_percent, depth, seconds):
    """Those of lab/tools/kvcheck.c."""
    keys = int(float(times) * limit / VALUE_TAKES)
    return [str(part) for part in (socket, keys, VALUE_BYTES, ratio, distribution, set_percent, depth, seconds)]


def pss_bytes(smaps, without=()):
    """The memory that a process's mappings take, by /proc/PID/smaps or smaps_rollup, except those whose names have a word of
    `without`."""
    total, counts = 0, True
    for line in smaps.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counts = not any(word in line for word in without)
        elif line.startswith("Pss:") and counts:
            total += int(line.split()[1]) * 1024
    return total


def pss_of(pid, without=()):
    return pss_bytes(pathlib.Path(f"/proc/{pid}/smaps").read_text(), without)


def figures(line, memory_bytes):
    """A turn's figures: a line of kvcheck, and the memory that server and helpers take."""
    told = json.loads(line)
    return {"per_second": told["requests"] / told["seconds"], "median_us": told["median_us"], "p99_us": told["p99_us"],
            "memory_mib": memory_bytes / MIB}


def turn(side, attempt):
    """What an attempt gives, once more if the kernel kills the server."""
    for _ in range(KILLED_MAX):
        try:
            return attempt(side)
        except Killed:
            print(f"{side}: the kernel has killed the server", file=sys.stderr)
    return lab.fail(f"{side}: the kernel has killed the server {KILLED_MAX} times")
