"""The whole configuration of a run: every section, what contradicts what among them, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from skill_ttrl.config.backends import EndpointsConfig, ProgramConfig, VLLMConfig
from skill_ttrl.config.data import BUILTIN, DataConfig, EnvConfig, ModelConfig, RuntimeConfig, ScaleConfig, Source
from skill_ttrl.config.rl import RLConfig
from skill_ttrl.config.sampling import AgentConfig, EvalConfig, RolloutConfig, VoteConfig
from skill_ttrl.config.section import Section, write_yaml
from skill_ttrl.config.seed_keys import SeedSections
from skill_ttrl.config.skills import GateConfig, OptimizeConfig, SkillsConfig
from skill_ttrl.config.training import (
    CollectConfig,
    DaggerConfig,
    DemonstrationsConfig,
    DistillConfig,
    EvolveConfig,
    SFTConfig,
    VoteSFTConfig,
)

Phase = Literal["collect", "distill", "sft", "dagger", "rl", "vote_sft"]
ROLLING: tuple[Phase, ...] = ("rl", "vote_sft", "dagger")
"""Phases of training that roll out."""
_NO_SETTINGS = ("name", "seed", "run", "scale", "verified", "requires")
AROUND_SKILLS = 256
"""Tokens left for the templates around the skills of a prompt, and around those of an answer to a question."""


class RunConfig(Section):
    """Tracking, checkpoints and stored samples of a run."""

    report_to: Literal["none", "tensorboard", "wandb", "trackio"] = "none"
    save_total_limit: int | None = Field(default=3, ge=1)
    """Number of newest checkpoints to retain per phase; None: all."""
    baseline: str | None = None
    """Folder of another run whose evaluation of the starting policy (`before`) takes the place of a new one, for controls. A run whose
    settings give another evaluation is refused."""
    save_trajectories: bool = True
    """Write every trajectory with ids, log-probs and rewards. The phase vote_sft always does: it learns from them."""
    save_eval_samples: bool = False
    """Write every sample of every evaluation, with its text and score, to `eval_samples.jsonl` (verl: `validation_data_dir`)."""


class SkillTTRLConfig(SeedSections, Section):
    """Everything a run depends on. `algorithm`, `skill_bank`, `merger` and `trainer` are aliases (`SeedSections`)."""

    name: str = Field(default="run", pattern=r"^[^/\\.][^/\\]*$")
    """Name of the run folder if there is no `--output`: no slashes, no leading dot."""
    seed: int = Field(default=0, ge=0)
    phases: list[Phase] = Field(default=["rl"])
    """Phases of `skillttrl train`, in order."""
    verified: dict[str, str] | None = None
    """Record of a run of exactly these settings, without effect: `date`, `hardware`, `wall_time`, `peak_memory`, `result` and `config_digest`
    (`settings_digest`); None: there is none."""
    requires: str | None = None
    """Part of the framework that this recipe still lacks; the run reports it and does not start."""
    env: EnvConfig = Field(default_factory=EnvConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    agent: AgentConfig = Field(default_factory=AgentConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    collect: CollectConfig = Field(default_factory=CollectConfig)
    distill: DistillConfig = Field(default_factory=DistillConfig)
    demonstrations: DemonstrationsConfig = Field(default_factory=DemonstrationsConfig)
    sft: SFTConfig = Field(default_factory=SFTConfig)
    dagger: DaggerConfig = Field(default_factory=DaggerConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    vllm: VLLMConfig = Field(default_factory=VLLMConfig)
    endpoints: EndpointsConfig = Field(default_factory=EndpointsConfig)
    program: ProgramConfig | None = None
    """The program that plays each episode; None: none, and the model answers by itself."""
    vote: VoteConfig = Field(default_factory=VoteConfig)
    rl: RLConfig = Field(default_factory=RLConfig)
    vote_sft: VoteSFTConfig = Field(default_factory=VoteSFTConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    skills: SkillsConfig | None = None
    """The skill bank; None: no skills."""
    evolve: EvolveConfig | None = None
    """Skills from failures on training tasks, in the rl phase; None: none."""
    optimize: OptimizeConfig | None = None
    """Optimization of a skill document, for `skillttrl optimize`; None: the defaults."""
    run: RunConfig = Field(default_factory=RunConfig)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    scale: ScaleConfig = Field(default_factory=ScaleConfig)

    @field_validator("phases")
    @classmethod
    def _phases_in_order(cls, phases: list[Phase]) -> list[Phase]:
        order = [*get_args(Phase)]
        if not phases or phases != sorted(set(phases), key=order.index) or {"rl", "vote_sft"} <= {*phases}:
            raise ValueError(
                f"phases must be chosen from {', '.join(order)}, in this order; the baseline vote_sft replaces rl"
            )
        return phases

    @model_validator(mode="after")
    def _sections_fit_together(self) -> SkillTTRLConfig:
        if problems := [*self._contradictions()]:
            raise ValueError("\n".join(problems))  # one line each: all of them are shown at once
        return self

    def _contradictions(self) -> Iterator[str]:
        notes = self.skills is not None and self.skills.episode_notes
        if notes and self.skills and (self.agent.max_turns < 2 or not self.skills.max_retrievals):
            yield "skills.episode_notes needs agent.max_turns above 1 and skills.max_retrievals above 0"
        if "distill" in self.phases and self.skills is None:
            yield "the phase distill needs a skills section to store skills in"
        if self.evolve is not None and self.skills is None:
            yield "evolve needs a skills section to store skills in"
        if self.rl.dynamic_sampling and self.rollout.n_samples_per_prompt == 1:
            yield "rl.dynamic_sampling needs rollout.n_samples_per_prompt above 1: a single sample never differs in reward"
        if self.agent.actions == "numbered" and (not self.agent.windowed or self.agent.action_parser != "action"):
            yield "agent.actions=numbered needs agent.context_mode=window and agent.action_parser=action"
        if (self.agent.action_order == "words" or self.agent.hidden_verbs) and not self.agent.windowed:
            yield "agent.action_order=words and agent.hidden_verbs need agent.context_mode=window: other prompts list no actions"
        embedded = self.model.path == BUILTIN and self.model.builtin.vocabulary == "entities"
        named = self.sft.data is not None or self.demonstrations.trajectories is not None
        if embedded and not named and "collect" not in self.phases:
            yield (
                "model.builtin.vocabulary=entities takes its words from demonstrations: name a file of episodes in demonstrations.trajectories, "
                "or put the phase collect first"
            )
        if notes and self.agent.windowed:
            yield "skills.episode_notes needs agent.context_mode=conversation"

    @property
    def train_source(self) -> Source | None:
        """The source that `data.train` names; None: the environment's own tasks."""
        return self.data.source(self.data.train)

    @property
    def eval_source(self) -> Source | None:
        """The source that `data.eval` names."""
        return self.data.source(self.data.eval)

    @property
    def demonstration_source(self) -> Source | None:
        """The source that `sft.data` names; None: episodes are imitated."""
        return self.data.source(self.sft.data)

    @property
    def evaluation_split(self) -> str:
        """Name of what a run is measured on: the environment's own split, or "test" where the tasks come from files."""
        return self.env.eval_split if self.data.eval is None and self.data.train is None else "test"

    @property
    def training_splits(self) -> set[str]:
        """Names of the splits whose tasks may be learned from."""
        train = self.data.train
        return {"train", self.env.train_split} | ({train.split} if train is not None and train.split else set())

    @property
    def gate(self) -> GateConfig | None:
        """The gate of a run; None where no bank changes in it, or all changes are applied as they come."""
        return self.skills.gate if self.skills is not None and self.skills.enabled and self.reinforces else None

    @property
    def runs_ahead(self) -> bool:
        """True if rollouts run ahead of the learner."""
        return self.reinforces and self.rl.max_staleness > 0

    @property
    def context_parts(self) -> dict[str, int]:
        """Tokens that the longest prompt and answer may take together, by the settings that bound them."""
        parts = {
            "data.max_prompt_tokens": self.data.max_prompt_tokens,
            "rollout.max_new_tokens": self.rollout.max_new_tokens,
        }
        if (skills := self.skills) is not None and skills.enabled:
            parts["skills.prompt_max_tokens"] = skills.prompt_max_tokens if skills.prompt_top_k else 0
            parts["skills.max_retrievals x skills.retrieval_max_tokens"] = (
                skills.max_retrievals * skills.retrieval_max_tokens
            )
        return parts

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt and completion together, with room for the templates around skills."""
        needed = self.data.max_prompt_tokens + self.rollout.max_new_tokens
        if (skills := self.skills) is not None:
            needed += (skills.prompt_max_tokens + AROUND_SKILLS) * (skills.prompt_top_k > 0)
            needed += skills.max_retrievals * (skills.retrieval_max_tokens + AROUND_SKILLS)
        return needed

    @property
    def reinforces(self) -> bool:
        """True where the phase rl trains."""
        return "rl" in self.phases

    @property
    def votes(self) -> bool:
        """True where a phase learns from groups of rollouts that vote."""
        return self.reinforces or "vote_sft" in self.phases

    @property
    def imitates(self) -> bool:
        """True where a phase imitates demonstrations."""
        return bool({"sft", "dagger"} & {*self.phases})

    @property
    def learning_phases(self) -> list[Phase]:
        """The phases in which weights change."""
        return [phase for phase in self.phases if phase not in ("collect", "distill")]

    @property
    def rolls_out(self) -> bool:
        """True if a phase of training samples rollouts, which workers can share."""
        return any(phase in self.phases for phase in ROLLING)

    def for_worker(self) -> SkillTTRLConfig:
        """The config of a worker: as many threads as CPUs are reserved for it, where `runtime.threads` is null."""
        config = self.model_copy(deep=True)
        config.runtime.threads = config.runtime.threads or max(1, int(config.scale.cpus_per_worker))
        return config

    def stated(self) -> dict[str, Any]:
        """Settings that differ from the defaults, as plain data."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def to_yaml(self, *, sparse: bool = False) -> str:
        """The config as YAML; `sparse` leaves out what equals the defaults."""
        return write_yaml(self.stated() if sparse else self.model_dump(mode="json"))

    def save(self, path: str | Path) -> None:
        """Write the whole resolved config to `path` (YAML)."""
        Path(path).write_text(self.to_yaml(), encoding="utf-8")


def settings_digest(config: SkillTTRLConfig) -> str:
    """16 hexadecimal digits that are the same for the same settings: those that differ from their defaults, but for the seed, names,
    where a run is saved and where its episodes run, and revisions, which a run pins.
    """
    chosen = config.model_dump(mode="json", exclude_defaults=True, exclude=set(_NO_SETTINGS))
    text = json.dumps(_without_revisions(chosen), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def verified_note(config: SkillTTRLConfig) -> str:
    """Verification status of a config: its `verified`, "untested", or a note that its settings differ from those that were run."""
    found = config.verified
    if found is None:
        return "untested"
    if found.get("config_digest") != settings_digest(config):
        return "untested with these settings (changed since they were verified)"
    return "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in found.items() if name != "config_digest")


def _without_revisions(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_revisions(each)
            for name, each in value.items()
            if not name.endswith(("revision", "revisions"))
        }
    return [_without_revisions(each) for each in value] if isinstance(value, list) else value
