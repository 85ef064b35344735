"""Learning curves of finished runs as an SVG and a table: success on held-out tasks over updates, and over the seconds that they took.

    python benchmarks/learning_curves.py policy=RUN,RUN,RUN --measure --svg docs/alfworld-curves.svg
    python benchmarks/learning_curves.py 'true reward=RUN,RUN' random=RUN --measure --figure score

A line is a name and its runs, which differ in their seed: thick the mean, thin each run. Points are the evaluations of a run, and with
--measure those of every checkpoint that it kept (`--set run.save_total_limit=null` keeps all), each measured once and kept beside the run.
Time is `cpu_seconds` of the steps in timings.jsonl, without demonstrations and evaluations; of runs that lack it, wall time, which the axis says.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from curve_plot import Curve, Panel, draw

from skill_ttrl.errors import DataError, SkillTTRLError
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.storage.files import write_atomic
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.results import Evaluation, read_evaluations
from skill_ttrl.types import from_json

FIGURES = {
    "greedy": "success, greedy",
    "accuracy": "success, sampled",
    "score": "score, sampled",
    "greedy_score": "score, greedy",
}
AXES = {"sft": "updates of imitation", "dagger": "updates of DAgger", "rl": "steps of GRPO", "vote_sft": "steps"}
QUICKLY = ("--set", "eval.controls=[]", "--set", "eval.extra_temperatures=[]", "--set", "eval.samples=1", "--json")


@dataclass(frozen=True)
class Point:
    """An evaluation of a run."""

    phase: str
    step: int
    """Updates of the phase that were done."""
    seconds: float
    """Of all phases up to there."""
    value: float


def main() -> int:
    """Measure what is missing, draw, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="+", metavar="NAME=RUN,...", help="a line of the figure and its runs")
    parser.add_argument("--figure", choices=FIGURES, default="greedy")
    parser.add_argument("--measure", action="store_true", help="evaluate the checkpoints that the runs kept")
    parser.add_argument(
        "--every", type=int, default=1, help="with --measure: only checkpoints at multiples of so many updates"
    )
    parser.add_argument("--svg", type=Path, help="write the figure here")
    options = parser.parse_args()
    try:
        runs = {
            name: [Path(run) for run in listed.split(",")]
            for name, _, listed in (each.partition("=") for each in options.lines)
        }
        kind = time_kind([run for each in runs.values() for run in each])
        found = {
            name: [read_points(run, options.figure, kind, options.measure and options.every) for run in each]
            for name, each in runs.items()
        }
    except SkillTTRLError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    if options.svg:
        write_atomic(options.svg, draw(panels(found, kind), FIGURES[options.figure]).encode())
    print(table(found, kind))
    return 0


def time_kind(runs: Sequence[Path]) -> str:
    """`cpu_seconds` where every run has it, else `seconds`: the two are never mixed in one figure."""
    rows = [row for run in runs for row in learning_times(run)]
    return "cpu_seconds" if rows and all("cpu_seconds" in row for row in rows) else "seconds"


def learning_times(run: Path) -> list[dict[str, float]]:
    """Lines of `timings.jsonl` of the phases that learn."""
    return [row for row in read_jsonl(run / "timings.jsonl") if row["phase"] in AXES]


def read_points(run: Path, figure: str, kind: str, every: int) -> list[Point]:
    """The evaluations of a run in the order of its updates; and of its checkpoints at multiples of `every` updates, unless that is 0.

    Raises:
        DataError: it has none, or lacks the figure.
    """
    steps, phases = read_summary(run).steps, [phase for phase in read_summary(run).steps if phase in AXES]
    last = phases[-1]
    placed = {
        (last, steps[last] if each.label == "after" else number): each
        for each in read_evaluations(run)
        if (number := step_of(each.label)) is not None
    }
    if every:
        for checkpoint in sorted((run / "checkpoints").glob("*-*")):
            phase, _, number = checkpoint.name.rpartition("-")
            if phase in AXES and int(number) % every == 0 and (phase, int(number)) not in placed:
                placed[phase, int(number)] = measured(checkpoint, run)
    spent = seconds_until(run, kind)
    order = {phase: place for place, phase in enumerate(phases)}
    points = []
    for (phase, step), evaluation in sorted(placed.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        value = getattr(evaluation, figure)
        if value is None:
            raise DataError(f"The evaluation {evaluation.label!r} of {run} has no {figure}. Choose another --figure.")
        points.append(Point(phase, step, spent[phase, step], value))
    if not points:
        raise DataError(f"{run} has no evaluation. --measure evaluates the checkpoints that it kept.")
    return points


def step_of(label: str) -> int | None:
    """Steps of the last phase at which an evaluation was taken; None for one that is no point of a curve."""
    if label in ("before", "after"):
        return 0
    return int(label.removeprefix("step ")) if label.startswith("step ") else None


def seconds_until(run: Path, kind: str) -> dict[tuple[str, int], float]:
    """By phase and updates done in it: seconds of all updates up to there."""
    found: dict[tuple[str, int], float] = {}
    spent = 0.0
    for row in learning_times(run):
        found.setdefault((str(row["phase"]), int(row["step"])), spent)
        spent += row[kind]
        found[str(row["phase"]), int(row["step"]) + 1] = spent
    return found


def measured(checkpoint: Path, run: Path) -> Evaluation:
    """The evaluation of a checkpoint, made once."""
    file = run.parent / f"{run.name}-curve" / f"{checkpoint.name}.json"
    if not file.is_file():
        words = ["evaluate", str(checkpoint), *QUICKLY]
        print(f"$ skillttrl {' '.join(words)}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "skill_ttrl.cli.main", *words], check=False, stdout=subprocess.PIPE
        )
        if done.returncode:
            raise DataError(f"{checkpoint} could not be measured, see above (exit code {done.returncode}).")
        file.parent.mkdir(exist_ok=True)
        write_atomic(file, done.stdout)
    return from_json(Evaluation, file.read_bytes())


def panels(found: Mapping[str, Sequence[Sequence[Point]]], kind: str) -> list[Panel]:
    """One panel a phase, by its updates, and one of the time that all took."""
    phases = [
        phase for phase in AXES if any(point.phase == phase for runs in found.values() for run in runs for point in run)
    ]
    drawn = []
    for phase in phases:
        curves = {
            name: [[(point.step, point.value) for point in run if point.phase == phase] for run in runs]
            for name, runs in found.items()
        }
        drawn.append(Panel(AXES[phase], as_curves(curves)))
    times = {name: [[(point.seconds, point.value) for point in run] for run in runs] for name, runs in found.items()}
    words = "CPU seconds of learning" if kind == "cpu_seconds" else "wall seconds of learning"
    return [*drawn, Panel(words, as_curves(times))]


def as_curves(found: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> list[Curve]:
    """The curve of each name; its mean is over the points that all of its runs have."""
    return [Curve(name, [list(run) for run in runs if run], mean_of(runs)) for name, runs in found.items() if any(runs)]


def mean_of(runs: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Mean place and mean value of the first, second, … point, where all runs have as many."""
    if len({len(run) for run in runs}) != 1:
        return []
    return [(fmean(at for at, _ in each), fmean(value for _, value in each)) for each in zip(*runs, strict=True)]


def table(found: Mapping[str, Sequence[Sequence[Point]]], kind: str) -> str:
    """Markdown: a row a point, the values of all runs side by side."""
    lines = [
        f"| line | phase | updates | {kind.replace('_', ' ')}, mean | values | mean |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        places = list(dict.fromkeys((point.phase, point.step) for run in runs for point in run))
        for phase, step in places:
            here = [point for run in runs for point in run if (point.phase, point.step) == (phase, step)]
            values = " ".join(f"{point.value:.3f}" for point in here)
            seconds = fmean(point.seconds for point in here)
            lines.append(
                f"| {name} | {phase} | {step} | {seconds:.0f} | {values} | {fmean(point.value for point in here):.3f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
