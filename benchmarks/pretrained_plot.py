"""Draw the table of quickstart_pretrained's runs (docs/quickstart-results.md): avg@16 before and after training, by seed.

python benchmarks/pretrained_plot.py docs/quickstart-pretrained.svg
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

from speed_plot import COLOURS

TABLE = Path(__file__).parents[1] / "docs" / "quickstart-results.md"
NUMBER = r"[-+]?\d\.\d+"
ARMS = {
    "true labels": "true labels",
    "votes": "votes, no labels",
    "SFT": "imitation of the votes",
    "random": "random reward",
}
LEFT, WIDTH, PITCH, TOP = 160, 620, 17, 42


def across(value: float) -> float:
    """Where an accuracy stands."""
    return round(LEFT + value * (WIDTH - LEFT - 20), 1)


def draw(table: str) -> str:
    """An SVG image of the table's rows: a ring for before, a dot for after, and the interval of the change."""
    lines = table.partition("## A pretrained model")[2].partition("\n## ")[0].splitlines()
    header, rows = (line.split("|") for line in lines if line.startswith("| run")), [line.split("|") for line in lines]
    start = [float(number) for number in re.findall(NUMBER, next(header)[2])]
    body, y = list[str](), TOP
    for number, (arm, name) in enumerate(ARMS.items()):
        colour, first = COLOURS[(3, 0, 1, 2)[number]], y
        cells = next(row for row in rows if len(row) > 3 and row[1].strip().startswith(arm) and "LoRA" not in row[1])
        ends, changes = ([float(number) for number in re.findall(NUMBER, cell)] for cell in cells[2:4])
        for before, after, low, high in zip(start, ends, changes[1::3], changes[2::3], strict=True):
            body += [
                f'<path d="M{across(before)} {y}H{across(after)}" stroke="{colour}" stroke-opacity=".35" stroke-width="3"/>',
                f'<path d="M{across(before + low)} {y}H{across(before + high)}" stroke="{colour}"/>',
                f'<circle cx="{across(before)}" cy="{y}" r="3.5" fill="#fff" stroke="#777"/>',
                f'<circle cx="{across(after)}" cy="{y}" r="4.5" fill="{colour}"/>',
            ]
            y += PITCH
        middle = (first + y - PITCH) / 2 + 4
        body.append(f'<text x="{LEFT - 12}" y="{middle}" text-anchor="end" fill="{colour}">{escape(name)}</text>')
        y += 8
    grid = [
        f'<path d="M{across(tenth / 10)} {TOP - 12}V{y - 10}" stroke="#e6e6e6"/>'
        f'<text x="{across(tenth / 10)}" y="{y + 6}" text-anchor="middle" fill="#444">{tenth / 10:g}</text>'
        for tenth in range(0, 11, 2)
    ]
    title = "SmolLM2-135M: avg@16 before (ring) and after (dot) 12 steps, by seed"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 16}" width="{WIDTH}" height="{y + 16}" font-family="system-ui,sans-serif" font-size="12">'
    text = f'<text x="12" y="18" fill="#111" font-weight="600">{title}</text>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', text, *grid, *body, "</svg>", ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(TABLE.read_text(encoding="utf-8")), encoding="utf-8")
