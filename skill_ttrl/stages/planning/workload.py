"""Counts of one RL step: rollouts, tokens, sequences, optimizer steps; bounds from a config, or means of a run that was made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import DataError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.runs.reader import Run, read_run
from skill_ttrl.stages.doctor.memory import items_of_episode, longest_turn, update_thirds
from skill_ttrl.storage.jsonl import whole_lines

MAX_ROLLOUTS = 5000
"""Rollouts of a run that are read, its first."""
MAX_LENGTHS = 1000
"""Lengths of a run's responses that are used, spread evenly over all."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sizes of rollouts."""

    turns: float
    """Of a rollout, in the mean."""
    prompt: float
    """Tokens of a turn's prompt, in the mean."""
    responses: tuple[float, ...]
    """Tokens of a turn's response: a constant, or a sample of measured ones."""
    item: float
    """Tokens of a sequence that is learned from, in the mean."""

    @property
    def response(self) -> float:
        """Mean tokens of a turn's response."""
        return mean(self.responses)


@dataclass(frozen=True, slots=True)
class Workload:
    """Counts of one step."""

    prompts: int
    rollouts: int
    lengths: Lengths
    trained: int
    """Sequences that are learned from."""
    updates: int
    """Optimizer steps, over all passes."""
    whole_episode: bool
    """An episode is one sequence, which grows turn by turn."""
    passes: float
    """Training passes over the trained tokens, scoring and reference counted as thirds."""

    @property
    def sampled_tokens(self) -> float:
        """Tokens that are decoded."""
        return self.rollouts * self.lengths.turns * self.lengths.response

    @property
    def read_tokens(self) -> float:
        """Prompt tokens that are computed while sampling."""
        return self.rollouts * self.lengths.turns * self.read_per_turn

    @property
    def trained_tokens(self) -> float:
        """Tokens that are learned from, prompts included."""
        return self.trained * self.lengths.item

    @property
    def packed_tokens(self) -> float:
        """Of `trained_tokens` those that are left where the samples of a prompt share it; turns of an episode have prompts of their own."""
        shared = self.lengths.prompt * (self.trained - self.prompts) if self.lengths.turns <= 1 else 0.0
        return self.trained_tokens - max(0.0, shared)

    @property
    def read_per_turn(self) -> float:
        """Prompt tokens that are computed for a turn of one rollout: a group shares its first prompt, an episode as one sequence grows."""
        if self.lengths.turns <= 1:
            return self.lengths.prompt * self.prompts / self.rollouts
        return self.lengths.prompt / self.lengths.turns if self.whole_episode else self.lengths.prompt


def bounds(config: SkillTTRLConfig, tokens: float | None = None, turns: float | None = None) -> Lengths:
    """Lengths from a config: prompts at their longest; `tokens` a response and `turns` a rollout, or these at their longest too."""
    prompt, answer = longest_turn(config)
    response = answer if tokens is None else min(tokens, answer)
    most = float(config.agent.max_turns)
    return Lengths(min(turns or most, most), prompt, (float(response),), prompt + response)


def limited(lengths: Lengths, config: SkillTTRLConfig, tokens: float | None, turns: float | None) -> Lengths:
    """Measured lengths under the limits of another config; `tokens` and `turns`: other means."""
    limit, scale = longest_turn(config)[1], 1.0 if tokens is None else tokens / lengths.response
    responses = tuple(min(each * scale, limit) for each in lengths.responses)
    found = replace(lengths, turns=min(turns or lengths.turns, float(config.agent.max_turns)), responses=responses)
    if items_of_episode(config) == 1:
        return _grown(lengths, found, sum(longest_turn(config)))
    change = (found.response - lengths.response) * (lengths.item > lengths.prompt)
    return replace(found, item=lengths.item + change)


def _grown(was: Lengths, now: Lengths, longest: int) -> Lengths:
    """Whole episodes with the turns and responses of `now`, and between two responses as much text as `was` has; `longest` tokens at most.

    An episode of n turns has the first prompt, n responses and n - 1 observations; its prompts have half of what grows, in the mean.
    """
    grown = was.item - was.prompt - was.response  # the other half
    observed = max(0.0, 2 * grown / (was.turns - 1) - was.response) if was.turns > 1 else 0.0
    more = now.turns * now.response - was.turns * was.response + (now.turns - was.turns) * observed
    half = ((now.turns - 1) * (now.response + observed) - (was.turns - 1) * (was.response + observed)) / 2
    item = was.item + more * (was.item > was.prompt)
    return replace(now, prompt=min(max(1.0, was.prompt + half), longest), item=min(item, longest))


def count(config: SkillTTRLConfig, lengths: Lengths) -> Workload:
    """Count one step of `config` with rollouts of these lengths."""
    rl, rollout = config.rl, config.rollout
    whole_episode = items_of_episode(config) == 1
    per_rollout = 1.0 if whole_episode else lengths.turns
    units, size = rl.prompts_per_step, rl.mini_batch_size
    if rl.mini_batch_by == "samples":
        units = rollout.n_samples_per_prompt
    updates = 1 if size is None else math.ceil(units / size)
    # A backend that is not the learner itself has its samples scored before the update: a forward pass.
    rescored = not backend_facts(config).is_learner and rl.rollout_correction.rescore
    return Workload(
        prompts=rl.prompts_per_step,
        rollouts=rl.prompts_per_step * rollout.n_votes_per_prompt,
        lengths=lengths,
        trained=round(rl.prompts_per_step * rollout.n_samples_per_prompt * per_rollout),
        updates=updates * rl.ppo_epochs,
        whole_episode=whole_episode,
        passes=rl.ppo_epochs * update_thirds(rl) / 3 + rescored / 3,
    )


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A run's RL steps: lengths, and medians of their wall times, in seconds. The first step, which warms up, is left out."""

    lengths: Lengths
    seconds: float
    sample: float
    update: float
    sync: float
    on_gpu: bool
    """The learner's device was a GPU: the run has measured its memory."""


def measured_run(path: str | Path) -> tuple[SkillTTRLConfig, MeasuredStep]:
    """Read config, lengths and times of a run folder.

    Raises:
        RunFolderError: it is none.
        DataError: it has fewer than two RL steps, or no trajectories, or sampled while it learned.
    """
    run = read_run(path)
    if ahead := run.config.rl.max_staleness:
        raise DataError(
            f"--calibrate {path}: its rollouts ran ahead of the learner (rl.max_staleness={ahead}), so the times of its parts overlap. Name a run "
            "with rl.max_staleness=0, or make one: skillttrl train CONFIG --set rl.max_staleness=0 --set rl.steps=5."
        )
    timings, metrics = _rl_rows(run, "timings"), _rl_rows(run, "metrics")
    if len(timings) < 2 or not metrics:
        raise DataError(
            f"--calibrate {path}: a run with at least two RL steps is needed, found {len(timings)}. Name another, or make one: "
            "skillttrl train CONFIG --set rl.steps=5."
        )
    rows = timings[1:]
    middle = {name: median(row[f"{name}seconds"] for row in rows) for name in ("", "sample_", "update_", "sync_")}
    on_gpu = any(row.get("gpu_peak_bytes", 0) > 0 for row in rows)
    times = (middle[""], middle["sample_"], middle["update_"], middle["sync_"])
    return run.config, MeasuredStep(_lengths(run, metrics), *times, on_gpu)


def _lengths(run: Run, metrics: list[dict[str, Any]]) -> Lengths:
    rollouts = list(islice(_rollouts(run.path / "trajectories.jsonl"), MAX_ROLLOUTS))
    steps = [step for row in rollouts for step in row["steps"] if step["completion"] is not None]
    if not steps:
        raise DataError(
            f"--calibrate {run.path}: its rollouts are needed, found no trajectories.jsonl with some. Run it with "
            "run.save_trajectories=true."
        )
    every = max(1, len(steps) // MAX_LENGTHS)
    return Lengths(
        turns=mean(len(row["steps"]) for row in rollouts),
        prompt=mean(len(step["prompt_ids"]) for step in steps),
        responses=tuple(float(len(step["completion"]["token_ids"])) for step in steps[::every]),
        item=sum(row["all_tokens"] for row in metrics) / sum(row["sequences"] for row in metrics),
    )


def _rollouts(path: Path) -> Iterator[dict[str, Any]]:
    """The RL rollouts of a run, one after another: the file may be larger than the memory."""
    for _, line in whole_lines(path, []) if path.exists() else ():
        record = json.loads(line)
        if record["phase"] == "rl":
            yield record


def _rl_rows(run: Run, name: str) -> list[dict[str, Any]]:
    frame = getattr(run, name)
    return [] if frame.empty else frame[frame["phase"] == "rl"].to_dict("records")
