"""`--dry-run`: every check that `train` makes before it starts, and the sizes of the run that are known. Nothing is sampled or written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from skill_ttrl.config import BUILTIN, SkillTTRLConfig
from skill_ttrl.errors import ConfigError, ModelError, SkillTTRLError
from skill_ttrl.llm.models.model_config import load_model_config, published_config
from skill_ttrl.rl.device import device_memory, gpus
from skill_ttrl.stages.doctor.backends import context_checks
from skill_ttrl.stages.doctor.memory import MemoryEstimate, estimate_memory
from skill_ttrl.stages.doctor.missing import missing_servers
from skill_ttrl.stages.doctor.preflight import Preflight, look_before
from skill_ttrl.stages.setup.checks import check_names
from skill_ttrl.stages.setup.defaults import overruled, with_defaults
from skill_ttrl.stages.setup.ranks import TooManyRanksError

H100_BYTES = 80_000_000_000
"""Memory of the GPU that a real model is estimated for where this machine has none."""


@dataclass(frozen=True, slots=True)
class PhaseSize:
    """What one phase does. None: not known before the run."""

    phase: str
    steps: int | None = None
    prompts: int | None = None
    """Tasks or problems of a step; of all, in a phase without steps."""
    samples: int | None = None
    """Episodes, answers or examples in all."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """Sizes of a run, and what keeps it from starting."""

    name: str
    model: str
    parameters: int
    trainable: int
    train_tasks: int | None
    evaluated_tasks: int | None
    phases: list[PhaseSize]
    memory: dict[str, int]
    """Bytes by part, of one rank."""
    peak: int
    """Bytes on one device: ranks on a CPU share it, each GPU has one rank."""
    available: int
    """Bytes of that device."""
    ranks: int
    notes: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    """Why a run of it would not start; empty: it would."""
    exit_code: int = 0
    """With which `skillttrl train` would refuse it, or 5 where memory is too small; 0: it would not, as far as can be seen here."""


def dry_run(config: SkillTTRLConfig, *, asks_ranks: bool = False) -> DryRun:
    """Check what a run of `config` checks before it starts, and state its sizes.

    Args:
        config: The config as given.
        asks_ranks: The command line says how many ranks (`setup.ranks.check_gpus`).

    Raises:
        ModelError: the model's config can be had nowhere.
        SkillTTRLError: nothing has a name that the config calls (`check_names`).
    """
    check_names(config)
    stated, notes, missing = config, list[str](), list[SkillTTRLError]()
    with suppress(SkillTTRLError):  # such an environment is among the refusals
        config = with_defaults(config)
    model_config = _model(config, notes, missing)
    memory, available = _memory(config, model_config, notes)
    found = look_before(stated, asks_ranks=asks_ranks)
    peak = 0 if memory.device == "cpu" and _too_many(found) else memory.on_device
    refusals = [
        *found.refusals, *missing, *missing_servers(config), *_too_large(config, model_config, peak, available),
    ]  # fmt: skip
    return DryRun(
        config.name,
        config.model.path,
        memory.parameters,
        memory.trainable,
        found.train,
        found.evaluated,
        [_phase(name, config, found) for name in (*config.phases, "evaluate")],
        dict(memory.parts),
        memory.on_device,
        available,
        memory.ranks,
        [*notes, *found.notes, *(overruled(config) if "rl" in config.phases else ())],
        [str(each).rstrip(".") for each in refusals],
        refusals[0].exit_code if refusals else 0,
    )


def _too_large(config: SkillTTRLConfig, model_config: Any, peak: int, available: int) -> Iterator[SkillTTRLError]:
    """Prompts that the model has no positions for, and `peak` bytes where the device has fewer."""
    for check in context_checks(config, model_config):
        if check.status == "fail":
            yield ConfigError(f"{check.found}. {check.advice}")
    if peak > available:
        yield ModelError(
            f"it needs {peak / 1e9:.1f} GB at its peak and the device has {available / 1e9:.1f} GB: take adapters (model.lora), "
            "gradient checkpointing, a smaller micro-batch, several GPUs (--nproc, runtime.parallel=fsdp), or a smaller model"
        )


def _too_many(found: Preflight) -> bool:
    """True where the ranks were refused whatever their model is: its memory is no further reason then."""
    return any(isinstance(each, TooManyRanksError) for each in found.refusals)


def _phase(name: str, config: SkillTTRLConfig, found: Preflight) -> PhaseSize:
    rl, rollout = config.rl, config.rollout
    if name == "collect":
        count = config.collect.episodes or (found.train or 0) * config.collect.rollouts_per_task
        return PhaseSize(name, prompts=found.train, samples=count * len(config.collect.data or [None]) or None)
    if name == "sft":
        batch = config.sft.batch_size if config.sft.batch_tokens is None else None
        return PhaseSize(name, config.sft.steps, batch, None if batch is None else config.sft.steps * batch)
    if name == "dagger":
        own = config.dagger
        return PhaseSize(name, sum(own.round_steps), own.episodes, own.rounds * own.episodes)
    if name in ("rl", "vote_sft"):
        return PhaseSize(
            name, rl.steps, rl.prompts_per_step, rl.steps * rl.prompts_per_step * rollout.n_votes_per_prompt
        )
    if name == "evaluate" and found.evaluated:
        each = config.eval.samples * (1 + len(config.eval.extra_temperatures)) + config.eval.greedy
        return PhaseSize(name, prompts=found.evaluated, samples=found.evaluated * each)
    return PhaseSize(name)


def _model(config: SkillTTRLConfig, notes: list[str], missing: list[SkillTTRLError]) -> Any:
    """The transformers config of the model; the published one, with a line in both lists, where no file of it is reached.

    Raises:
        ModelError: it can be had nowhere.
    """
    try:
        return load_model_config(config.model)
    except ModelError:
        known = published_config(config.model.path)
        if known is None:
            raise
        missing.append(
            ModelError(
                f"The model {config.model.path} is no folder here and not in the Hugging Face cache, and the hub was not reached. Allow the "
                "network, or download the model and set model.path to its folder"
            )
        )
        notes.append(f"the shape of {config.model.path} is the published one: its config.json was not reached")
        return known


def _memory(config: SkillTTRLConfig, model_config: Any, notes: list[str]) -> tuple[MemoryEstimate, int]:
    """The estimate, and the bytes of the device; a real model is not estimated for a CPU that was not asked for."""
    if gpus() and config.runtime.device != "cpu":
        return estimate_memory(config, model_config), device_memory("cuda")
    if config.runtime.device == "cpu" or config.model.path == BUILTIN:
        return estimate_memory(config, model_config, device="cpu"), device_memory("cpu")
    precision = "bf16" if config.runtime.precision == "auto" else None
    notes.append(f"there is no GPU here: memory is estimated for one of {H100_BYTES / 1e9:.0f} GB")
    estimate = estimate_memory(config, model_config, device="cuda", precision=precision, total=H100_BYTES)
    return estimate, H100_BYTES
