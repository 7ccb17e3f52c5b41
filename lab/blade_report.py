"""The memcached study's report: the paper's figures and ours, as one HTML page and as SVG."""

import html
import json
import pathlib
import statistics

import blade_chart
import blade_programs
import blade_rows
from scenario_report import STYLE

PAPER = pathlib.Path(__file__).with_name("blade_paper.json")
LINKS = {"1gbit": "1 Gbit/s", "unshaped": "unshaped"}
SHORT = {"round-robin": "RR", "clock": "CL", "on-demand": "OD", "pre-evict": "PE"}


def load(out, pattern):
    return [json.loads(path.read_text()) for path in sorted(out.glob(pattern))]


def table(head, rows):
    cell = lambda kind, its: "".join(f"<{kind}>{html.escape(str(it))}" for it in its)
    return "\n".join([f"<table><tr>{cell('th', head)}", *(f"<tr>{cell('td', row)}" for row in rows), "</table>"])


class Report:
    """What is written: a page in parts, and each figure as a file too."""

    def __init__(self, out):
        self.out, self.parts = out, []
        self.paper = json.loads(PAPER.read_text())

    def text(self, text):
        self.parts.append(f"<p>{text}")

    def figures(self, *figures):
        self.parts.append("<div class=figures>")
        for name, drawn in figures:
            (self.out / f"{name}.svg").write_text(drawn + "\n")
            self.parts.append(f'<figure id="{name}">{drawn}</figure>')
        self.parts.append("</div>")

    def head(self, number, title):
        """A figure's heading, and what the paper's text says of it."""
        its = self.paper["figures"][number]
        self.parts.append(f'<h2 id="figure-{number}">{html.escape(title)} (the paper\'s Figure {number}, section {its["section"]})</h2>')
        self.parts.append(table(["the paper's text", ""], [(it["what"], it["value"]) for it in its["stated"]]))
        self.text(f"Its text does not give {html.escape(its['not_in_the_text'])}.")


def hit_fraction(report):
    """Figure 9."""
    curve = json.loads((report.out / "curve.json").read_text())
    derived = report.paper["figures"]["9"]["derived"]
    measured = []
    for path in report.out.glob("replay-*.json"):
        counts = json.loads(path.read_text())["phases"][0]["counts"]
        measured.append((float(path.stem.removeprefix("replay-")), counts["hits"] / counts["gets"]))
    measured.sort()
    report.head("9", "Hit fraction over capacity")
    report.text(f"Ours: {curve['requests']:,} requests to {curve['unique_keys']:,} keys, {curve['mean_bytes']:,.0f} bytes on average. "
                "The line is computed for one LRU list; the circles are memcached, which replays the whole trace from empty. "
                f"The paper's point follows from its text: {html.escape(derived['from'])}.")
    points = {"one LRU list": curve["points"], "memcached": measured,
              "the paper": [(derived["capacity_gib"], derived["hit_fraction"])]}

    def latencies(miss_ms):
        return [(gib, hit * 0.1 + (1 - hit) * miss_ms) for gib, hit in measured]
    slow, quick = latencies(10), latencies(1)
    report.figures(
        ("hit-fraction", blade_chart.lines("Hit fraction of the gets", "share", "capacity, GiB of the full scale", points, most=1,
                                           dots=("memcached", "the paper"))),
        ("latency-over-capacity", blade_chart.lines(
            "Latency by the paper's formula, from memcached's hits", "ms", "capacity, GiB of the full scale",
            {"a miss is 100 hits": slow, "a miss is 10 hits": quick, "the paper, 100 hits": [(6, 1.0)]},
            dots=("the paper, 100 hits",))))
    report.parts.append(table(["GiB", "hit fraction", "latency at 100 hits, ms", "latency at 10 hits, ms"],
                              [(f"{gib:g}", f"{hit:.3f}", f"{at_100:.2f}", f"{at_10:.2f}")
                               for (gib, hit), (_, at_100), (_, at_10) in zip(measured, slow, quick)]))


def memcached(report, rows):
    """Figure 10, and the throughputs."""
    report.head("10", "Latency and throughput with a sixth of the memory local")
    head = ["link", "loop", "side", "requests/s", "of all local", "p50 us", "p90 us", "p99 us", "p99.9 us", "page misses/s",
            "page miss ratio", "gets that miss", "memory, MiB", "counts"]
    report.parts.append(table(head, [row.cells() for row in rows]))
    report.text(f"Medians of {min(row.rounds for row in rows)} rounds. A page miss ratio is page misses beside the pages that the values "
                "of the requests fill. A row counts if there are 5,000 page misses a second and a page miss ratio of 10 %. Memory is "
                "what the side takes of this machine, without the blade and without zram: Spillway's pager is in it. In an open loop, "
                "a latency begins when the request is due.")
    report.text("<br>".join(map(html.escape, blade_rows.wanted(rows))))
    if killed := sum(run["killed"] for row in rows if row.loop == "closed" for run in row.runs):
        report.text(f"{killed} runs on zram were repeated: the kernel had killed memcached for want of memory in its group.")
    closed = {}
    for row in rows:
        if row.loop == "closed":
            closed.setdefault(LINKS[row.link], {})[row.side] = row.ratio
    for its in closed.values():
        its["the paper"] = report.paper["figures"]["10"]["throughput_ratio"]
    figures = [("throughput", blade_chart.bars("Throughput beside all local, closed loop", "share", "link", closed))]
    for link, name in LINKS.items():
        for loop in "closed", "open":
            curves = {row.side: row.distribution() for row in rows if (row.link, row.loop) == (link, loop)}
            figures.append((f"latency-{link}-{loop}", blade_chart.lines(
                f"Latency, {name}, {loop} loop", "share of the requests", "us", curves, most=1, logarithmic=True)))
    report.figures(*figures)


def medians(cells, key, values):
    """Each value's median over the rounds, by what `key` gives."""
    found = {}
    for cell in cells:
        found.setdefault(key(cell), []).append(cell)
    return {name: {value: statistics.median(it[value] for it in its) for value in values} for name, its in found.items()}


def misses(report):
    """Figure 4."""
    cells = [cell for round in load(report.out, "misses-*.json") for cell in round["cells"]]
    parts = {"rest_us": "the rest", "link_us": "link", "eviction_us": "eviction, not overlapped"}
    found = medians(cells, lambda it: (it["working_set"], it["policy"], it["scheme"]), [*parts, "total_us"])
    report.head("4", "What a miss consists of")
    report.text("Half of the memory is remote. Each part is a difference of mean miss times as the program sees them: a miss that "
                "finds room, without a link; the same with a delay of 4 us; a miss that finds local memory full. RR is Round-robin, "
                "CL Clock, OD on demand, PE pre-evict. A miss that the victim pool answers is in Clock's mean.")
    figures = []
    for working_set, title in ("small", "small working set (the paper's perlbench)"), ("large", "large working set (the paper's zeusmp)"):
        groups = {f"{SHORT[policy]}-{SHORT[scheme]}": {name: found[working_set, policy, scheme][part] for part, name in parts.items()}
                  for policy, scheme in blade_programs.OPTIONS}
        figures.append((f"miss-{working_set}", blade_chart.bars(f"A miss, {title}", "us", "policy and scheme", groups, stacked=True)))
    report.figures(*figures)
    report.parts.append(table(["working set", "policy", "scheme", *(f"{name}, us" for name in parts.values()), "all, us"],
                              [(*key, *(f"{its[part]:.1f}" for part in [*parts, "total_us"])) for key, its in found.items()]))
    return found


def programs(report):
    """Figure 5."""
    report.head("5", "Remote accesses and run time by policy and scheme")
    report.text("Without prefetching and compression, as in the paper. Remote accesses are relative to Clock on demand at the "
                "smallest share of remote memory; run time is relative to all local.")
    found, rows, figures = {}, [], []
    for name in blade_programs.NAMES:
        rounds = load(report.out, f"program-{name}-*.json")
        base_s = statistics.median(it["seconds"] for it in rounds)
        cells = medians([cell for it in rounds for cell in it["cells"]],
                        lambda it: (it["remote_percent"], it["policy"], it["scheme"]), ["seconds", "remote_accesses"])
        found[name] = {key: {"slowdown": it["seconds"] / base_s, "remote": it["remote_accesses"]} for key, it in cells.items()}
        shares = sorted({key[0] for key in cells})
        first = max(cells[shares[0], "clock", "on-demand"]["remote_accesses"], 1)
        kind, footprint = rounds[0]["working_set"], rounds[0]["footprint_bytes"] >> 20

        def groups(value):
            return {f"{share} %": {f"{SHORT[policy]}-{SHORT[scheme]}": value(cells[share, policy, scheme])
                                   for policy, scheme in blade_programs.OPTIONS} for share in shares}
        slowdowns = {"0 %": {f"{SHORT[policy]}-{SHORT[scheme]}": 1.0 for policy, scheme in blade_programs.OPTIONS},
                     **groups(lambda it: it["seconds"] / base_s)}
        title = f"{name} ({kind} working set, {footprint} MiB)"
        figures += [(f"remote-accesses-{name}", blade_chart.bars(f"Remote accesses, {title}", "relative", "remote memory",
                                                                 groups(lambda it: it["remote_accesses"] / first))),
                    (f"run-time-{name}", blade_chart.bars(f"Run time, {title}", "relative to all local", "remote memory", slowdowns))]
        rows += [(name, kind, f"{share} %", policy, scheme, f"{its['remote']:,.0f}", f"{its['slowdown']:.2f}")
                 for (share, policy, scheme), its in found[name].items()]
    report.figures(*figures)
    report.parts.append(table(["program", "working set", "remote", "policy", "scheme", "remote accesses", "run time"], rows))
    return found


def write(out):
    """Writes report.html, and the figures beside it."""
    report, setting = Report(out), json.loads((out / "setting.json").read_text())
    curve = json.loads((out / "curve.json").read_text())
    rows = blade_rows.rows_of(out)
    hit_fraction(report)
    memcached(report, rows)
    splits = misses(report)
    findings = blade_rows.findings(splits, programs(report))
    report.parts += ["<h2 id=findings>The paper's findings on replacement</h2>",
                     table(["finding", "the paper", "here", "sign", "why it is not the paper's"], findings)]
    start = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
             f"<title>The memcached study</title><style>{STYLE}</style><h1>The memcached study of the memory-blade paper</h1>",
             f"<p>{html.escape(setting['processor'])}, Linux {setting['kernel']}, memcached {setting['memcached']}, {setting['began']}. "
             f"<code>{html.escape(setting['command'])}</code>. {setting['scale']:.4g} of the paper's keys: {curve['unique_keys']:,}. "
             f"{setting['connections']} connections, {setting['seconds']:g} s for each loop. Source of the paper's numbers: "
             f"{html.escape(report.paper['source'])}; {html.escape(report.paper['read_from'])}."]
    if setting["size"] == "ci":
        start.append("<p><strong>These figures are of the test's size: they show that the study runs, and nothing else.</strong>")
    (out / "rows.md").write_text(blade_rows.markdown(rows, findings))
    (out / "report.html").write_text("\n".join([*start, *report.parts]) + "\n")
    print(out / "report.html")
