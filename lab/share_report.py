"""The report of long/guest-share: work and ratios as a table in Markdown, and each guest's size over time as SVG."""

import json
import statistics

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 220, 46, 24, 14
# Told apart by colour (Okabe and Ito's, which colour-blind people can tell) and by dashes.
LINES = [("#0072b2", ""), ("#d55e00", "7 3"), ("#009e73", "2 3")]
TITLES = {"auto": "Spillway: sections by virtio-mem", "fixed": "fixed equal shares", "balloon": "the same policy, by a balloon",
          "whole": "each guest has 2 GiB, all the time"}


def load(out):
    """All rounds by how memory moves."""
    rounds = {how: [] for how in TITLES}
    for path in sorted(out.glob("*.json")):
        it = json.loads(path.read_text())
        rounds[it["how"]].append(it)
    return rounds


def table(rounds):
    lines = ["| memory | rounds | work, median (least to most) | beside fixed shares | beside the balloon | programs killed | "
             "pages swapped in, median | stalled for memory, s, median |", "|---|---|---|---|---|---|---|---|"]
    middle = {how: statistics.median(it["total"] for it in its) for how, its in rounds.items() if its}
    for how in middle:
        totals = [it["total"] for it in rounds[how]]
        swapped = statistics.median(sum(it["swapped_in"]) for it in rounds[how])
        stalled_s = statistics.median(sum(phase["stalled_s"] for phase in it["phases"]) for it in rounds[how])
        ratios = [f"{middle[how] / middle[other]:.2f}" if other in middle else "–" for other in ("fixed", "balloon")]
        lines.append(f"| {TITLES[how]} | {len(totals)} | {middle[how]:.0f} ({min(totals)} to {max(totals)}) | {' | '.join(ratios)} | "
                     f"{sum(it['killed'] for it in rounds[how])} | {swapped:.0f} | {stalled_s:.1f} |")
    return "\n".join(lines) + "\n"


def figure(rounds):
    """Each guest's size over time, one picture above the other; the phases of the load as bars below."""
    shown = [(how, its[0]) for how, its in rounds.items() if its and "samples" in its[0]]
    end_s = max(it["samples"][-1][0] for _, it in shown)
    top = max(size for _, it in shown for sample in it["samples"] for size in sample[1:]) * 1.05
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT * len(shown)}" width="{WIDTH}" role="img" '
             'aria-label="Sizes of three guests over time" font-size="11" font-family="system-ui, sans-serif">']
    parts += [picture(how, it, HEIGHT * number, end_s, top) for number, (how, it) in enumerate(shown)]
    return "\n".join([*parts, "</svg>\n"])


def picture(how, it, offset, end_s, top):
    def x(at_s):
        return LEFT + (WIDTH - LEFT) * at_s / end_s

    def y(mib):
        return offset + TOP + (HEIGHT - TOP - BOTTOM) * (1 - mib / top)

    parts = [f'<text x="{LEFT}" y="{offset + 11}" font-weight="600">{TITLES[how]}</text>']
    for mib in range(0, int(top) + 1, 512):
        parts.append(f'<path d="M{LEFT} {y(mib):.1f}H{WIDTH}" stroke="#8886" stroke-width=".5"/>'
                     f'<text x="{LEFT - 6}" y="{y(mib) + 4:.1f}" text-anchor="end">{mib}</text>')
    for phase in it["phases"]:
        number = "abc".index(phase["guest"])
        left, right = x(phase["at_s"]), x(min(phase["at_s"] + it["phase_s"], end_s))
        parts.append(f'<rect x="{left:.1f}" y="{y(0) + 4:.1f}" width="{right - left:.1f}" height="12" fill="{LINES[number][0]}"/>'
                     f'<text x="{left + 4:.1f}" y="{y(0) + 14:.1f}" fill="#fff">{phase["guest"]} works</text>')
    for number, (colour, dashes) in enumerate(LINES):
        points, before = [], None
        for at_s, *sizes in it["samples"]:
            # A step, not a slope.
            if before is not None:
                points.append(f"{x(at_s):.1f},{y(before):.1f}")
            before = sizes[number]
            points.append(f"{x(at_s):.1f},{y(before):.1f}")
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}">'
                     f'<title>{"abc"[number]}, MiB</title></polyline>')
    return "\n".join(parts)


def write(out):
    rounds = load(out)
    text = table(rounds)
    (out / "ratios.md").write_text(text)
    (out / "guest-share.svg").write_text(figure(rounds))
    print(text)
