"""The scenarios' report: running times and each program's memory over time, as one HTML page and as SVG; and ratios
with their confidence intervals as a table in Markdown."""

import html
import json
import math
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


# Student's t for 95 %, two-sided, by degrees of freedom; the last is for more.
T_95 = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09]


def of_program(run, program):
    """One figure of a program's times: their sum."""
    return sum(seconds for name, seconds in times(run).items() if name.split()[0] == program)


def of_all(run):
    """One figure of all programs: none of them counts more for being longer."""
    return statistics.geometric_mean([of_program(run, program) for program in run["programs"]])


def ratio(runs, others, figure):
    """The ratio of geometric means over runs, and by which factor it may be off either way (Welch's interval of the
    logarithms, 95 %)."""
    sides = [[math.log(figure(run)) for run in its] for its in (runs, others)]
    ratio = math.exp(statistics.mean(sides[0]) - statistics.mean(sides[1]))
    if min(map(len, sides)) < 2:
        return ratio, None
    parts = [statistics.variance(side) / len(side) for side in sides]
    freedom = sum(parts) ** 2 / sum(part ** 2 / (len(side) - 1) for part, side in zip(parts, sides)) if sum(parts) else 1
    t = T_95[min(max(int(freedom), 1), len(T_95)) - 1]
    return ratio, math.exp(t * math.sqrt(sum(parts)))


def interval(ratio_and_factor):
    ratio, factor = ratio_and_factor
    return f"{ratio:.2f}" if factor is None else f"{ratio:.2f} ({ratio / factor:.2f} to {ratio * factor:.2f})"


def comparable(by_policy):
    """Runs cut to what all of them have: an amount that usemem reached in each."""
    every = [times(run) for runs in by_policy.values() for run in runs]
    names = set.intersection(*[set(it) for it in every])

    def cut(run):
        def keep(program, event):
            return event["event"] != "walk" or f"{program} {event['result']} MiB" in names
        programs = {program: {**said, "events": [event for event in said["events"] if keep(program, event)]}
                    for program, said in run["programs"].items()}
        return {**run, "programs": programs}
    return {policy: [cut(run) for run in runs] for policy, runs in by_policy.items()}


def ratio_tables(runs, scenarios, policies):
    """Two tables in Markdown: each policy beside greedy and beside no store, by program; and utility beside the best of the
    paper's four."""
    lines = ["| scenario, program | greedy / none | " + " | ".join(
        f"{policy} / {other}" for policy in policies[2:] for other in ("greedy", "none")) + " |"]
    lines.append("|" + "---|" * (2 * len(policies) - 2))
    best = ["| scenario | best of the paper's, by the mean of all programs | utility / best, mean | utility / best, worst program |", "|---|---|---|---|"]
    for name in scenarios:
        if name not in runs or set(runs[name]) != set(policies):
            continue
        by_policy = comparable(runs[name])
        programs = sorted(by_policy["none"][0]["programs"])
        for program in programs:
            def it(policy, other):
                return interval(ratio(by_policy[policy], by_policy[other], lambda run: of_program(run, program)))
            cells = [it("greedy", "none")] + [it(policy, other) for policy in policies[2:] for other in ("greedy", "none")]
            lines.append(f"| {name}, {program} | " + " | ".join(cells) + " |")
        paper = [policy for policy in policies if policy not in ("none", "utility")]
        base = min(paper, key=lambda policy: statistics.geometric_mean([of_all(run) for run in by_policy[policy]]))

        def worst(run):
            """The slowdown of the program that loses most beside its mean without the store."""
            return max(of_program(run, program) / statistics.geometric_mean(
                [of_program(it, program) for it in by_policy["none"]]) for program in programs)
        best.append(f"| {name} | {base} | {interval(ratio(by_policy['utility'], by_policy[base], of_all))} | "
                    f"{interval(ratio(by_policy['utility'], by_policy[base], worst))} |")
    return "\n".join(lines) + "\n\n" + "\n".join(best) + "\n"


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
             "<p>At a thirty-second of the paper's memory (usemem: a sixteenth) and a twentieth of its time, as paged processes over one store and a disk. Thick lines are "
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
    (out / "ratios.md").write_text(ratio_tables(runs, scenarios, policies))
    (out / "report.html").write_text("\n".join(parts) + "\n")
    print(f"{out / 'report.html'}")
