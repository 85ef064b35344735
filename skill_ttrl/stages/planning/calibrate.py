"""Calibration with a run of this project: measured over computed seconds of each part, and the lengths of its rollouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.rl.memory import read_shape
from skill_ttrl.rl.speed import Speed, measured, measured_rounds
from skill_ttrl.stages.planning.cost import AS_COMPUTED, Factors
from skill_ttrl.stages.planning.machine import CPURates
from skill_ttrl.stages.planning.problem import Problem
from skill_ttrl.stages.planning.simulate import simulate
from skill_ttrl.stages.planning.workload import MeasuredStep

MAX_TOKENS = 256
FEW_ROWS, MANY_ROWS = 8, 128
ALIKE = 0.1
"""Share by which the parameters of two models may differ that are measured once for both."""
SECONDS = 0.3
"""Least time of each of the measurements on a CPU."""


def measure_cpu(config: SkillTTRLConfig, model_config: Any) -> CPURates:
    """Measure a small model of this shape with random weights, here and now; a busy machine gives other rates."""
    tokens = min(MAX_TOKENS, config.data.max_prompt_tokens + config.rollout.max_new_tokens)
    threads = config.runtime.threads
    found: Speed = measured(model_config, tokens=tokens, rows=FEW_ROWS, threads=threads, seconds=SECONDS)
    many = 1 / measured_rounds(model_config, tokens=tokens, rows=MANY_ROWS, threads=threads, seconds=SECONDS)
    few = 1 / found.rounds
    row = max(0.0, many - few) / (MANY_ROWS - FEW_ROWS)
    return CPURates(found.training, found.reading, max(0.0, few - row * FEW_ROWS), row)


def calibrated(
    problem: Problem, config: SkillTTRLConfig, model_config: Any, step: MeasuredStep, env_seconds: float
) -> Problem:
    """The problem with the lengths of a run, and its measured times in the place of computed ones.

    Args:
        problem: The plan, with the kind of machine that the run had.
        config: The run's own.
        model_config: That of its model.
        step: Its measured steps.
        env_seconds: Of its environment's steps.

    Raises:
        DataError: see `calibrate`.
    """
    shape = read_shape(model_config, config.model.lora)
    there = replace(problem.machine, gpus=config.runtime.nproc or 1, nodes=1, rollout_gpus=0)
    # Two measurements of one model differ as the load does; one for both cancels out.
    if there.device is None and abs(shape.parameters / problem.shape.parameters - 1) > ALIKE:
        there = replace(there, cpu=measure_cpu(config, model_config))
    own = replace(
        problem,
        config=config,
        model_config=model_config,
        shape=shape,
        machine=there,
        measured=step.lengths,
        factors=AS_COMPUTED,
        tokens=None,
        turns=None,
        env_seconds=env_seconds,
    )
    return replace(problem, measured=step.lengths, factors=calibrate(own, step))


def calibrate(own: Problem, found: MeasuredStep) -> Factors:
    """Divide a run's measured seconds by those that the formulas give for it.

    Args:
        own: The run's config and lengths on the machine that it ran on, with `AS_COMPUTED`.
        found: Its measured steps.

    Raises:
        DataError: environments alone would take longer than the run sampled.
    """
    loop = own.loop()
    calls = loop.rollouts if loop.lockstep else 1
    environments = loop.env_seconds * loop.turns * calls
    if environments >= found.sample:
        raise DataError(
            f"--calibrate: environment steps of {own.env_seconds:g} s would take {environments:.3g} s of a step's {found.sample:.3g} s of sampling. "
            "Name another run, or leave --calibrate out."
        )
    rest = max(0.0, found.seconds - found.sample - found.update - found.sync)
    return Factors(
        generation=(found.sample - environments) / simulate(loop.generation_alone).step_seconds,
        update=found.update / loop.update,
        transfer=found.sync / loop.transfer if loop.transfer else 1.0,
        records=rest / loop.records,
    )


def check_same_device(ran_on_gpu: bool, on_gpu: bool, path: str) -> None:
    """Raise `ConfigError` where a run on a CPU is to say how fast a GPU is, or the other way round."""
    if ran_on_gpu != on_gpu:
        was, planned = ("GPU", "a CPU") if ran_on_gpu else ("CPU", "GPUs")
        raise ConfigError(
            f"--calibrate {path} ran on a {was}, and the plan is for {planned}: its times say nothing of those. Name a run of such a "
            "device, or leave --calibrate out."
        )
