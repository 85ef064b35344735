"""Plan an RL run for GPUs that are not here: step time, throughput, hours, money, memory by rank, and the bottleneck.

A step's parts come from closed formulas (`planning.cost`) or a run's measured seconds (`planning.calibrate`), their interplay from a
simulation of the loop (`planning.simulate`). Nothing is sampled; what `--dry-run` says of the other phases is not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, SkillTTRLError
from skill_ttrl.llm.backends import check_trainable
from skill_ttrl.rl.memory import read_shape
from skill_ttrl.stages.doctor.plan import MEASURED_PARAMETERS, planned_device, planned_model
from skill_ttrl.stages.planning.advice import Change, advised_problem, best, bottleneck, changes
from skill_ttrl.stages.planning.calibrate import calibrated, check_same_device, measure_cpu
from skill_ttrl.stages.planning.cost import device_name
from skill_ttrl.stages.planning.curve import COUNTS, Point, curve, draw, scaled
from skill_ttrl.stages.planning.environment import measure_env_seconds
from skill_ttrl.stages.planning.machine import Machine, arrange, check_fits, find_gpu
from skill_ttrl.stages.planning.memory import RankMemory, memory_by_rank
from skill_ttrl.stages.planning.problem import Problem
from skill_ttrl.stages.planning.simulate import Loop, Outcome, simulate
from skill_ttrl.stages.planning.workload import measured_run
from skill_ttrl.stages.setup.defaults import with_defaults
from skill_ttrl.storage.files import wrap_os_errors, write_atomic

AS_CONFIGURED, GROWING = "as configured", "batches that grow with the GPUs (rl.prompts_per_step, rl.mini_batch_size)"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Facts that a config does not have."""

    gpus: int = 1
    """In all."""
    nodes: int = 1
    gpu: str | None = None
    """`h100`, …, or `cpu`; None: this machine's GPU, a CPU where the config asks for one, else an H100."""
    rollout_gpus: int | None = None
    """GPUs that generate alone; None: as many as the config has servers for, else the learner's GPUs generate too."""
    price: float | None = None
    """Money for a GPU and hour; None: no cost is given."""
    env_seconds: float | None = None
    """Of an environment step; None: it is measured here."""
    slow_fraction: float = 0.0
    """Share of rollouts whose environment is slow, from 0 to 1."""
    slow_factor: float = 1.0
    """Times as long as a slow environment's steps take."""
    max_staleness: int | None = None
    """None: `rl.max_staleness`."""
    tokens: float | None = None
    """Mean tokens of a response; None: those of `calibrate`, else the limit."""
    turns: float | None = None
    """Mean turns of a rollout; None: those of `calibrate`, else the limit."""
    calibrate: Path | None = None
    """A run whose times and lengths are taken."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The plan of a run's RL phase."""

    name: str
    model: str
    parameters: int
    gpu: str
    gpus: int
    nodes: int
    learner_gpus: int
    rollout_gpus: int
    """0: the learner's GPUs generate."""
    replicas: int
    step_seconds: float
    tokens_per_second: float
    """Sampled tokens, over the whole step."""
    rollouts_per_second: float
    steps: int
    hours: float
    gpu_hours: float
    cost: float | None
    """None: no price was given."""
    bottleneck: str
    advice: str
    memory: list[RankMemory]
    tokens: Mapping[str, float]
    """`sampled read trained` of a step, and `sampled_in_all`."""
    parts: Mapping[str, float]
    """Seconds of each part of a step, alone."""
    utilisation: Mapping[str, float]
    """See `Outcome.utilisation`."""
    staleness: float
    changes: list[Change] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    curve: Mapping[str, list[Point]] = field(default_factory=dict)
    """Throughput by number of GPUs, of each line of the image; empty without one."""


def run(config: SkillTTRLConfig, options: PlanOptions | None = None, svg: Path | None = None) -> ClusterPlan:
    """Plan the RL phase of a config; with `svg` also draw its throughput from 1 to 1,000 GPUs into that file.

    Raises:
        ConfigError: the config has no such phase, or config, machine and options do not go together.
        DataError: the run to calibrate with is of no use.
        RunFolderError: there is no such run, or the image cannot be written.
        ModelError: the sizes or the speed of the model are not known, or it does not fit.
    """
    options = options or PlanOptions()
    assumptions: list[str] = []
    problem = pose(config, options, assumptions)
    memory = memory_by_rank(problem)
    for each in memory:
        check_fits(each.role, each.peak, each.available, dict(each.parts), _to_fit(problem))
    loop, work = problem.loop(), problem.work
    outcome, found = simulate(loop), changes(problem)
    slowest, hours = bottleneck(loop), outcome.step_seconds * problem.config.rl.steps / 3600
    gpu_hours = hours * options.gpus
    return ClusterPlan(
        name=config.name,
        model=config.model.path,
        parameters=problem.shape.parameters,
        gpu=device_name(problem.machine.device),
        gpus=options.gpus,
        nodes=options.nodes,
        learner_gpus=problem.machine.learner_gpus,
        rollout_gpus=problem.machine.rollout_gpus,
        replicas=problem.machine.replicas,
        step_seconds=outcome.step_seconds,
        tokens_per_second=work.sampled_tokens / outcome.step_seconds,
        rollouts_per_second=work.rollouts / outcome.step_seconds,
        steps=problem.config.rl.steps,
        hours=hours,
        gpu_hours=gpu_hours,
        cost=None if options.price is None else gpu_hours * options.price,
        bottleneck=slowest,
        advice=_advice(best(found), outcome),
        memory=memory,
        tokens={
            "sampled": work.sampled_tokens,
            "read": work.read_tokens,
            "trained": work.trained_tokens,
            "sampled_in_all": work.sampled_tokens * problem.config.rl.steps,
        },
        parts=_parts(loop),
        utilisation=outcome.utilisation,
        staleness=outcome.staleness,
        changes=found,
        assumptions=assumptions,
        curve={} if svg is None else write_curve(problem, svg),
    )


def pose(config: SkillTTRLConfig, options: PlanOptions, assumptions: list[str]) -> Problem:
    """Put config and options into one value, and say in `assumptions` what neither of them has.

    Raises:
        ConfigError, DataError, ModelError, RunFolderError: see `run`.
    """
    if "rl" not in config.phases:
        raise ConfigError(
            f"{config.name} has no RL phase (phases: {', '.join(config.phases)}), and that is what is planned. Add it: "
            f"--set 'phases=[{','.join((*config.phases, 'rl'))}]'."
        )
    if config.requires is not None and config.optimize is not None and config.optimize.every is None:
        raise ConfigError(
            f"{config.name} optimizes a document, which takes no GPU time of a learner: skillttrl optimize {config.name} --dry-run."
        )
    _check_options(options)
    if options.tokens is not None and options.tokens > config.rollout.max_new_tokens:
        raise ConfigError(
            f"--tokens {options.tokens:g} is more than a response may have: rollout.max_new_tokens is {config.rollout.max_new_tokens}. Raise it with "
            "--set, or give fewer."
        )
    check_trainable(config)
    device = planned_device(config, assumptions, options.gpus) if options.gpu is None else find_gpu(options.gpu)
    machine = arrange(config, device, options.gpus, options.nodes, options.rollout_gpus)
    config = with_defaults(_served(config, machine, assumptions))
    model_config = planned_model(config, assumptions, list[SkillTTRLError]())
    shape = read_shape(model_config, config.model.lora)
    problem = Problem(
        config,
        model_config,
        shape,
        _with_rates(config, model_config, machine, shape.parameters, assumptions),
        env_seconds=_env_seconds(config, options, assumptions),
        slow_fraction=options.slow_fraction,
        slow_factor=options.slow_factor,
        tokens=options.tokens,
        turns=options.turns,
    )
    if options.max_staleness is not None and machine.rollout_gpus:
        problem = problem.with_setting("rl.max_staleness", options.max_staleness)
    if problem.staleness and machine.learner_gpus > 1:
        assumptions.append(
            f"rollouts run ahead of {machine.learner_gpus} learner GPUs: simulated, but a run with rl.max_staleness refuses several ranks"
        )
    if options.calibrate is not None:
        problem = _calibrated(problem, options, options.calibrate, assumptions)
    _state_lengths(problem, assumptions)
    return problem


def write_curve(problem: Problem, path: Path, counts: Sequence[int] = COUNTS) -> dict[str, list[Point]]:
    """Write the throughput with these numbers of GPUs as SVG, and return its lines by name.

    Raises:
        ConfigError: the model fits on none of these numbers of GPUs.
        RunFolderError: the file cannot be written.
    """
    name, gpus = problem.config.name, problem.machine.gpus
    lines = {AS_CONFIGURED: curve(problem, counts=counts)}
    if (advised := best(changes(problem))) is not None:
        lines[f"with {advised.setting}"] = curve(advised_problem(problem, advised), counts=counts)
    lines[GROWING] = curve(problem, grows=True, counts=counts)
    lines = {label: line for label, line in lines.items() if line}
    if not lines:
        raise ConfigError(
            f"--svg: {name} fits on none of {counts[0]} to {counts[-1]} GPUs shared out as --gpus {gpus}."
        )
    with wrap_os_errors("write", path, "--svg"):
        write_atomic(path, draw(f"{name} on {device_name(problem.machine.device)}", lines).encode())
    return lines


def _check_options(options: PlanOptions) -> None:
    """Raise `ConfigError` for numbers that nothing can have."""
    wrong = {
        "--price": (options.price, 0.0),
        "--env-seconds": (options.env_seconds, 0.0),
        "--slow-factor": (options.slow_factor, 1.0),
        "--slow-fraction": (options.slow_fraction, 0.0),
        "--max-staleness": (options.max_staleness, 0),
        "--tokens": (options.tokens, 1.0),
        "--turns": (options.turns, 1.0),
    }
    for name, (value, least) in wrong.items():
        if value is not None and not value >= least:
            raise ConfigError(f"{name} {value:g} must be at least {least:g}.")
    if options.slow_fraction > 1:
        raise ConfigError(f"--slow-fraction {options.slow_fraction:g} is a share, from 0 to 1.")


def _served(config: SkillTTRLConfig, machine: Machine, assumptions: list[str]) -> SkillTTRLConfig:
    """The config with vLLM servers where GPUs generate alone."""
    if not machine.rollout_gpus or (config.rollout.backend == "vllm" and config.vllm.mode == "server"):
        return config
    assumptions.append(
        "GPUs that generate alone run vLLM servers: rollout.backend=vllm, vllm.mode=server, vllm.enable_sleep_mode=false"
    )
    config = config.model_copy(deep=True)
    config.rollout.backend, config.vllm.mode, config.vllm.enable_sleep_mode = "vllm", "server", False
    return config


def _with_rates(
    config: SkillTTRLConfig, model_config: Any, machine: Machine, parameters: int, assumptions: list[str]
) -> Machine:
    """The machine with this CPU's rates where it is one."""
    if machine.device is not None:
        assumptions.append(
            "parts are computed from the data sheet and from measured updates of 0.5B and 1.5B on one H100; communication is not measured"
        )
        return machine
    if parameters > MEASURED_PARAMETERS:
        raise ConfigError(
            f"Nothing is known of the speed of {parameters:,} parameters on this CPU: models up to {MEASURED_PARAMETERS:,} are measured. "
            "Name a GPU: --gpu h100."
        )
    assumptions.append("this CPU was measured now, with random weights of this shape; ranks share its cores")
    return replace(machine, cpu=measure_cpu(config, model_config))


def _env_seconds(config: SkillTTRLConfig, options: PlanOptions, assumptions: list[str]) -> float:
    if options.env_seconds is not None:
        return options.env_seconds
    found, what = measure_env_seconds(config)
    assumptions.append(f"a step of the environment takes {found * 1e3:.2g} ms, measured here{what} (--env-seconds)")
    return found


def _calibrated(problem: Problem, options: PlanOptions, path: Path, assumptions: list[str]) -> Problem:
    """The problem calibrated with the run at `path`."""
    own, step = measured_run(path)
    device = problem.machine.device
    check_same_device(step.on_gpu, device is not None, str(path))
    env_seconds = _env_seconds_of(own, problem, options, assumptions)
    found = calibrated(problem, own, planned_model(own, [], []), step, env_seconds)
    times = found.factors
    assumptions.append(
        f"calibrated with {path}: generation takes {times.generation:.2g}, update {times.update:.2g}, records {times.records:.2g} times the "
        "computed seconds" + ("" if device is None else f", which holds if it ran on this GPU ({device_name(device)})")
    )
    return found


def _env_seconds_of(own: SkillTTRLConfig, problem: Problem, options: PlanOptions, assumptions: list[str]) -> float:
    """Seconds of an environment step of the run to calibrate with, which are no part of its generation."""
    if options.env_seconds is None and own.env == problem.config.env:
        return problem.env_seconds
    try:
        return measure_env_seconds(own)[0]
    except ConfigError:
        assumptions.append("environment steps of the run cannot be measured here: they count as generation")
        return 0.0


def _state_lengths(problem: Problem, assumptions: list[str]) -> None:
    lengths = problem.work.lengths
    words = (
        f"{lengths.turns:.3g} turns a rollout, {lengths.prompt:.4g} tokens a prompt, {lengths.response:.4g} a response"
    )
    if problem.measured is not None:
        assumptions.append(f"{words}: those of the run, under this config's limits")
    else:
        asked = {"--tokens": problem.tokens, "--turns": problem.turns if problem.config.agent.max_turns > 1 else 1}
        bound = [name for name, value in asked.items() if value is None]
        assumptions.append(
            f"{words}: the config's limits, so an upper bound (give {' and '.join(bound)}, or --calibrate)"
            if bound
            else words
        )
    assumptions.append("the RL phase alone, without evaluations: skillttrl train CONFIG --dry-run has the other phases")


def _parts(loop: Loop) -> dict[str, float]:
    """Seconds of each part, alone: generation and environments without the other parts."""
    alone = loop.generation_alone
    generation = simulate(alone).step_seconds
    both = simulate(replace(alone, env_seconds=loop.env_seconds)).step_seconds
    return {
        "generation": generation,
        "environment": both - generation,
        "update": loop.update,
        "transfer": loop.transfer,
        "records": loop.records,
    }


def _advice(change: Change | None, now: Outcome) -> str:
    if change is None:
        return "no single setting that was simulated gives 5 % more"
    other = {"speed": "", "off-policy": " (older weights sample)", "learning": " (changes what is learned)"}[
        change.effect
    ]
    return (
        f"{change.setting}{other}: {now.step_seconds:.3g} -> {change.step_seconds:.3g} s a step, {change.gain:.2f} times the tasks a second; "
        f"the bottleneck is then {change.bottleneck}"
    )


def _to_fit(problem: Problem) -> str:
    """Ways to make the model fit, tested by the same estimate."""
    ways = [
        f"--gpus {gpus}"
        for gpus in (problem.machine.gpus * 2**power for power in range(1, 6))
        if scaled(problem, gpus) is not None
    ][:1]
    for key, value in (("model.gradient_checkpointing", True), ("rl.micro_batch_size", 1)):
        other = problem.with_setting(key, value)
        if all(each.fits for each in memory_by_rank(other)):
            ways.append(f"--set {key}={str(value).lower()}")
    return (
        f"It fits with {' or '.join(ways)}." if ways else "Take adapters (model.lora), a smaller model or a larger GPU."
    )
