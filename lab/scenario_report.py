"""The scenarios' report: running times, and who had how much when, as one HTML page and as SVG."""

import html
import json
import statistics

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 200, 46, 24, 8
# Told apart by colour (Okabe and Ito's, which colour-blind people can tell) and by dashes.
LINES = {"a": ("#0072b2", ""), "b": ("#d55e00", "7 3"), "c": ("#009e73", "2 3")}
PAGES_MIB = 256
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; }
"""


def load(out):
    """All runs: by scenario, by policy."""
    runs = {}
    for path in sorted(out.glob("run-*.json")):
        run = json.loads(path.read_text())
        runs.setdefault(run["scenario"], {}).setdefault(run["policy"], []).append(run)
    return runs


def times(run):
    """What is compared of a run: seconds by a name such as 'a 1'."""
    found = {}
    for program, said in sorted(run["programs"].items()):
        if run["scenario"] in ("usemem", "guests"):
            for event in said["events"]:
                # The first walk over each amount; the paper shows those that the third can be compared by.
                if event["event"] == "walk":
                    found.setdefault(f"{program} {event['result']} MiB", event["seconds"])
        else:
            ends = [event["seconds"] for event in said["events"] if event["event"] == "end"]
            for number, seconds in enumerate(ends, 1):
                found[f"{program} {number}" if len(ends) > 1 else program] = seconds
    return found


def measured(runs):
    """Mean and deviation of each time over the runs."""
    every = [times(run) for run in runs]
    names = [name for name in every[0] if all(name in it for it in every)]
    values = {name: [it[name] for it in every] for name in names}
    return {name: (statistics.mean(its), statistics.stdev(its) if len(its) > 1 else 0.0) for name, its in values.items()}


def table(by_policy, policies):
    """Rows of times; below each the ratios to greedy and to no store."""
    known = {policy: measured(by_policy[policy]) for policy in policies if policy in by_policy}
    names = [name for name in next(iter(known.values())) if all(name in it for it in known.values())]
    head = "".join(f"<th>{html.escape(policy)}" for policy in known)
    lines = [f"<table><tr><th>seconds (of greedy, of none){head}"]
    for name in names:
        cells = []
        for policy, it in known.items():
            mean, deviation = it[name]
            ratios = [f"{mean / known[other][name][0]:.2f}" for other in ("greedy", "none")
                      if other in known and other != policy]
            shown = f" <small>({', '.join(ratios)})</small>" if ratios else ""
            cells.append(f"<td>{mean:.2f} ± {deviation:.2f}{shown}")
        lines.append(f"<tr><td>{html.escape(name)}{''.join(cells)}")
    return "\n".join([*lines, "</table>"])


def figure(run):
    """Used (solid or dashed by program) and target (thin) in MiB over time."""
    samples = run["samples"]
    end_s = max(sample["at_s"] for sample in samples)
    bounded = [min(pages, most) for sample in samples for client in sample["clients"].values()
               for most in [client["used_pages"] * 4 + PAGES_MIB] for pages in [client["target_pages"] or 0]]
    used = [client["used_pages"] for sample in samples for client in sample["clients"].values()]
    top = max([1, *used, *bounded]) / PAGES_MIB * 1.05

    def point(at_s, pages):
        x = LEFT + (WIDTH - LEFT) * at_s / end_s
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(pages / PAGES_MIB / top, 1))
        return f"{x:.1f},{y:.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
             f'aria-label="{html.escape(run["policy"])}: memory of each client over time" font-size="11" '
             'font-family="system-ui, sans-serif" color="#777">']
    for share in 0, 0.5, 1:
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH}" stroke="#8886" stroke-width=".5"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:.0f}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">0 s</text>'
                 f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{end_s:.0f} s</text>'
                 f'<text x="4" y="{TOP + 10}">MiB</text>')
    for name, (colour, dashes) in LINES.items():
        had = [(sample["at_s"], sample["clients"][name]) for sample in samples if name in sample["clients"]]
        if not had:
            continue
        line = " ".join(point(at_s, client["used_pages"]) for at_s, client in had)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" '
                     f'stroke-dasharray="{dashes}"><title>{name}, used</title></polyline>')
        targets = [(at_s, client["target_pages"]) for at_s, client in had if client["target_pages"] is not None]
        line = " ".join(point(at_s, pages) for at_s, pages in targets)
        if line:
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width=".8" '
                         f'opacity=".7"><title>{name}, target</title></polyline>')
        x, y = point(*[(at_s, client["used_pages"]) for at_s, client in had][-1]).split(",")
        parts.append(f'<text x="{float(x) - 10:.1f}" y="{max(float(y) - 4, 12):.1f}" style="fill:{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"])


def write(out, scenarios, policies):
    """Writes report.html and the figures of what runs there are."""
    runs = load(out)
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
             f"<title>SmarTmem's scenarios</title><style>{STYLE}</style><h1>SmarTmem's scenarios</h1>"
             "<p>At a sixteenth of the paper's memory and a tenth of its time, as paged processes over one store and a disk. Thick lines are "
             "what each client holds, thin ones its target; colour and dashes tell the clients apart."]
    for name, scenario in scenarios.items():
        if name not in runs:
            continue
        by_policy = runs[name]
        count = min(map(len, by_policy.values()))
        parts += [f"<h2>{html.escape(scenario['title'])}</h2>",
                  f"<p>Store {scenario['store']}iB, smart-alloc with P = {scenario['p']} %, {count} runs each. "
                  f"The paper: {html.escape(scenario['paper'])}.",
                  table(by_policy, policies), "<div class=figures>"]
        for policy in policies:
            if policy != "none" and policy in by_policy:
                drawn = figure(by_policy[policy][0])
                (out / f"{name}-{policy}.svg").write_text(drawn + "\n")
                parts.append(f"<figure><figcaption>{policy}</figcaption>{drawn}</figure>")
        parts.append("</div>")
    (out / "report.html").write_text("\n".join(parts) + "\n")
    print(f"{out / 'report.html'}")
