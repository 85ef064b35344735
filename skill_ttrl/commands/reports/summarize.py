"""The summary of a run, made from what it has written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skill_ttrl.commands.reports.compare import HEADLINES
from skill_ttrl.runs.folder import metric_rows, read_run_json
from skill_ttrl.runs.summary import Summary
from skill_ttrl.statistics import paired_difference
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.metrics import bank_votes, bank_warning
from skill_ttrl.train.results import NO_SKILLS, Evaluation, control_warning
from skill_ttrl.train.run import Run, stopped_by
from skill_ttrl.train.tasks import ConfigTasks


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
    signs = (control_warning(evaluations), bank_warning(control, intervals.get("majority_gain")))
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
            shares = [[HEADLINES[figure](result) or 0.0 for result in each.results] for each in (one, other)]
            found[name] = paired_difference(*shares)[1:]
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
