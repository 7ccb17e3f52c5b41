"""The replacement part of the memcached study: two programs with small and two with large working sets under each
policy and scheme (the paper's Figure 5), and the components of a miss (Figure 4)."""

import json
import subprocess

import lab

MIB = 1 << 20
POLICIES = ["round-robin", "clock"]
SCHEMES = ["on-demand", "pre-evict"]
OPTIONS = [(policy, scheme) for policy in POLICIES for scheme in SCHEMES]
LINK_DELAY_US = 4
# As in the paper: its blade neither compresses, nor does its hypervisor read ahead.
AS_THE_PAPER = ["--prefetch", "off", "--compress", "off", "--register", "off"]
SHARES = lab.by_size([25, 50, 75], [50])
GRID_MIB, GRID_SWEEPS = lab.by_size((96, 6), (16, 2))
NETWORK_MIB, NETWORK_STEPS = lab.by_size((96, 150_000), (16, 5000))
LINES, LOOKUPS = lab.by_size((500_000, 3_000_000), (80_000, 200_000))
FUNCTIONS = lab.by_size(80, 10)
MISSES_MIB, MISSES_ACCESSES = lab.by_size((96, 60_000), (16, 5000))
# Of a hundred accesses, those that go to a tenth of the pages.
HOT = {"small": 90, "large": 0}
NAMES = ["perl", "gcc", "grid", "network"]
TOOLS = ["grid", "network", "misses"]

# Much text of which it uses a little, as an interpreter does.
PERL = """
my ($count, $lookups) = @ARGV;
my (@text, %seen, $sum);
push @text, "line $_ " . ($_ * 7919 % 1000003) x 12 for 1 .. $count;
$seen{$_ * 7919 % 2000} += length $text[$_ % 2000] for 1 .. $lookups;
$sum += length $text[$_ * 7919 % $count] for 1 .. $lookups / 100;
$sum += $_ for values %seen;
print scalar(@text), " $sum\\n";
"""


def c_source():
    """A file for the compiler: many functions, which it optimises one by one."""
    lines = ["#include <stdint.h>"]
    for number in range(FUNCTIONS):
        lines += [f"uint64_t f{number}(const uint64_t *a, uint64_t n) {{", f"    uint64_t s = {number * 2654435761 % 2**32}u;",
                  "    for (uint64_t i = 0; i < n; i++) {"]
        lines += [f"        s = (a[(i + {step}) % n] ^ s >> {step + 3}) * {(number * 31 + step) * 40503 % 65521}u + i;"
                  for step in range(12)]
        lines += ["    }", "    return s;", "}"]
    return "\n".join(lines) + "\n"


def programs():
    """Each program's working set and command line."""
    perl, source = lab.WORK / "small.pl", lab.WORK / "large.c"
    perl.write_text(PERL)
    source.write_text(c_source())
    # Only where the assembler puts its output does a compiler say what it made.
    return {
        "perl": ("small", ["perl", perl, LINES, LOOKUPS]),
        "gcc": ("small", ["gcc", "-O2", "-S", source, "-o", "/dev/stdout"]),
        "grid": ("large", [lab.BUILT / "grid", GRID_MIB, GRID_SWEEPS]),
        "network": ("large", [lab.BUILT / "network", NETWORK_MIB, NETWORK_STEPS]),
    }


def paged(local_bytes, program, *options):
    """What a program prints within so much memory, and the run's statistics."""
    stats = lab.WORK / "program.json"
    line = [lab.SPILLWAY, "run", "--local", local_bytes, *options, *AS_THE_PAPER, "--stats", stats, "--", *program]
    try:
        done = subprocess.run(list(map(str, line)), capture_output=True, timeout=600)
    except subprocess.TimeoutExpired:
        lab.fail(f"{program[0]} did not end within 600 s")
    if done.returncode:
        lab.fail(f"{program[0]} ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout, json.loads(stats.read_text())


def options_of(policy, scheme, delay_us=LINK_DELAY_US):
    return ["--replacement", policy, "--eviction", scheme, "--link-delay", f"{delay_us}us" if delay_us else "0"]


def run_program(name, working_set, program):
    """One round of a program: all local, then each share of remote memory under each policy and scheme."""
    wanted, stats = paged(4 << 30, program)
    footprint = stats["peaks"]["local_bytes"]
    cells = []
    for share in SHARES:
        for policy, scheme in OPTIONS:
            local = max(footprint * (100 - share) // 100, MIB)
            printed, its = paged(local, program, *options_of(policy, scheme))
            if printed != wanted:
                lab.fail(f"{name} with {share} % remote, {policy}, {scheme}: its output is another")
            cells.append({"remote_percent": share, "policy": policy, "scheme": scheme, "seconds": its["seconds"],
                          "remote_accesses": its["counters"]["fetches"], "rescues": its["counters"]["rescues"],
                          "handler_mean_us": its["counters"]["fault_ns"] / max(its["counters"]["faults"], 1) / 1e3})
    return {"program": name, "working_set": working_set, "footprint_bytes": footprint, "seconds": stats["seconds"], "cells": cells}


def split_misses():
    """One round of Figure 4. A miss that finds room, without a link, is the rest; the delay adds the link; a miss that finds
    none adds what of the eviction does not overlap with the transfer."""
    cells = []
    for working_set, hot in HOT.items():
        for policy, scheme in OPTIONS:
            with_link, without = (miss_times(hot, options_of(policy, scheme, delay)) for delay in (LINK_DELAY_US, 0))
            cells.append({"working_set": working_set, "policy": policy, "scheme": scheme, "total_us": with_link["full_ns"] / 1e3,
                          "rest_us": without["room_ns"] / 1e3, "link_us": (with_link["room_ns"] - without["room_ns"]) / 1e3,
                          "eviction_us": (with_link["full_ns"] - with_link["room_ns"]) / 1e3, "misses": with_link["full"]})
    return {"cells": cells}


def miss_times(hot, options):
    printed, _ = paged(MISSES_MIB * MIB // 2, [lab.BUILT / "misses", MISSES_MIB, hot, MISSES_ACCESSES], *options)
    return json.loads(printed)
