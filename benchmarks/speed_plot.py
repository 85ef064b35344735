"""Lines over a logarithmic axis as an SVG file: cost by size, a panel for each figure, a line for each kind."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jinja2 import Environment

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 380, 250, 58, 26, 30, 44
COLOURS = ("#1f6feb", "#bf4b00", "#57606a", "#1a7f37")
TEMPLATE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{ width }} {{ height }}" width="{{ width }}" height="{{ height }}">
<style>text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600;fill:#111}</style>
<rect width="100%" height="100%" fill="#fff"/>
{% for panel in panels %}<g transform="translate({{ panel.x }} 0)">
<text class="title" x="{{ left }}" y="18">{{ panel.title }}</text>
{% for tick in panel.rows %}<path d="M{{ left }} {{ tick.at }}H{{ right }}" stroke="#e6e6e6"/><text x="{{ left - 6 }}" y="{{ tick.at + 4 }}" text-anchor="end">{{ tick.text }}</text>
{% endfor %}{% for tick in panel.columns %}<text x="{{ tick.at }}" y="{{ bottom + 17 }}" text-anchor="middle">{{ tick.text }}</text>
{% endfor %}<path d="M{{ left }} {{ top }}V{{ bottom }}H{{ right }}" fill="none" stroke="#999"/>
<text x="{{ (left + right) / 2 }}" y="{{ bottom + 36 }}" text-anchor="middle">{{ label }}</text>
{% for line in panel.lines %}<polyline points="{{ line.points }}" fill="none" stroke="{{ line.colour }}" stroke-width="2"/>
{% for dot in line.dots %}<circle cx="{{ dot[0] }}" cy="{{ dot[1] }}" r="3" fill="{{ line.colour }}"/>{% endfor %}
<text x="{{ left + 10 }}" y="{{ top + 14 + 15 * loop.index0 }}" style="fill:{{ line.colour }}">{{ line.name }}</text>
{% endfor %}</g>
{% endfor %}</svg>
"""

Series = dict[str, list[tuple[float, dict[str, float]]]]
"""By kind: (size, figures) of each point."""


def draw(label: str, panels: Sequence[tuple[str, str, float]], series: Series) -> str:
    """An SVG image; a panel is (title, figure, factor)."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    sizes = sorted({size for points in series.values() for size, _ in points})
    low, high = math.log(sizes[0]), math.log(sizes[-1])

    def across(size: float) -> float:
        return round(LEFT + (math.log(size) - low) / max(high - low, 1e-9) * (right - LEFT), 1)

    drawn = []
    for place, (title, figure, factor) in enumerate(panels):
        most = max(row[figure] * factor for points in series.values() for _, row in points)
        step = scale_step(most)
        top_value = step * math.ceil(most / step)

        def up(value: float, top_value: float = top_value) -> float:
            return round(bottom - value / top_value * (bottom - TOP), 1)

        lines = []
        for number, (kind, points) in enumerate(series.items()):
            dots = [
                (across(size), up(row[figure] * factor)) for size, row in sorted(points, key=lambda point: point[0])
            ]
            joined = " ".join(f"{x},{y}" for x, y in dots)
            lines.append({"name": kind, "colour": COLOURS[number % len(COLOURS)], "dots": dots, "points": joined})
        rows = [{"at": up(step * count), "text": f"{step * count:g}"} for count in range(round(top_value / step) + 1)]
        columns = [
            {"at": across(size), "text": f"{size:g}" if size < 10_000 else f"{size / 1000:g}k"} for size in sizes
        ]
        drawn.append({"x": place * WIDTH, "title": title, "rows": rows, "columns": columns, "lines": lines})
    page = Environment(autoescape=True).from_string(TEMPLATE)
    return page.render(
        width=WIDTH * len(panels),
        height=HEIGHT,
        panels=drawn,
        label=label,
        left=LEFT,
        right=right,
        top=TOP,
        bottom=bottom,
    )


def scale_step(most: float) -> float:
    """Distance of the lines of a scale: 1, 2 or 5 times a power of ten, for four to ten of them."""
    power = 10.0 ** math.floor(math.log10(most))
    return next(size * power for size in (0.1, 0.2, 0.5, 1.0, 2.0) if most / (size * power) <= 8)
