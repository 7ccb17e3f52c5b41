"""Charts of the memcached study as SVG: lines and grouped or stacked bars, readable on white and on black and without colours."""

import html
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 280, 56, 12, 40, 58
# Okabe and Ito's colours, which colour-blind people can tell apart, and dashes.
STYLES = [("#777777", ""), ("#d55e00", "8 3"), ("#0072b2", "2 3"), ("#009e73", "8 3 2 3"), ("#cc79a7", "4 2"), ("#e69f00", "1 2")]


def escape(text):
    return html.escape(str(text))


def ticks_of(most):
    """Round values from 0 to at least `most`, about five of them."""
    rough = max(most, 1e-9) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999) * power
    return [step * at for at in range(math.ceil(most / step - 1e-9) + 1)]


def shown(value):
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


class Chart:
    """A frame with a vertical scale from 0."""

    def __init__(self, title, up, across, most):
        self.values = ticks_of(most)
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
                      f'aria-label="{escape(title)}" font-size="11" font-family="system-ui, sans-serif" fill="#777">',
                      self.text(4, 14, title, 'font-weight="600" font-size="12"'), self.text(4, 30, up),
                      self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 30, across, 'text-anchor="middle"')]
        for value in self.values:
            y = self.height(value)
            self.parts += [f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#8886" stroke-width=".5"/>',
                           self.text(LEFT - 6, y + 4, shown(value), 'text-anchor="end"')]

    @staticmethod
    def text(x, y, text, more=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'

    def height(self, value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(value / self.values[-1], 0), 1))

    def tick(self, x, text):
        self.parts.append(self.text(x, HEIGHT - BOTTOM + 15, text, 'text-anchor="middle"'))

    def end(self, names):
        room = (WIDTH - LEFT - RIGHT) / max(len(names), 1)
        for at, name in enumerate(names):
            colour, dashes = STYLES[at % len(STYLES)]
            x, y = LEFT + room * at, HEIGHT - 10
            self.parts += [f'<path d="M{x:.1f} {y}h18" stroke="{colour}" stroke-width="3" stroke-dasharray="{dashes}"/>',
                           self.text(x + 22, y + 4, name)]
        return "\n".join([*self.parts, "</svg>"])


def lines(title, up, across, lines, most=None, logarithmic=False, dots=()):
    """Lines by name: lists of points. `dots` names those drawn as points alone."""
    points = [point for its in lines.values() for point in its]
    chart = Chart(title, up, across, most or max(y for _, y in points))
    at = math.log10 if logarithmic else float
    low, high = min(at(x) for x, _ in points), max(at(x) for x, _ in points)
    low = low if logarithmic else min(low, 0)

    def place(x):
        return LEFT + (WIDTH - LEFT - RIGHT) * (at(x) - low) / max(high - low, 1e-9)

    if logarithmic:
        marks = [10.0 ** power for power in range(math.ceil(low), math.floor(high) + 1)]
    else:
        marks = [mark for mark in ticks_of(high) if mark <= high]
    for mark in marks:
        chart.tick(place(mark), shown(mark))
    for number, (name, its) in enumerate(lines.items()):
        colour, dashes = STYLES[number % len(STYLES)]
        title = f"<title>{escape(name)}</title>"
        if name in dots:
            chart.parts += [f'<circle cx="{place(x):.1f}" cy="{chart.height(y):.1f}" r="4.5" fill="none" stroke="{colour}" '
                            f'stroke-width="2"><title>{escape(name)}: {shown(x)}, {y:.3g}</title></circle>' for x, y in its]
        else:
            path = " ".join(f"{place(x):.1f},{chart.height(y):.1f}" for x, y in its)
            chart.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
                               f'stroke-dasharray="{dashes}">{title}</polyline>')
    return chart.end(list(lines))


def bars(title, up, across, groups, stacked=False):
    """Groups by name: bars beside each other, or pieces on top of each other, by name."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    height_of = (lambda its: sum(max(it, 0) for it in its)) if stacked else max
    chart = Chart(title, up, across, max(height_of(group.values()) for group in groups.values()))
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    for at, (group, its) in enumerate(groups.items()):
        left, below = LEFT + room * (at + 0.15), 0
        chart.tick(left + room * 0.35, group)
        width = room * 0.7 / (1 if stacked else len(names))
        for name, value in its.items():
            number = names.index(name)
            x = left if stacked else left + width * number
            foot, top = chart.height(below), chart.height(below + max(value, 0))
            chart.parts.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{foot - top:.1f}" '
                               f'fill="{STYLES[number % len(STYLES)][0]}" stroke="#fff" stroke-width=".5">'
                               f'<title>{escape(group)}, {escape(name)}: {value:.3g}</title></rect>')
            below += max(value, 0) if stacked else 0
    return chart.end(names)
