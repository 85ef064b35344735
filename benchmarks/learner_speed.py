"""The learner's update: seconds, tokens a second and memory, against `trl.GRPOTrainer`; by length, batch, vocabulary and ranks.

    pip install trl==1.16.0
    python benchmarks/learner_speed.py versus                    # 102M parameters on a CPU; takes 10 GB
    python benchmarks/learner_speed.py sweep --plot docs         # length, prompt, batch, vocabulary: a plot of each
    python benchmarks/learner_speed.py ranks --plot docs         # 1, 2, 3 processes
    python benchmarks/learner_speed.py versus --device cuda --models 0.5b 1.5b     # on a GPU, with MFU
    python benchmarks/learner_speed.py versus --models toy --rounds 1              # that it works here: seconds

Every measurement is a process of its own (`learner_cases.py`): a Qwen2 with random weights takes the same random prompts, completions of
random lengths and advantages, and does one optimizer step a batch (GRPO's clipped loss, on-policy, no KL, AdamW, clip 1.0). The first step
is not counted. `ours` packs (`model.packing`), `padded` does not. `trl` is TRL's trainer whose generation returns the
stored completions; on a CPU its head scores prompts and padding too, so `trl_compact` lets it score completions alone, as it does on a
GPU. Kinds alternate, round after round; what is printed are medians, wall and CPU time, and the largest resident memory of
the process (on a GPU: the most that torch took of it).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from learner_cases import KINDS, Case, Row, WorkerDied, measured

TINY = Case(hidden=64, intermediate=128, layers=2, heads=2, vocabulary=512, prompt_tokens=32, shortest=4, longest=16)
MODELS: dict[str, Case] = {
    "toy": TINY,
    "102m": Case(),
    "0.5b": Case(hidden=896, intermediate=4864, layers=24, heads=14, samples=16, micro_batch=16, longest=1024),
    "1.5b": Case(hidden=1536, intermediate=8960, layers=28, heads=12, samples=16, micro_batch=16, longest=1024),
}
"""Shapes of Qwen2.5; the batches are larger where a GPU is meant."""
SMALL = Case(hidden=128, intermediate=384, layers=4, heads=4, vocabulary=16_000, prompt_tokens=256, longest=128)
"""Where the sweeps start: 3M parameters."""
SWEEPS: dict[str, tuple[str, str, list[Case]]] = {
    "length": (
        "tokens of the longest completion",
        "longest",
        [replace(SMALL, shortest=length // 4, longest=length) for length in (64, 128, 256, 512, 1024)],
    ),
    "prompt": (
        "tokens of the prompt",
        "prompt_tokens",
        [replace(SMALL, prompt_tokens=length) for length in (32, 128, 512, 1024, 2048)],
    ),
    "batch": (
        "samples a prompt",
        "samples",
        [replace(SMALL, samples=count, micro_batch=count) for count in (1, 2, 4, 8, 16, 32)],
    ),
    "vocabulary": (
        "tokens of the vocabulary",
        "vocabulary",
        [replace(SMALL, vocabulary=size) for size in (1_000, 4_000, 16_000, 50_000, 151_936)],
    ),
}
RANKS = Case(
    "ddp", layers=12, vocabulary=8_000, prompts=6, samples=4, prompt_tokens=96, shortest=16, longest=64, micro_batch=4
)
"""The case that several ranks share: 40M parameters, 4M of them in embedding and head, and 24 samples."""
COST = [("CPU seconds a step", "cpu_seconds", 1.0), ("peak memory (GB)", "peak_bytes", 1e-9)]
SHARE = [
    ("CPU seconds a step, one rank", "cpu_seconds", 1.0),
    ("weights + optimizer of a rank (GB)", "state_bytes", 1e-9),
    ("peak memory of a rank (GB)", "peak_bytes", 1e-9),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["versus", "sweep", "ranks"])
    parser.add_argument("names", nargs="*", help=f"what to sweep: {', '.join(SWEEPS)}; none: all of them")
    parser.add_argument("--rounds", type=int, help="default: 3; of a sweep 1")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="default: all; of a sweep, ours and padded")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["102m"], help="of versus")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of each process, the first not counted; default: 2, of a sweep 4")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write each sweep as an SVG file into it")
    options = parser.parse_args()
    if unknown := set(options.names) - set(SWEEPS):
        parser.error(f"there is no sweep {', '.join(sorted(unknown))}: {', '.join(SWEEPS)}")
    alone = options.what == "sweep"
    options.rounds, options.steps = options.rounds or (1 if alone else 3), options.steps or (4 if alone else 2)
    from gpu_recipe import hardware

    print(hardware())
    died = False
    if options.what == "versus":
        for model in options.models:
            died |= versus(model, options)
    elif options.what == "ranks":
        died = ranks(options)
    else:
        for name in options.names or SWEEPS:
            died |= sweep(name, options)
    sys.exit(1 if died else 0)


def versus(model: str, options: argparse.Namespace) -> bool:
    """One batch by each kind in turn, and ratios to TRL within each round; whether a process died."""
    kinds = options.kinds or [kind for kind in KINDS if options.device == "cpu" or kind != "trl_compact"]
    rounds: list[dict[str, Row]] = []
    print(f"{model}, {options.threads} threads, {options.steps - 1} counted steps a process")
    died = False
    try:
        for number in range(options.rounds):
            found: dict[str, Row] = {}
            for kind in kinds:
                found[kind] = measured(case_of(MODELS[model], kind, options))[0]
                print(f"round {number + 1}: {line(kind, found[kind])}", flush=True)
            rounds.append(found)
    except WorkerDied as error:
        print(f"Round {len(rounds) + 1} has no end. {error}", file=sys.stderr, flush=True)
        died = True
    if rounds:
        print("\n".join(table(kinds, rounds)))
    return died


def case_of(case: Case, kind: str, options: argparse.Namespace) -> Case:
    return replace(case, kind=kind, threads=options.threads, steps=options.steps, device=options.device)


def table(kinds: Sequence[str], rounds: Sequence[dict[str, Row]]) -> list[str]:
    """Medians with ranges over the rounds, and ratios to TRL's kinds."""
    lines = [
        "| kind | s/step | CPU s/step | tokens/s | peak GB | MFU | floor s |\n|---|---|---|---|---|---|---|",
        *(
            f"| {kind} | {spread([row[kind]['seconds'] for row in rounds])} "
            f"| {spread([row[kind]['cpu_seconds'] for row in rounds])} "
            f"| {spread([row[kind]['tokens_per_second'] for row in rounds], 0)} "
            f"| {spread([row[kind]['peak_bytes'] / 1e9 for row in rounds])} "
            f"| {optional([row[kind].get('mfu') for row in rounds])} | {optional([row[kind].get('floor') for row in rounds])} |"
            for kind in kinds
        ),
        "",
    ]
    ours, others = [[kind for kind in kinds if kind.startswith("trl") == theirs] for theirs in (False, True)]
    for kind, other in ((kind, other) for kind in ours for other in others):
        speed = [row[other]["seconds"] / row[kind]["seconds"] for row in rounds]
        work = [row[other]["cpu_seconds"] / row[kind]["cpu_seconds"] for row in rounds]
        memory = [row[kind]["peak_bytes"] / row[other]["peak_bytes"] for row in rounds]
        lines.append(
            f"{kind} against {other}: {spread(work)} times as fast by CPU time, {spread(speed)} by the clock, "
            f"{spread(memory)} of the peak memory"
        )
    return lines


def sweep(name: str, options: argparse.Namespace) -> bool:
    """Each case by each kind, round after round, as a table and a plot; whether a process died."""
    label, field, cases = SWEEPS[name]
    kinds = options.kinds or ["ours", "padded"]
    each = [(kind, float(getattr(case, field)), case_of(case, kind, options)) for case in cases for kind in kinds]
    found, died = repeated(each, options.rounds)
    print(f"\n| {label} | kind | s/step | CPU s/step | tokens/s | peak GB |\n|---|---|---|---|---|---|")
    series: dict[str, list[tuple[float, Row]]] = {}
    for (kind, size), rows in found.items():
        row = median([row for [row] in rows])
        series.setdefault(kind, []).append((size, row))
        print(
            f"| {size:.0f} | {kind} | {row['seconds']:.2f} | {row['cpu_seconds']:.2f} | {row['tokens_per_second']:.0f} "
            f"| {row['peak_bytes'] / 1e9:.2f} |"
        )
    draw_into(options.plot, name, label, COST, series)
    return died


def ranks(options: argparse.Namespace) -> bool:
    """One batch shared by 1, 2 and 3 ranks, replicated and sharded, as a table and a plot; whether a process died."""
    base = case_of(RANKS, "ddp", options)
    each = [(kind, float(count), replace(base, kind=kind, ranks=count)) for count in (2, 3) for kind in ("ddp", "fsdp")]
    found, died = repeated([("one process", 1.0, base), *each], options.rounds)
    print(
        "\n| ranks | kind | tokens of each | CPU s/step of each | sum of CPU s | s/step | weights + optimizer GB | peak GB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    series: dict[str, list[tuple[float, Row]]] = {"ddp": [], "fsdp": []}
    for (kind, size), rounds in found.items():
        own = [median([rows[rank] for rows in rounds]) for rank in range(round(size))]
        for row in own:
            row["state_bytes"] = row["weight_bytes"] + row["optimizer_bytes"]
        print(
            f"| {size:.0f} | {kind} | {listed(own, 'tokens', 1, 0)} | {listed(own, 'cpu_seconds', 1, 2)} "
            f"| {sum(row['cpu_seconds'] for row in own):.2f} | {max(row['seconds'] for row in own):.2f} "
            f"| {listed(own, 'state_bytes', 1e-9, 3)} | {listed(own, 'peak_bytes', 1e-9, 2)} |"
        )
        worst = {figure: max(row[figure] for row in own) for figure in own[0]}
        for line_ in series if kind == "one process" else [kind]:
            series[line_].append((size, worst))
    draw_into(options.plot, "ranks", "ranks", SHARE, series)
    return died


def repeated(
    cases: Sequence[tuple[str, float, Case]], rounds: int
) -> tuple[dict[tuple[str, float], list[list[Row]]], bool]:
    """The figures of each case's ranks, round after round, and whether a process died and ended it."""
    found: dict[tuple[str, float], list[list[Row]]] = {}
    try:
        for _ in range(rounds):
            for kind, size, case in cases:
                rows = measured(case)
                found.setdefault((kind, size), []).append(rows)
                print(f"at {size:g}: {'; '.join(line(kind, row) for row in rows)}", flush=True)
    except WorkerDied as error:
        print(error, file=sys.stderr, flush=True)
        return found, True
    return found, False


def draw_into(
    folder: Path | None,
    name: str,
    label: str,
    panels: Sequence[tuple[str, str, float]],
    series: dict[str, list[tuple[float, Row]]],
) -> None:
    if folder is None:
        return
    from speed_plot import draw

    path = folder / f"learner-speed-{name}.svg"
    path.write_text(draw(label, panels, series), encoding="utf-8")
    print(f"plot: {path}", flush=True)


def median(rows: Sequence[Row]) -> Row:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def line(kind: str, row: Row) -> str:
    return (
        f"{kind} {row['seconds']:.2f} s ({row['cpu_seconds']:.2f} CPU), {row['tokens_per_second']:.0f} tokens/s, "
        f"{row['peak_bytes'] / 1e9:.2f} GB"
    )


def listed(rows: Sequence[Row], figure: str, factor: float, digits: int) -> str:
    return ", ".join(f"{row[figure] * factor:.{digits}f}" for row in rows)


def optional(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return spread(known, 3) if known else "-"


def spread(values: Sequence[float], digits: int = 2) -> str:
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()
