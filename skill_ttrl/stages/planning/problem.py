"""A plan's question as one value: a config on a machine, with all that is known of its rollouts. Its answers are a loop and a memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.rl.memory import DecoderShape
from skill_ttrl.rollout.rollout import THREADS
from skill_ttrl.stages.doctor.memory import engine_on_gpu
from skill_ttrl.stages.planning.cost import (
    AS_COMPUTED,
    BF16,
    RECORD_SECONDS,
    Factors,
    decoding,
    transfer_seconds,
    update_seconds,
)
from skill_ttrl.stages.planning.machine import Machine
from skill_ttrl.stages.planning.simulate import Loop
from skill_ttrl.stages.planning.workload import Lengths, Workload, bounds, count, limited
from skill_ttrl.stages.training.ahead import barriers
from skill_ttrl.stages.training.components import schedule_of

MAX_TURNS = 8
"""Turns that are simulated; more are lumped together."""
MAX_SIMULATED = 1000
"""Turns of all simulated rollouts of a step; with more of them one simulated rollout stands for several."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A config on a machine."""

    config: SkillTTRLConfig
    model_config: Any
    """The model's transformers config."""
    shape: DecoderShape
    machine: Machine
    env_seconds: float = 0.0
    """Of one environment step."""
    slow_fraction: float = 0.0
    slow_factor: float = 1.0
    tokens: float | None = None
    """Mean tokens of a response; None: those of `measured`, else the config's limit."""
    turns: float | None = None
    """Mean turns of a rollout; None: as for `tokens`."""
    measured: Lengths | None = None
    """Lengths of a run."""
    factors: Factors = AS_COMPUTED

    @property
    def work(self) -> Workload:
        """Counts of a step."""
        if self.measured is None:
            return count(self.config, bounds(self.config, self.tokens, self.turns))
        return count(self.config, limited(self.measured, self.config, self.tokens, self.turns))

    @property
    def staleness(self) -> int:
        """Steps that generation may be ahead: none where it shares the learner's devices."""
        return self.config.rl.max_staleness if self.machine.rollout_gpus else 0

    @property
    def slots(self) -> int:
        """Sequences that a replica decodes at once, as the config and the engine's cache allow."""
        config, device, facts = self.config, self.machine.device, backend_facts(self.config)
        if config.rollout.backend != "vllm":
            return config.rollout.max_batch_size if facts.is_learner or facts.is_copy else config.vllm.max_num_seqs
        if device is None:
            return config.vllm.max_num_seqs
        rows = engine_on_gpu(config, self.shape, BF16, int(device.memory))[2]
        return min(config.vllm.max_num_seqs, int(rows))

    def loop(self) -> Loop:
        """The loop of this config on this machine, with the seconds of its parts."""
        config, machine, work, factors = self.config, self.machine, self.work, self.factors
        turns = min(MAX_TURNS, max(1, math.ceil(work.lengths.turns)))
        lumped = work.lengths.turns / turns
        most = max(1, work.rollouts // machine.replicas)
        weight = min(most, math.ceil(work.rollouts * turns / MAX_SIMULATED))
        lockstep = schedule_of(config) == "sync"
        loop = Loop(
            rollouts=work.rollouts,
            turns=turns,
            lengths=tuple(each * lumped for each in work.lengths.responses),
            decoding=decoding(config, self.shape, machine, work),
            replicas=machine.replicas,
            slots=max(1, self.slots),
            env_seconds=self.env_seconds * lumped,
            env_slots=1 if lockstep else THREADS,
            slow_fraction=self.slow_fraction,
            slow_factor=self.slow_factor,
            lockstep=lockstep,
            update=update_seconds(config, self.shape, machine, work) * factors.update,
            transfer=transfer_seconds(config, self.shape, machine) * factors.transfer,
            records=RECORD_SECONDS * work.rollouts * work.lengths.turns * factors.records,
            split=machine.rollout_gpus > 0,
            max_staleness=self.staleness,
            in_turn=not config.rl.in_flight_updates,
            barriers=barriers(config.rl),
            weight=weight,
            seed=config.seed,
        )
        return loop.faster("generation", 1 / factors.generation)

    def with_setting(self, key: str, value: Any) -> Problem:
        """The same with another value of a config's key (`rollout.mode`).

        Raises:
            ConfigError: the key cannot have this value in this config.
        """
        config = self.config.model_copy(deep=True)
        *sections, name = key.split(".")
        section: Any = config
        for each in sections:
            section = getattr(section, each)
        try:
            setattr(section, name, value)
        except ValidationError as error:
            raise ConfigError(f"{key}={value} does not go with this config: {error.errors()[0]['msg']}.") from None
        return replace(self, config=config)
