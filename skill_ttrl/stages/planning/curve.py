"""Throughput from 1 to 1,000 GPUs: the plan's config, the same with the advised setting, and with a batch that grows; as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jinja2 import Environment

from skill_ttrl.stages.planning.advice import bottleneck
from skill_ttrl.stages.planning.memory import memory_by_rank
from skill_ttrl.stages.planning.problem import Problem
from skill_ttrl.stages.planning.simulate import simulate

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
GPUS_OF_NODE = 8
"""Of the machines that a curve adds, where the plan is for GPUs."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 70, 20, 60, 50
LINES = ("#1f6feb", "#bf4b00", "#1a7f37")
PARTS_COLOURS = {
    "generation": "#1f6feb",
    "environment": "#1a7f37",
    "update": "#bf4b00",
    "transfer": "#8250df",
    "records": "#57606a",
}
TEMPLATE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{ width }} {{ height }}" width="{{ width }}" height="{{ height }}">
<style>text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600;fill:#111}</style>
<rect width="100%" height="100%" fill="#fff"/>
<text class="title" x="{{ left }}" y="18">{{ title }}</text>
<text x="{{ left }}" y="34">rollouts a second; the colour of a dot is the bottleneck:{% for part in parts %} <tspan style="fill:{{ part[1] }}">● {{ part[0] }}</tspan>{% endfor %}</text>
{% for tick in rows %}<path d="M{{ left }} {{ tick[0] }}H{{ right }}" stroke="#e6e6e6"/><text x="{{ left - 6 }}" y="{{ tick[0] + 4 }}" text-anchor="end">{{ tick[1] }}</text>
{% endfor %}{% for tick in columns %}<text x="{{ tick[0] }}" y="{{ bottom + 17 }}" text-anchor="middle">{{ tick[1] }}</text>
{% endfor %}<path d="M{{ left }} {{ top }}V{{ bottom }}H{{ right }}" fill="none" stroke="#999"/>
<text x="{{ (left + right) / 2 }}" y="{{ bottom + 38 }}" text-anchor="middle">GPUs</text>
{% for line in lines %}<polyline points="{{ line.points }}" fill="none" stroke="{{ line.colour }}" stroke-width="2"{% if not loop.first %} stroke-dasharray="{{ 6 - 2 * loop.index0 }} 4"{% endif %}/>
{% for dot in line.dots %}<circle cx="{{ dot[0] }}" cy="{{ dot[1] }}" r="4" fill="{{ dot[2] }}"><title>{{ dot[3] }}</title></circle>
{% endfor %}<text x="{{ left + 10 }}" y="{{ top + 14 + 16 * loop.index0 }}" style="fill:{{ line.colour }}">{{ line.name }}</text>
{% endfor %}</svg>
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One number of GPUs."""

    gpus: int
    step_seconds: float
    rollouts_per_second: float
    bottleneck: str


def scaled(problem: Problem, gpus: int) -> Problem | None:
    """The problem on another number of GPUs, shared out as before; None where that does not come out even, or does not fit."""
    machine, width = problem.machine, problem.machine.tensor_parallel
    per_node = max(machine.per_node, 1 if machine.device is None else GPUS_OF_NODE)
    nodes = math.ceil(gpus / per_node)
    alone = machine.rollout_gpus and max(width, round(machine.rollout_gpus / machine.gpus * gpus / width) * width)
    if alone >= gpus or (alone or gpus) < width or gpus % nodes:
        return None
    other = replace(problem, machine=replace(machine, gpus=gpus, nodes=nodes, rollout_gpus=alone))
    return other if all(each.fits for each in memory_by_rank(other)) else None


def growing(problem: Problem, gpus: int) -> Problem:
    """The problem with as many tasks for each GPU as the plan has, in a step and, where that counts tasks, in a mini-batch."""
    rl, scale = problem.config.rl, gpus / problem.machine.gpus
    other = problem.with_setting("rl.prompts_per_step", max(1, round(rl.prompts_per_step * scale)))
    if rl.mini_batch_size is None or rl.mini_batch_by == "samples":
        return other
    return other.with_setting("rl.mini_batch_size", max(1, round(rl.mini_batch_size * scale)))


def curve(problem: Problem, *, grows: bool = False, counts: Sequence[int] = COUNTS) -> list[Point]:
    """Simulate each number of GPUs on which the problem fits; `grows`: with `growing` batches."""
    return list(_points(problem, grows, counts))


def _points(problem: Problem, grows: bool, counts: Sequence[int]) -> Iterator[Point]:
    for gpus in counts:
        other = scaled(growing(problem, gpus) if grows else problem, gpus)
        if other is not None:
            loop = other.loop()
            seconds = simulate(loop).step_seconds
            yield Point(gpus, seconds, loop.rollouts / seconds, bottleneck(loop))


def draw(title: str, lines: dict[str, list[Point]]) -> str:
    """An SVG image of curves, by name; both axes are logarithmic."""
    points = [point for line in lines.values() for point in line]
    low = math.floor(math.log10(min(point.rollouts_per_second for point in points)))
    high = max(low + 1, math.ceil(math.log10(max(point.rollouts_per_second for point in points))))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(gpus: int) -> float:
        return round(LEFT + math.log(gpus) / math.log(COUNTS[-1]) * (right - LEFT), 1)

    def up(rate: float) -> float:
        return round(bottom - (math.log10(rate) - low) / (high - low) * (bottom - TOP), 1)

    def dot(point: Point) -> tuple[float, float, str, str]:
        words = f"{point.gpus} GPUs: {point.rollouts_per_second:.3g} rollouts/s, {point.step_seconds:.3g} s a step, {point.bottleneck}"
        return across(point.gpus), up(point.rollouts_per_second), PARTS_COLOURS[point.bottleneck], words

    drawn = []
    for number, (name, line) in enumerate(lines.items()):
        dots = [dot(point) for point in line]
        joined = " ".join(f"{x},{y}" for x, y, *_ in dots)
        drawn.append({"name": name, "colour": LINES[number % len(LINES)], "dots": dots, "points": joined})
    return (
        Environment(autoescape=True)
        .from_string(TEMPLATE)
        .render(
            width=WIDTH,
            height=HEIGHT,
            left=LEFT,
            right=right,
            top=TOP,
            bottom=bottom,
            title=title,
            parts=list(PARTS_COLOURS.items()),
            rows=[(up(10.0**power), f"{10.0**power:g}") for power in range(low, high + 1)],
            columns=[(across(gpus), str(gpus)) for gpus in COUNTS],
            lines=drawn,
        )
    )
