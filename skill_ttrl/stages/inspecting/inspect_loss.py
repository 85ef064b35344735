"""Which samples carried the gradient of a training step, and why: `skillttrl inspect RUN --loss`. It reads what the run recorded."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.identity import read_run_json
from skill_ttrl.runs.metrics import metric_rows
from skill_ttrl.storage.jsonl import whole_lines

PHASE = "rl"
FIGURES = ("policy_loss", "grad_norm", "clip_fraction", "kl", "entropy", "learning_rate", "updates", "skipped_updates")
"""Metrics of the step that are shown above its samples."""
_PLACE = re.compile(rb'\{"phase": "(\w+)", "step": (\d+), ')


@dataclass(frozen=True, slots=True)
class SampleGradient:
    """One rollout of a step."""

    task: str
    sample: int
    """Its place in the group."""
    answer: str | None
    reward: float | None
    """What it was given: a vote's pseudo score where votes are rewarded."""
    original_score: float | None
    """1 where its answer is the true one, else 0; None where that is not known."""
    advantage: float | None
    """Mean over its trained tokens; None where it was not trained on."""
    steps: int
    tokens: int
    """Trained tokens."""
    gradient_share: float
    """Of the sum over all tokens of |d loss / d log-prob|, in [0, 1]."""
    stopped_share: float
    """Of its tokens, those whose gradient a clip or a weight of 0 has stopped, over all passes."""
    why: str
    """What its share came of."""


@dataclass(frozen=True, slots=True)
class LossInspection:
    """A step's samples by their share in its gradient, the largest first."""

    path: str
    step: int
    figures: Mapping[str, float | None]
    samples: Sequence[SampleGradient]
    half: int
    """The fewest samples that carried half of the gradient; 0 where there was none."""


def inspect_loss(path: str | Path, step: int | None = None) -> LossInspection:
    """Look at the loss of one step of the phase rl; None: the last one.

    Raises:
        RunFolderError: not a run, it recorded no trajectories, or not this step.
    """
    path = Path(path)
    read_run_json(path)
    file = path / "trajectories.jsonl"
    if not file.exists():
        raise RunFolderError(
            f"{path} recorded no trajectories: no step has ended, or its config has run.save_trajectories=false. Which samples "
            "carried a gradient is recorded with them."
        )
    step, records = _records(file, step)
    if all(record.get("gradient_shares") is None for record in records):
        raise RunFolderError(
            f"{file} does not say which samples carried the gradient of step {step}: nothing was learned in it."
        )
    passes = _passes(path)
    of_task: dict[str, list[float | None]] = defaultdict(list)
    for record in records:
        of_task[record["task"]["id"]].append(record["reward"])
    samples = [_sample(record, of_task[record["task"]["id"]], passes) for record in records]
    samples.sort(key=lambda each: (-each.gradient_share, each.task, each.sample))
    row = next((row for row in metric_rows(path) if row["phase"] == PHASE and row["step"] == step), {})
    return LossInspection(
        str(path), step, {name: row[name] for name in FIGURES if name in row}, samples, _half(samples)
    )


def _records(file: Path, step: int | None) -> tuple[int, list[dict[str, Any]]]:
    """The lines of one step of the phase, and its number."""
    lines: list[bytes] = []
    newest, wanted = -1, step
    for _, line in whole_lines(file, []):
        place = _PLACE.match(line)
        if place is None or place[1].decode() != PHASE:
            continue
        found = int(place[2])
        if step is None and found > newest:
            wanted, lines = found, []
        newest = max(newest, found)
        if found == wanted:
            lines.append(line)
    if newest < 0:
        raise RunFolderError(f"{file} has no step of the phase {PHASE}.")
    if not lines or wanted is None:
        raise RunFolderError(f"{file} has no step {step} of the phase {PHASE}: the last one is {newest}.")
    return wanted, [json.loads(line) for line in lines]


def _passes(path: Path) -> int:
    """Passes over each batch; a stopped token counts in each."""
    from skill_ttrl.runs.reader import read_run

    return read_run(path).config.rl.epochs


def _sample(record: Mapping[str, Any], rewards: Sequence[float | None], passes: int) -> SampleGradient:
    counts = [_trained(step["completion"]) for step in record["steps"]]
    tokens = sum(counts)
    advantages = record.get("advantages")
    advantage = None
    if advantages is not None and None not in advantages:
        advantage = sum(a * n for a, n in zip(advantages, counts, strict=True)) / max(1, tokens)
    stopped = sum(record.get("stopped_tokens") or ()) / max(1, tokens * passes)
    score = record.get("pseudo_score")
    return SampleGradient(
        task=record["task"]["id"],
        sample=record["sample"],
        answer=record["answer"],
        reward=record["reward"] if score is None else score,
        original_score=record.get("original_score"),
        advantage=advantage,
        steps=len(counts),
        tokens=tokens,
        gradient_share=sum(record.get("gradient_shares") or ()),
        stopped_share=stopped,
        why=_why(record, rewards, advantages, stopped),
    )


def _trained(completion: Mapping[str, Any] | None) -> int:
    if completion is None:
        return 0
    return len(completion["token_ids"]) if completion["mask"] is None else sum(completion["mask"])


def _why(
    record: Mapping[str, Any],
    rewards: Sequence[float | None],
    advantages: Sequence[float | None] | None,
    stopped: float,
) -> str:
    if record["error"] is not None:
        return f"not trained on: it failed ({record['stop_reason']})"
    if advantages is None:
        return "not trained on: not drawn, or its prompt is skipped"
    if None in advantages:
        return "its advantage is not finite"
    if not any(advantages):
        return "no advantage: its group earned the same" if len(set(rewards)) == 1 else "no advantage"
    way = "raised" if sum(value for value in advantages if value) > 0 else "lowered"
    than = "better than its group" if way == "raised" else "worse than its group"
    return f"{way}, {stopped:.0%} of tokens stopped: {than}" if stopped else f"{way}: {than}"


def _half(samples: Sequence[SampleGradient]) -> int:
    if not any(each.gradient_share for each in samples):
        return 0
    reached = 0.0
    for count, each in enumerate(samples, 1):
        reached += each.gradient_share
        if reached >= 0.5:
            return count
    return len(samples)
