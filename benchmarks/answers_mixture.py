"""Votes as models give them: a winner, a long tail of wrong answers, and several ways to write each.

Two thirds of the problems have numbers for answers, one third LaTeX of eleven kinds. The winner has 30 to 80 % of the samples;
the others go to wrong answers by Zipf's law; every fourth sample is written in another way that keeps its value
(`answers_rewrites.py`); one sample of fifty has no answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from answers_rewrites import REWRITES

WRONG = 40
"""Wrong answers that a problem has at most."""
REWRITTEN = 0.25
MISSING = 0.02
LATEX_SHARE = 1 / 3
STYLES = [
    "white space", r"\left, \right", r"\dfrac, \tfrac, \frac without braces", "slash for a fraction", "decimal for a fraction",
    "reordered sum", "reordered product", "roots", "exponents", "units", "thousands separators", "x = value", "math marks",
    "order and notation of a list", "± spelled out", "matrix",
]  # fmt: skip

Make = Callable[[random.Random], str]

NUMBERS: list[Make] = [
    lambda draw: str(draw.randint(-20, 1000)),
    lambda draw: str(draw.randint(1000, 10**6)),
    lambda draw: f"{draw.randint(0, 99)}.{draw.randint(1, 99):02}",
    lambda draw: f"{draw.randint(1, 60)}/{draw.randint(2, 60)}",
]
LATEX: list[Make] = [
    lambda draw: rf"\frac{{{draw.randint(1, 60)}}}{{{draw.randint(2, 60)}}}",
    lambda draw: rf"{draw.randint(2, 30)}\sqrt{{{draw.choice([2, 3, 5, 6, 7, 10, 11, 13])}}}",
    lambda draw: rf"{draw.randint(2, 90)}\pi",
    lambda draw: rf"\frac{{{draw.randint(2, 9)}\sqrt{{{draw.choice([2, 3, 5, 7])}}}}}{{{draw.randint(2, 9)}}}",
    lambda draw: f"{draw.randint(2, 9)}x^2+{draw.randint(2, 9)}x-{draw.randint(1, 9)}",
    lambda draw: f"({draw.randint(-9, 9)}, {draw.randint(-9, 9)})",
    lambda draw: f"[{draw.randint(-9, 0)}, {draw.randint(1, 9)})",
    lambda draw: f"{draw.randint(-9, 0)}, {draw.randint(1, 9)}",
    lambda draw: f"{draw.randint(1, 20)}+{draw.randint(2, 20)}i",
    lambda draw: rf"{draw.randint(1, 9)} \pm \sqrt{{{draw.choice([2, 3, 5, 7, 19])}}}",
    lambda draw: rf"\begin{{pmatrix}} {draw.randint(-9, 9)} \\ {draw.randint(-9, 9)} \end{{pmatrix}}",
]


def problem(draw: random.Random, samples: int, makes: list[Make]) -> list[str | None]:
    """The answers of one problem."""
    make = draw.choice(makes)
    answers = list(dict.fromkeys(make(draw) for _ in range(WRONG + 1)))
    share = draw.uniform(0.3, 0.8)
    zipf = [1 / rank for rank in range(1, len(answers))]
    weights = [share, *((1 - share) * weight / sum(zipf) for weight in zipf)]
    drawn: list[str | None] = []
    for answer in draw.choices(answers, weights, k=samples):
        if draw.random() < MISSING:
            drawn.append(None)
        else:
            drawn.append(rewritten(draw, answer) if draw.random() < REWRITTEN else answer)
    return drawn


def problems(seed: int, count: int, samples: int, *, latex: float = LATEX_SHARE) -> list[list[str | None]]:
    """The answers of `count` problems."""
    draw = random.Random(seed)
    return [problem(draw, samples, LATEX if draw.random() < latex else NUMBERS) for _ in range(count)]


def with_distinct(seed: int, count: int, samples: int, distinct: int) -> list[list[str | None]]:
    """Problems that have `distinct` answers each, all equally frequent, no two written alike."""
    draw = random.Random(seed)
    found: list[list[str | None]] = []
    for _ in range(count):
        makes = LATEX if draw.random() < LATEX_SHARE else NUMBERS
        answers: dict[str, None] = {}
        while len(answers) < distinct:
            answers[draw.choice(makes)(draw)] = None
        drawn: list[str | None] = [*answers] * (samples // distinct)
        draw.shuffle(drawn)
        found.append(drawn)
    return found


def rewritten(draw: random.Random, answer: str) -> str:
    """The answer in another way that keeps its value; itself where none applies."""
    for style in draw.sample(STYLES, 4):
        texts = [text for text in REWRITES[style](answer) if text != answer]
        if texts:
            return draw.choice(texts)
    return answer
