"""The bottleneck of a plan and settings that move it: every figure is another simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from skill_ttrl.errors import ConfigError
from skill_ttrl.stages.planning.memory import memory_by_rank
from skill_ttrl.stages.planning.problem import Problem
from skill_ttrl.stages.planning.simulate import PARTS, Loop, simulate
from skill_ttrl.stages.setup.check_ahead import check_ahead
from skill_ttrl.stages.training.components import schedule_of

WORTH = 1.05
"""Least gain in throughput that is advised."""
Effect = Literal["speed", "off-policy", "learning"]
"""Of a setting: on speed alone; on the age of the weights that sample, too; on what is learned."""
EFFECTS: tuple[Effect, ...] = ("speed", "off-policy", "learning")


@dataclass(frozen=True, slots=True)
class Change:
    """Another value of one setting, simulated."""

    setting: str
    """`rollout.mode=async`, or an option of `skillttrl plan`."""
    step_seconds: float
    gain: float
    """Tasks a second, over those of the plan."""
    bottleneck: str
    effect: Effect
    fits: bool


def savings(loop: Loop) -> dict[str, float]:
    """Seconds that a step would be shorter if one part took half of its time, by part."""
    now = simulate(loop).step_seconds
    return {part: now - simulate(loop.faster(part)).step_seconds for part in PARTS}


def bottleneck(loop: Loop) -> str:
    """The part of which half the time would save most."""
    saved = savings(loop)
    return max(saved, key=lambda part: saved[part])


def changes(problem: Problem) -> list[Change]:
    """Simulate each setting that may move the bottleneck: those that fit first, then by `EFFECTS`, then by their gain."""
    now = problem.work.prompts / simulate(problem.loop()).step_seconds
    found = [_simulated(setting, other, effect, now) for setting, other, effect in _others(problem)]
    return sorted(found, key=lambda each: (not each.fits, EFFECTS.index(each.effect), -each.gain))


def best(found: list[Change]) -> Change | None:
    """The change to advise: the first of `changes` that fits and is worth it; None: there is none."""
    return next((each for each in found if each.fits and each.gain >= WORTH), None)


def advised_problem(problem: Problem, change: Change) -> Problem:
    """The problem with the setting of a change of its own."""
    return next(other for setting, other, _ in _others(problem) if setting == change.setting)


def _simulated(setting: str, other: Problem, effect: Effect, now: float) -> Change:
    loop = other.loop()
    seconds = simulate(loop).step_seconds
    fits = all(each.fits for each in memory_by_rank(other))
    return Change(setting, seconds, other.work.prompts / seconds / now, bottleneck(loop), effect, fits)


def _others(problem: Problem) -> Iterator[tuple[str, Problem, Effect]]:
    """(setting, problem with it, its effect) of all that this config can have."""
    for key, value, effect in _keys(problem):
        try:
            other = problem.with_setting(key, value)
        except ConfigError:  # sections have rules of their own: it is no setting for this config
            continue
        if _refused(other) and not _refused(problem):
            continue
        yield f"{key}={str(value).lower()}", other, effect
    machine = problem.machine
    if not machine.rollout_gpus:
        return
    alone = (
        problem.staleness > 0 and machine.learner_gpus == 1
    )  # rollouts run ahead of one process, which gets no second
    for moved in (machine.tensor_parallel,) if alone else (-machine.tensor_parallel, machine.tensor_parallel):
        if 0 < (gpus := machine.rollout_gpus + moved) < machine.gpus:
            yield f"--rollout-gpus={gpus}", replace(problem, machine=replace(machine, rollout_gpus=gpus)), "speed"


def _refused(problem: Problem) -> bool:
    """True if no run rolls out ahead with this config; a plan may ask what if one did."""
    try:
        check_ahead(problem.config)
    except ConfigError:
        return True
    return False


def _keys(problem: Problem) -> Iterator[tuple[str, Any, Effect]]:
    config, machine = problem.config, problem.machine
    rl, rollout = config.rl, config.rollout
    if machine.device is not None and rollout.backend == "hf":
        yield "rollout.backend", "vllm", "speed"
    if schedule_of(config) == "sync":
        yield "rollout.mode", "async", "speed"
    if rollout.backend == "vllm":
        yield "vllm.max_num_seqs", 2 * config.vllm.max_num_seqs, "speed"
        if machine.rollout_gpus and config.vllm.gpu_memory_utilization < 0.9:
            yield "vllm.gpu_memory_utilization", 0.9, "speed"
        if config.model.lora is not None and config.vllm.weight_sync == "full":
            yield "vllm.weight_sync", "lora", "speed"
    if machine.device is not None and config.model.gradient_checkpointing:
        yield "model.gradient_checkpointing", False, "speed"
    if machine.device is not None and machine.learner_gpus > 1:
        yield "rl.micro_batch_size", 2 * rl.micro_batch_size, "speed"
        if config.runtime.reshard_after_forward:
            yield "runtime.reshard_after_forward", False, "speed"
    if machine.rollout_gpus and machine.learner_gpus == 1:  # rollouts run ahead of one process
        yield "rl.max_staleness", rl.max_staleness + 1, "off-policy"
    yield "rl.prompts_per_step", 2 * rl.prompts_per_step, "learning"
    if rl.mini_batch_size is not None and problem.work.updates > rl.ppo_epochs:
        yield "rl.mini_batch_size", 2 * rl.mini_batch_size, "learning"
    if rollout.max_new_tokens > 1:
        yield "rollout.max_new_tokens", rollout.max_new_tokens // 2, "learning"
    if rollout.n_votes_per_prompt > rollout.n_samples_per_prompt:
        yield "rollout.n_votes_per_prompt", rollout.n_samples_per_prompt, "learning"
    if rollout.n_samples_per_prompt > 1:
        yield "rollout.n_samples_per_prompt", rollout.n_samples_per_prompt // 2, "learning"
    if rl.kl_coef > 0:
        yield "rl.kl_coef", 0.0, "learning"
    if rl.ppo_epochs > 1:
        yield "rl.ppo_epochs", 1, "learning"
