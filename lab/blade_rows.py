"""The memcached study's rows and findings: medians over rounds, and which of the paper's findings they confirm."""

import json
import statistics

import blade_programs

MIB = 1 << 20
# A row with less is no test of far memory.
LEAST_MISSES_PER_SECOND, LEAST_MISS_RATIO = 5000, 0.10
# Means within this of 0 are no sign, of a hundred: rounds differ by as much.
ALIKE = 3
SIDES = ["all-local", "spillway", "zram"]
LINKS = ["1gbit", "unshaped"]
# What the issue of this study asks of Spillway beside all local, by link.
WANTED = {"1gbit": 0.95, "unshaped": 0.60}

# Why a sign may differ here: properties of the pager (ARCHITECTURE.md, docs/adr/0007).
WHY = {
    "selection": "Both policies have the same hand over the addresses, which takes a window of 64 pages at a time. Clock's second "
                 "chance is the victim pool, so it does not scan accessed bits, which is what costs the paper's Clock its time.",
    "handling": "Most of a miss is the way from the program to its handler and back, which both policies pay. Rescues from the victim "
                "pool are misses without a transfer, and bring Clock's mean down.",
    "run time": "Clock selects no slower than Round-robin here, and has fewer transfers.",
    "pre-evict": "On demand, pages leave by windows of 64, so one miss of many pays, and little is left to overlap. The task that evicts "
                 "ahead of need has to share two processors with the program and its handlers.",
    "accesses": "Clock lets a fifth of local memory wait in the victim pool. A program that goes in order, or at random over all its "
                "memory, seldom comes back to a page in time.",
}


class Row:
    """One side over one link in one loop."""

    def __init__(self, link, loop, side, runs):
        self.link, self.loop, self.side, self.rounds = link, loop, side, len(runs)
        self.runs = runs
        self.phases = [next(it for it in run["phases"] if it["name"] == loop) for run in runs]
        self.requests_per_second = statistics.median(it["requests_per_second"] for it in self.phases)
        self.ratio = None
        misses = [it["page_misses_per_second"] for it in self.phases if it["page_misses_per_second"] is not None]
        self.page_misses = statistics.median(misses) if misses else None
        ratios = [it["page_misses_per_second"] * (it["ended_s"] - it["began_s"]) / it["counts"]["value_pages"]
                  for it in self.phases if it["page_misses_per_second"] is not None]
        self.miss_ratio = statistics.median(ratios) if ratios else None

    def quantile(self, name):
        return statistics.median(it["latencies"][name] for it in self.phases)

    def counts(self):
        """Whether it is a test of far memory; none for all-local rows, which are none."""
        if self.side == "all-local":
            return None
        return (self.page_misses or 0) >= LEAST_MISSES_PER_SECOND and (self.miss_ratio or 0) >= LEAST_MISS_RATIO

    def gets_missed(self):
        return statistics.median(1 - it["counts"]["hits"] / it["counts"]["gets"] for it in self.phases)

    def distribution(self):
        """Points of the cumulative distribution: microseconds and share, over all rounds."""
        sums = {}
        for phase in self.phases:
            for bound_us, count in phase["latencies"]["counts"]:
                sums[bound_us] = sums.get(bound_us, 0) + count
        total, seen, points = sum(sums.values()), 0, []
        for bound_us in sorted(sums):
            seen += sums[bound_us]
            points.append((bound_us, seen / total))
        return points

    def cells(self):
        none = "not measured"
        counts = self.counts()
        return [self.link, self.loop, self.side, f"{self.requests_per_second:,.0f}", f"{self.ratio:.3f}",
                *(f"{self.quantile(name):,.0f}" for name in ("p50_us", "p90_us", "p99_us", "p999_us")),
                none if self.page_misses is None else f"{self.page_misses:,.0f}",
                none if self.miss_ratio is None else f"{self.miss_ratio:.1%}", f"{self.gets_missed():.1%}",
                f"{statistics.median(it['memory_bytes'] for it in self.runs) / MIB:.0f}",
                "" if counts is None else "yes" if counts else "no"]


def rows_of(out):
    """All rows, with the ratio to all local over the same link in the same loop."""
    rows = []
    for link in LINKS:
        for loop in "closed", "open":
            base = None
            for side in SIDES:
                runs = [json.loads(path.read_text()) for path in sorted(out.glob(f"memcached-{link}-{side}-*.json"))]
                row = Row(link, loop, side, runs)
                base = base or row.requests_per_second
                row.ratio = row.requests_per_second / base
                rows.append(row)
    return rows


def wanted(rows):
    """A line for each link: whether Spillway reaches what is asked of it."""
    for row in rows:
        if row.side == "spillway" and row.loop == "closed":
            counts = "the row counts" if row.counts() else "the row does not count"
            met = "met" if row.ratio >= WANTED[row.link] and row.counts() else "missed"
            yield f"{row.link}: {row.ratio:.1%} of all local, wanted {WANTED[row.link]:.0%}; {counts}: {met}"


def less(ours, other):
    """By how much ours is less, of a hundred; negative the other way round."""
    return 100 * (1 - ours / other) if other else 0.0


def finding(name, paper, values, why, least=ALIKE):
    """A row: the sign is the paper's if the values' mean is above `least`."""
    mean = statistics.mean(values)
    sign = "as the paper's" if mean > least else "no difference" if mean > -ALIKE else "differs"
    shown = ", ".join(f"{value:.0f}" for value in values) + " %"
    return [name, paper, shown, sign, "" if mean > least else WHY[why]]


def findings(splits, found):
    """The paper's findings beside ours. Values are for small and large working sets, or for the shares of remote memory."""
    def split(policy, scheme, part):
        return [splits[working_set, policy, scheme][part] for working_set in ("small", "large")]

    def saved(ours, other, part):
        return [less(mine, its) for mine, its in zip(split(*ours, part), split(*other, part))]

    rr_late, clock_late, rr_early, clock_early = [(policy, scheme) for scheme in blade_programs.SCHEMES
                                                  for policy in blade_programs.POLICIES]
    of = "(small, large working set)"
    rows = [
        finding(f"Round-robin evicts faster than Clock, on demand {of}", "60 to 92 %",
                saved(rr_late, clock_late, "eviction_us"), "selection"),
        finding(f"Round-robin handles a miss faster than Clock, on demand {of}", "26 to 35 %",
                saved(rr_late, clock_late, "total_us"), "handling"),
        finding(f"pre-evict handles a miss faster, Round-robin {of}", "17 to 28 %",
                saved(rr_early, rr_late, "total_us"), "pre-evict"),
        finding(f"pre-evict handles a miss faster, Clock {of}", "17 to 28 %",
                saved(clock_early, clock_late, "total_us"), "pre-evict"),
    ]
    for name, cells in found.items():
        shares = sorted({key[0] for key in cells})

        def gains(ours, other, part):
            return [less(cells[share, *ours][part], cells[share, *other][part]) for share in shares]
        at = f"{name}, {', '.join(map(str, shares))} % remote"
        rows += [
            finding(f"Clock has fewer remote accesses ({at})", "16, 33, 3 %", gains(clock_late, rr_late, "remote"), "accesses"),
            finding(f"Round-robin ends sooner than Clock, or hardly later ({at})", "-2 to 2, -2 to 2, 12 %",
                    gains(rr_late, clock_late, "slowdown"), "run time", least=-2),
            finding(f"pre-evict ends sooner, Round-robin ({at})", "23 % on average", gains(rr_early, rr_late, "slowdown"), "pre-evict"),
            finding(f"pre-evict ends sooner, Clock ({at})", "23 % on average", gains(clock_early, clock_late, "slowdown"), "pre-evict"),
        ]
    return rows


def markdown(rows, findings):
    """The tables of docs/benchmarks/blade-study.md."""
    head = ["link", "loop", "side", "requests/s", "of all local", "p50 µs", "p90 µs", "p99 µs", "p99.9 µs", "misses/s", "miss ratio",
            "gets that miss", "MiB", "counts"]
    lines = [head, ["---"] * len(head), *(row.cells() for row in rows)]
    signs = [["finding", "the paper", "here", "sign"], ["---"] * 4, *(it[:4] for it in findings)]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + ["", *(f"- {line}" for line in wanted(rows)), ""]
                     + ["| " + " | ".join(line) + " |" for line in signs]) + "\n"
