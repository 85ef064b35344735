"""Learning curves as an SVG file: panels of one scale from 0 to 1, in each a thick line a name and thin ones of its runs."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment
from speed_plot import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, scale_step

TEMPLATE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{ width }} {{ height }}" width="{{ width }}" height="{{ height }}">
<style>text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600;fill:#111}</style>
<rect width="100%" height="100%" fill="#fff"/>
{% for panel in panels %}<g transform="translate({{ panel.x }} 0)">
<text class="title" x="{{ left }}" y="18">{{ title }}</text>
{% for tick in panel.rows %}<path d="M{{ left }} {{ tick.at }}H{{ right }}" stroke="#e6e6e6"/><text x="{{ left - 6 }}" y="{{ tick.at + 4 }}" text-anchor="end">{{ tick.text }}</text>
{% endfor %}{% for tick in panel.columns %}<text x="{{ tick.at }}" y="{{ bottom + 17 }}" text-anchor="middle">{{ tick.text }}</text>
{% endfor %}<path d="M{{ left }} {{ top }}V{{ bottom }}H{{ right }}" fill="none" stroke="#999"/>
<text x="{{ (left + right) / 2 }}" y="{{ bottom + 36 }}" text-anchor="middle">{{ panel.label }}</text>
{% for line in panel.lines %}{% for run in line.runs %}<polyline points="{{ run }}" fill="none" stroke="{{ line.colour }}" stroke-width="1" stroke-opacity=".45"/>
{% endfor %}{% if line.mean %}<polyline points="{{ line.mean }}" fill="none" stroke="{{ line.colour }}" stroke-width="2.5"/>
{% endif %}<text x="{{ right - 6 }}" y="{{ bottom - 8 - 15 * loop.revindex0 }}" text-anchor="end" style="fill:{{ line.colour }}">{{ line.name }}</text>
{% endfor %}</g>
{% endfor %}</svg>
"""
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """A name's runs, and their mean."""

    name: str
    runs: list[Points]
    mean: Points
    """Empty: not drawn."""


@dataclass(frozen=True)
class Panel:
    """Curves over one axis."""

    label: str
    """What the axis counts."""
    curves: list[Curve]


def draw(panels: list[Panel], title: str) -> str:
    """An SVG image."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def up(value: float) -> float:
        return round(bottom - value * (bottom - TOP), 1)

    drawn = []
    for place, panel in enumerate(panels):
        most = max([at for curve in panel.curves for run in (*curve.runs, curve.mean) for at, _ in run] or [1.0]) or 1.0

        def joined(points: Points, most: float = most) -> str:
            return " ".join(f"{round(LEFT + at / most * (right - LEFT), 1)},{up(value)}" for at, value in points)

        step = scale_step(most)
        columns = [
            {
                "at": round(LEFT + count * step / most * (right - LEFT), 1),
                "text": f"{count * step:,.0f}" if step >= 1 else f"{count * step:g}",
            }
            for count in range(int(most / step + 1e-9) + 1)
        ]
        lines = [
            {
                "name": curve.name,
                "colour": COLOURS[number % len(COLOURS)],
                "runs": [joined(run) for run in curve.runs],
                "mean": joined(curve.mean),
            }
            for number, curve in enumerate(panel.curves)
        ]
        rows = [{"at": up(tenths / 10), "text": f"{tenths / 10:g}"} for tenths in range(0, 11, 2)]
        drawn.append({"x": place * WIDTH, "label": panel.label, "rows": rows, "columns": columns, "lines": lines})
    page = Environment(autoescape=True).from_string(TEMPLATE)
    size = {"width": WIDTH * len(panels), "height": HEIGHT, "left": LEFT, "right": right, "top": TOP, "bottom": bottom}
    return page.render(panels=drawn, title=title, **size)
