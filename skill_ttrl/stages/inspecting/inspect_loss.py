"""Which samples carried the gradient of a training step, and why: `skillttrl inspect RUN --loss`. It reads what the run recorded."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.config import RLConfig
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
    """Reward: a vote's pseudo score where votes are rewarded."""
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
    """Reason of its share."""


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
    row = next((row for row in metric_rows(path) if row["phase"] == PHASE and row["step"] == step), {})
    rl = _settings(path)
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["task"]["id"]].append(record)
    samples = [_sample(record, groups[record["task"]["id"]], rl, _standstill(row, rl, step)) for record in records]
    samples.sort(key=lambda each: (-each.gradient_share, each.task, each.sample))
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


def _settings(path: Path) -> RLConfig:
    from skill_ttrl.runs.reader import read_run

    return read_run(path).config.rl


def _standstill(row: Mapping[str, Any], rl: RLConfig, step: int) -> str | None:
    """Why the step took no optimizer step although it had something to learn from; None where it took one."""
    if row.get("updates") != 0:
        return None
    if rl.critic is not None and step < rl.critic.warmup_steps:
        return "critic warm-up: the policy did not learn in this step"
    return "update skipped: loss or gradient was not finite" if row.get("skipped_updates") else None


def _sample(
    record: Mapping[str, Any], group: Sequence[Mapping[str, Any]], rl: RLConfig, standstill: str | None
) -> SampleGradient:
    counts = [_trained(step["completion"]) for step in record["steps"]]
    advantages = record.get("advantages")
    if advantages is not None:
        counts = [0 if a is None else n for a, n in zip(advantages, counts, strict=True)]
    tokens, advantage = sum(counts), None
    if advantages is not None and tokens:
        advantage = sum(a * n for a, n in zip(advantages, counts, strict=True) if a is not None) / tokens
    stopped = sum(record.get("stopped_tokens") or ()) / max(1, tokens * rl.ppo_epochs)
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
        why=_why_left_out(record, group, rl) if advantages is None else standstill or _why(group, advantages, stopped),
    )


def _trained(completion: Mapping[str, Any] | None) -> int:
    if completion is None:
        return 0
    return len(completion["token_ids"]) if completion["completion_mask"] is None else sum(completion["completion_mask"])


def _why_left_out(record: Mapping[str, Any], group: Sequence[Mapping[str, Any]], rl: RLConfig) -> str:
    """Why a rollout was not trained on."""
    if record["error"] is not None:
        return f"failed: not trained on ({record['stop_reason']})"
    if record.get("gradient_shares") is not None:  # it was given to the update
        if rl.overlong is not None and rl.overlong.filter and _cut_off(record):
            return "cut off, filtered: rl.overlong.filter leaves it out of the loss"
        return f"left out: rl.algorithm={rl.algorithm['type']} does not learn from it"
    if any(each.get("gradient_shares") is not None for each in group):
        return "only voted: not drawn among those that are trained on (rollout.n_samples_per_prompt)"
    if rl.dynamic_sampling is None:
        return "prompt left out: its vote was skipped, or too many of its rollouts failed"
    if len({each["reward"] for each in group if each["error"] is None}) <= 1:
        return "all alike, drawn again: its group earned the same (rl.dynamic_sampling)"
    return "surplus: enough groups differed, or the drawn samples of this one did not (rl.dynamic_sampling)"


def _cut_off(record: Mapping[str, Any]) -> bool:
    return any(step["completion"] and step["completion"]["finish_reason"] == "length" for step in record["steps"])


def _why(group: Sequence[Mapping[str, Any]], advantages: Sequence[float | None], stopped: float) -> str:
    """Reason why a rollout that was trained on was pulled."""
    known = [value for value in advantages if value is not None]
    if not known:
        return "its advantage is not finite"
    if not any(known):
        alike = len({each["reward"] for each in group}) == 1
        return "no advantage: its group earned the same" if alike else "no advantage"
    way = "raised" if sum(known) > 0 else "lowered"
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
