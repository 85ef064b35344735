"""The summary of a run, made from what it has written, and its page: the summary's table and lines, a curve for every metric, the last episodes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from pydantic import ValidationError

from skill_ttrl.commands.reports.compare import HEADLINES
from skill_ttrl.commands.reports.summary_text import closing_lines, summary_table, summary_title, turn_parts
from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.folder import RunFolder, metric_rows, read_run_json
from skill_ttrl.runs.reader import Run as StoredRun
from skill_ttrl.runs.reader import read_run
from skill_ttrl.runs.summary import Summary
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.statistics import paired_difference
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.metrics import bank_votes, bank_warning
from skill_ttrl.train.results import NO_SKILLS, Evaluation, control_warning
from skill_ttrl.train.run import Run, stopped_by
from skill_ttrl.train.tasks import ConfigTasks
from skill_ttrl.types import Trajectory, first_problem, from_json


def summarise(run: Run, *, failed: str | None = None) -> Summary:
    """Sum up a run from what it has written; `failed` is the reason that a phase stopped early."""
    config, path = run.config, run.folder.path
    evaluations, bank = run.meter.evaluations, run.components.bank
    before, after, bank_off = (evaluations.get(label) for label in ("before", "after", NO_SKILLS))
    measured = after or before
    assert measured is not None  # every run ends with an evaluation
    votes = config.rl.reward != "env" or measured.majority_ratio is not None
    rows = metric_rows(path)
    voted = [row for row in rows if row.get("majority_ratio") is not None]
    last = voted[-1] if voted else {}
    trained_on, measured_on = ConfigTasks(config).names
    made = read_run_json(path)
    intervals = _intervals(before, after, bank_off)
    control = bank_votes(after, bank_off) if votes else {}
    signs = (
        control_warning(evaluations),
        bank_warning(control, intervals.get("majority_gain")),
    )
    return Summary(
        name=config.name,
        seed=config.seed,
        reward=config.rl.reward,
        vote=config.vote.chosen[0],
        algorithm=config.rl.algorithm["type"] if config.reinforces else "",
        loss=config.rl.loss["type"] if config.reinforces else "",
        transductive=run.meter.transductive,
        problems=measured.problems,
        samples=measured.samples,
        temperature=measured.temperature,
        trained_on=trained_on,
        measured_on=measured_on,
        accuracy_no_skills=bank_off.accuracy if bank_off else None,
        bank_votes=control,
        no_controls=measured.no_controls,
        intervals=intervals,
        label_accuracy=last.get("label_accuracy"),
        majority_ratio=last.get("majority_ratio") if votes else None,
        mean_label_accuracy=_mean(voted, "label_accuracy"),
        mean_majority_ratio=_mean(voted, "majority_ratio") if votes else None,
        vote_steps=len(voted) if votes else 0,
        flip_rate=_mean(voted, "flip_rate"),
        steps={phase: sum(row["phase"] == phase for row in rows) for phase in config.learning_phases},
        seconds=_seconds(path),
        warnings=[*run.warn.texts, *(each for each in signs if each is not None)],
        stopped=failed or (stopped_by(run.log.rows("rl"), config.rl, config.rl.steps) if config.reinforces else None),
        versions={"skill-ttrl": made["skill_ttrl"], "python": made["python"], **made["libraries"]},
        usage=run.ledger.report(),
        **({} if bank is None else bank.summary()),
        **_figures("before", before),
        **_figures("after", after),
    )


def _figures(when: str, found: Evaluation | None) -> dict[str, Any]:
    """Fields of the summary for one evaluation; none where it was not taken."""
    if found is None:
        return {}
    names = ("accuracy", "majority", "entropy", "greedy", "score", "skill_use", "pass_at_k")
    figures: dict[str, Any] = {name: getattr(found, name) for name in names}
    figures["by_type"] = {kind: each.accuracy for kind, each in found.by_type.items()}
    figures["accuracy_by_temperature"] = found.by_temperature
    figures["controls"] = {name: control.accuracy for name, control in found.controls.items()}
    return {f"{name}_{when}": value for name, value in figures.items()}


def _intervals(
    before: Evaluation | None, after: Evaluation | None, bank_off: Evaluation | None
) -> dict[str, tuple[float, float]]:
    found = {}
    for name, evaluation in (("before", before), ("after", after)):
        for figure in HEADLINES:
            interval = getattr(evaluation, f"{figure}_interval") if evaluation else None
            if interval is not None:
                found[f"{figure}_{name}"] = interval
        for agent, control in evaluation.controls.items() if evaluation else ():
            found[f"control_{agent}_{name}"] = control.interval
    pairs = {f"{name}_change": (name, before, after) for name in HEADLINES}
    pairs |= {"skill_gain": ("accuracy", bank_off, after), "majority_gain": ("majority", bank_off, after)}
    for name, (figure, one, other) in pairs.items():
        if one and other and getattr(one, figure) is not None and getattr(other, figure) is not None:
            of = HEADLINES[figure]
            _, low, high = paired_difference(
                [of(result) or 0.0 for result in one.results],
                [of(result) or 0.0 for result in other.results],
            )
            found[name] = (low, high)
    return found


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Mean of a figure over the steps that have it; None where none has."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else None


def _seconds(path: Path) -> dict[str, float]:
    """Wall time by phase and, within a reinforcement step, by part."""
    total: dict[str, float] = defaultdict(float)
    for row in read_jsonl(path / "timings.jsonl"):
        for name, value in row.items():
            if name == "seconds":
                total[row["phase"]] += value
            elif name.endswith("_seconds") and name != "cpu_seconds":
                total[f"{row['phase']}.{name.removesuffix('_seconds')}"] += value
    return dict(total)


FIRST = ("success", "score", "majority_ratio", "copied_winners", "label_accuracy", "reward")
"""Metrics whose curves come first, and are drawn where they stay the same too."""
EPISODES, TAIL = 4, 2**22
"""Most episodes that are shown, and bytes at the end of `trajectories.jsonl` in which they are looked for."""
WIDTH, HEIGHT = 280, 120
"""Of a chart, in pixels."""


def write_report_html(folder: RunFolder) -> Path:
    """Write `report.html` into a run folder from its metrics and, where it has ended, its summary.

    Raises:
        RunFolderError: the folder cannot be written, or a file in it cannot be read.
    """
    run = read_run(folder.path)
    summary = run.summary
    template = (Path(__file__).parent / "templates" / "run.html.j2").read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined).from_string(template)
    text = page.render(
        title=f"{run.config.name}, seed {run.config.seed}" if summary is None else summary_title(summary),
        table=None if summary is None else summary_table(summary, full=True),
        lines=[] if summary is None else closing_lines(summary, full=True),
        charts=curves(run),
        episodes=_episodes(folder.path / "trajectories.jsonl"),
        config=run.config.to_yaml(sparse=True),
        width=WIDTH,
        height=HEIGHT,
    )
    return folder.write_text("report.html", text)


def _episodes(path: Path) -> list[dict[str, Any]]:
    """The last episodes of a file: the task, (thought, content, calls) of each turn, and the answer; none where there is no file."""
    if not path.is_file():
        return []
    with path.open("rb") as stream:
        start = max(0, path.stat().st_size - TAIL)
        stream.seek(start)
        lines = stream.read().split(b"\n")[start > 0 : -1][-EPISODES:]
    try:
        found = [from_json(Trajectory, line) for line in lines]
    except ValidationError as error:
        raise RunFolderError(f"{path}: one of its last lines is no trajectory: {first_problem(error)}.") from None
    return [
        {
            "task": escape_terminal(each.task.id),
            "turns": [
                (
                    escape_terminal(thought).strip(),
                    escape_terminal(said).strip(),
                    [[escape_terminal(part).strip() for part in call] for call in calls],
                )
                for thought, said, calls in map(turn_parts, each.steps)
            ],
            "answer": escape_terminal(each.answer or "-"),
        }
        for each in found
    ]


def curves(run: StoredRun) -> list[dict[str, Any]]:
    """A chart for every metric in `metrics.jsonl` that changes or is of `FIRST`: its points in pixels, and the range of its steps and values."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for record in metric_rows(run.path):  # without pandas: every training writes this page
        for name, value in record.items():
            if name not in ("step", "phase") and isinstance(value, int | float) and math.isfinite(value):
                points.setdefault((str(record["phase"]), str(name)), []).append((float(record["step"]), float(value)))
    charts = []
    for phase, name in sorted(points, key=lambda key: FIRST.index(key[1]) if key[1] in FIRST else len(FIRST)):
        steps, values = zip(*points[phase, name], strict=True)
        low, high, first, last = min(values), max(values), min(steps), max(steps)
        if first == last or (low == high and name not in FIRST):
            continue
        places = (
            (WIDTH * (step - first) / (last - first), HEIGHT * (high - value) / ((high - low) or 1))
            for step, value in zip(steps, values, strict=True)
        )
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        span = f"steps {first:g} to {last:g}, {low:.3g} to {high:.3g}"
        charts.append({"title": f"{phase}: {name}", "points": drawn, "span": span})
    return charts
