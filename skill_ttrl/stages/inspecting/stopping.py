"""Looking back at where each stopping rule would have ended a run, and what that is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.metrics import metric_rows
from skill_ttrl.runs.reader import read_run
from skill_ttrl.runs.stop_rules import RULES, stop_step
from skill_ttrl.stages.inspecting.inspection import Inspection
from skill_ttrl.storage.jsonl import read_jsonl

STEP = "step "
"""Prefix of the label of an evaluation during RL training."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """Where each rule would have ended a run, and what that is worth where it was measured."""

    steps: int
    """Steps that were done."""
    stops: dict[str, int | None]
    """By rule, the steps after which it would have ended the run; None where it never does."""
    accuracy: dict[int, float]
    """avg@k by steps done, where it was measured; 0 is before the training."""

    @property
    def best(self) -> int | None:
        """The best step in hindsight, which needs labels: the first of equals; None where nothing was measured."""
        return max(self.accuracy, key=lambda step: (self.accuracy[step], -step)) if self.accuracy else None

    def reached(self, rule: str) -> int:
        """Steps done where this rule is followed."""
        stop = self.stops[rule]
        return self.steps if stop is None else stop


def look_back(path: str | Path) -> Stopping:
    """Apply every rule, with its defaults, to the run at `path` in hindsight, and the run's own rule with its options.

    Raises:
        RunFolderError: not a run folder, or no step of reinforcement has been done in it.
    """
    run = read_run(path)
    rows = [row for row in metric_rows(run.path) if row["phase"] == "rl"]
    if not rows:
        raise RunFolderError(f"{path} has done no step of the rl phase: there is nothing to stop.")
    own = run.config.rl
    stops = {rule: stop_step(rows, rule) for rule in RULES}
    if own.stop_rule is not None:
        stops[own.stop_rule] = stop_step(rows, own.stop_rule, own.stop_options)
    file = Path(path) / "evaluations.jsonl"
    evaluations = read_jsonl(file)
    return Stopping(len(rows), stops, accuracy_by_step(evaluations, len(rows)))


def accuracy_by_step(evaluations: Sequence[Mapping[str, Any]], steps: int) -> dict[int, float]:
    """avg@k by steps done: that of `before` at 0, of `step N` at N, of `after` at the last."""
    places = {"before": 0, "after": steps}
    found = {}
    for line in evaluations:
        label, accuracy = str(line["label"]), line["accuracy"]
        number = label.removeprefix(STEP)
        place = int(number) if label.startswith(STEP) and number.isdigit() else places.get(label)
        if place is not None and accuracy is not None:
            found[place] = float(accuracy)
    return dict(sorted(found.items()))


def inspect_stopping(path: str | Path) -> Inspection:
    """`look_back` as a table: for each rule the step, the accuracy there and what is lost against the best step."""
    found = look_back(path)
    best, last = found.best, found.steps

    def row(name: str, stop: str, step: int | None) -> tuple[Any, ...]:
        accuracy = None if step is None else found.accuracy.get(step)
        regret = None if accuracy is None or best is None else found.accuracy[best] - accuracy
        return (name, stop, _share(accuracy), _share(regret))

    rows = [
        row(f"rule {rule}", "never" if stop is None else str(stop), found.reached(rule))
        for rule, stop in found.stops.items()
    ]
    rows.append(row("no rule", f"{last}, the last", last))
    rows.append(row("best in hindsight", "-" if best is None else str(best), best))
    rows.append(row("no training", "0", 0))
    notes = []
    if any(found.reached(rule) not in found.accuracy for rule in found.stops):
        notes.append("A dash: nothing was measured after that step. rl.eval_steps=1 measures after each.")
    notes.append("The rules look at votes only; the accuracies need labels and tell whether a rule was right.")
    return Inspection(
        "stopping",
        str(path),
        {"steps": last},
        ("ended by", "after step", "avg@k there", "lost to the best"),
        rows,
        notes,
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
