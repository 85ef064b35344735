"""Times of whole votes: ours, math-verify over distinct answers and representatives, its full pairwise loop, counting strings."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from answers_mixture import problems, with_distinct
from answers_reference import Reference

from skill_ttrl.answers import canonical, counters
from skill_ttrl.voting import batch_majority_vote

Votes = Sequence[Sequence[str | None]]
PAIRWISE_SECONDS = 1200.0
REPEATS = 5


def measure(count: int, samples: int, pairwise: int, chunks: int, seed: int) -> list[str]:
    """All tables of speed as lines of Markdown. Every answer that is timed is new to whoever is timed, but for its own repetitions."""
    began = time.perf_counter()
    canonical("x+y")
    started = time.perf_counter() - began
    reference = Reference()
    lines = [
        f"{os.cpu_count()} cores ({platform.processor() or platform.machine()}), Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}.",
        "",
    ]
    lines += side_by_side(reference, problems(seed, count, samples), chunks, started)
    lines += all_pairs(reference, problems(seed + 1, pairwise, samples))
    reference.close()
    return [
        *lines,
        *numbers(count, samples, seed),
        *growth(seed),
        "",
        f"The worker started in {started:.2f} s, once. Decided: {dict(sorted(counters().items()))}.",
    ]


def side_by_side(reference: Reference, groups: Votes, chunks: int, started: float) -> list[str]:
    """Ours, math-verify with representatives and counting strings on the same problems, in turns."""
    size = -(-len(groups) // chunks)
    rows: list[tuple[float, float, float]] = []
    equal = 0
    for begin in range(0, len(groups), size):
        chunk = groups[begin : begin + size]
        ours, votes = timed(lambda chunk=chunk: batch_majority_vote(chunk))
        theirs, found = asked(reference, {"representatives": present(chunk)}, PAIRWISE_SECONDS)
        strings, _ = timed(
            lambda chunk=chunk: [Counter(one for one in group if one is not None).most_common(1) for group in chunk]
        )
        rows.append((ours, theirs, strings))
        equal += sum([vote.classes[0][1]] == sizes for vote, sizes in zip(votes, found, strict=True))
        print(f"\r{begin + len(chunk)} of {len(groups)} problems", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    total = [sum(column) for column in zip(*rows, strict=True)]
    answers = sum(len(group) for group in groups)
    distinct = sum(len(set(group) - {None}) for group in groups)
    ratios = sorted(theirs / ours for ours, theirs, _ in rows)
    lines = [f"{len(groups)} problems x {len(groups[0])} samples, {distinct / len(groups):.1f} distinct answers a problem, in {len(rows)} turns. "
             f"The winner has as many votes for both on {equal} problems.", ""]  # fmt: skip
    lines += ["| method | seconds | answers/s | times ours |", "|---|---|---|---|"]
    named = [
        ("ours", total[0]),
        ("ours with the worker's start", total[0] + started),
        ("math-verify, distinct answers and representatives", total[1]),
        ("counting strings", total[2]),
    ]
    lines += [
        f"| {name} | {seconds:.2f} | {answers / seconds:,.0f} | {seconds / total[0]:.3g} |" for name, seconds in named
    ]
    lines += ["", f"math-verify over ours, turn by turn: median {median(ratios):.1f}, least {ratios[0]:.1f}, most {ratios[-1]:.1f}; "
              f"over ours with the worker's start, in all: {total[1] / (total[0] + started):.1f}.", ""]  # fmt: skip
    return lines


def all_pairs(reference: Reference, groups: Votes) -> list[str]:
    """Ours against every pair of samples."""
    rows = []
    for group in groups:
        ours, _ = timed(lambda group=group: batch_majority_vote([group]))
        theirs, _ = asked(reference, {"pairwise": present([group])}, PAIRWISE_SECONDS)
        rows.append((ours, theirs))
    ratios = sorted(theirs / ours for ours, theirs in rows)
    ours, theirs = (sum(column) for column in zip(*rows, strict=True))
    return [f"Every pair of samples, {len(groups)} problems, each parsed once: math-verify {theirs:.1f} s, ours {ours:.3f} s, in all {theirs / ours:.0f} times; "
            f"problem by problem: median {median(ratios):.0f}, least {ratios[0]:.0f}, most {ratios[-1]:.0f}.", ""]  # fmt: skip


def numbers(count: int, samples: int, seed: int) -> list[str]:
    """Where all answers are numbers."""
    rates = []
    for repeat in range(REPEATS):
        groups = problems(seed + 100 + repeat, count, samples, latex=0)
        seconds, _ = timed(lambda groups=groups: batch_majority_vote(groups))
        rates.append(count * samples / seconds)
    return [
        f"Numbers only, {count} problems x {samples}, {REPEATS} times with new answers: median {median(rates):,.0f} answers/s, least {min(rates):,.0f}.",
        "",
    ]


def growth(seed: int) -> list[str]:
    """Cost against the number of samples, and against the number of distinct answers."""
    lines = ["| samples | distinct answers | ms a problem | µs a sample |", "|---|---|---|---|"]
    shapes = [(16, 8), (64, 8), (256, 8), (1024, 8), (256, 2), (256, 32), (256, 128)]
    for number, (samples, distinct) in enumerate(shapes):
        seconds = []
        for repeat in range(REPEATS):
            groups = with_distinct(seed + 1000 + 10 * number + repeat, 40, samples, distinct)
            seconds.append(timed(lambda groups=groups: batch_majority_vote(groups))[0] / len(groups))
        lines.append(
            f"| {samples} | {distinct} | {1e3 * median(seconds):.2f} | {1e6 * median(seconds) / samples:.1f} |"
        )
    return lines


def present(groups: Votes) -> list[list[str]]:
    return [[answer for answer in group if answer is not None] for group in groups]


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def asked(reference: Reference, request: dict[str, Any], seconds: float) -> tuple[float, Any]:
    """math-verify's own time for the request, without its way there and back."""
    reply = reference.ask(request, seconds)
    if reply is None:
        raise SystemExit(f"math-verify gave no answer in {seconds:g} s. Try another --seed.")
    return reply["seconds"], reply["votes"]
