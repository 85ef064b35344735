"""Sections of a config: collected episodes, skills distilled from them, supervised phases, and skills that evolve. Defaults: SkillRL."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from skill_ttrl.config.data import DemonstrationSource
from skill_ttrl.config.section import Beta, Section


class SFTConfig(Section):
    """Supervised cold start on demonstrations, loss on completions only."""

    data: DemonstrationSource | None = None
    """Demonstrations with `prompt` and `response` columns, or those of a family."""
    steps: int = Field(default=500, ge=0)
    batch_size: int = Field(default=64, ge=1)
    """Demonstrations per step."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a step's demonstrations, prompts included, instead of `batch_size`; a longer demonstration is a batch of its own."""
    micro_batch_size: int = Field(default=64, ge=1)
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: hidden matrices use Muon, everything else AdamW."""
    learning_rate: float = Field(default=1e-4, gt=0, le=10)
    """Peak rate of AdamW (SkillRL: 1e-4)."""
    muon_learning_rate: float = Field(default=0.02, gt=0, le=10)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    warmup_steps: int = Field(default=20, ge=0)
    lr_scheduler: Literal["constant", "cosine", "linear"] = "cosine"
    """Schedule of the rates after the warm-up. `linear`: constant until `decay_from`, then a straight line."""
    decay_from: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps after which the linear schedule starts to fall; 0: right after the warm-up."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Final rate, as a share of the peak."""
    lr_restart_at: float | None = Field(default=None, gt=0, lt=1)
    """Share of the steps after which the schedule restarts, warm-up included (SGDR, arXiv 1608.03983); None: never."""
    lr_restart_scale: float = Field(default=1.0, gt=0)
    """Peak rates after the restart, relative to those before."""
    shuffle: bool = True
    """Shuffle the demonstrations in each epoch, with the run's seed. False: use the order of the source (a curriculum)."""
    noise_free_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, from the start, that use a family's demonstrations without noise."""
    prompt_loss_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, from the start, whose loss includes the prompts: an untrained model learns their words and how to copy from them.
    0 for a pretrained model."""
    save_steps: int = Field(default=100, ge=1)
    """Steps between checkpoints, in `dagger` and `vote_sft` too."""

    @model_validator(mode="after")
    def _decay_is_linear(self) -> SFTConfig:
        if self.decay_from and self.lr_scheduler != "linear":
            raise ValueError(f"decay_from applies only to lr_scheduler linear, found {self.lr_scheduler}")
        return self


class DaggerConfig(Section):
    """Rounds in which the policy plays training tasks, the expert (`collect.agent`) says at each state what it would do there, and the
    policy imitates that (DAgger, arXiv 1011.0686). Batches, optimizer, schedule and `save_steps` are those of `sft`, begun anew in each
    round; a checkpoint is also saved once a round's episodes are played, and at its end.
    """

    rounds: int = Field(default=4, ge=1)
    episodes: int = Field(default=600, ge=1)
    """Episodes that the policy plays per round. Those of all rounds so far are imitated."""
    steps: Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=1)]] = 200
    """Updates per round; a list: one value for each round."""

    @model_validator(mode="after")
    def _steps_of_each_round(self) -> DaggerConfig:
        if isinstance(self.steps, list) and len(self.steps) != self.rounds:
            raise ValueError(f"steps has {len(self.steps)} values for {self.rounds} rounds")
        return self

    @property
    def round_steps(self) -> list[int]:
        """Updates of each round."""
        return self.steps if isinstance(self.steps, list) else [self.steps] * self.rounds


class VoteSFTConfig(Section):
    """The baseline: fine-tuning on the samples that agree with their majority, with as many samples as the rl phase (LMSI, arXiv
    2210.11610). Steps, prompts, `micro_batch_size`, `betas`, `weight_decay` and `grad_clip` are those of `rl`; while sampling, so is
    `save_steps`.
    """

    passes: int = Field(default=1, ge=1)
    """Passes over the samples that agree."""
    batch_size: int = Field(default=64, ge=1)
    """Samples per optimizer step."""
    learning_rate: float = Field(default=1e-5, gt=0, le=10)
    """Peak rate of AdamW; small models can use more."""


Share = Annotated[float, Field(ge=0, le=1)]


class CollectConfig(Section):
    """The phase collect: episodes to distill skills from and to imitate."""

    agent: str = "expert"
    """A scripted agent (`expert`, `random`, `first`, `constant:TEXT`, `walkthrough`, `rule`, `careful`, `brief`, `module:attribute`), or a policy: a run, a model, `openai`."""
    data: list[str] | None = Field(default=None, min_length=1)
    """Data sets to play one after another, each in the place of `env.kwargs.data`, such as `[official, "generated:10000"]`, with `episodes`
    and `rollouts_per_task` for each. None: that of `env.kwargs`. It does not affect what the run trains and evaluates on."""
    episodes: int | None = Field(default=64, ge=1)
    """Number of episodes; None: `rollouts_per_task` for every training task."""
    rollouts_per_task: int = Field(default=1, ge=1)
    """Episodes of each task."""
    epsilon: Share | Annotated[list[Share], Field(min_length=1)] = 0.0
    """Probability that a scripted agent's step takes a random admissible action instead of its own, which the step's info records as
    `expert_action`. A list gives one value per rollout of a task, such as `[0, 0.1, 0.2, 0.3]` with `rollouts_per_task: 4`."""
    explore_moves: float = Field(default=0.0, ge=0, le=1)
    """Share of these random actions that only move (`explore_moves_like`), if the environment lists any. A move changes nothing but the
    place, so it leaves the task solvable and teaches the way back."""
    explore_moves_like: list[str] = Field(default=["go to *"], min_length=1)
    """Actions that only move: a text, or its beginning followed by `*`."""
    explore_never: list[str] = Field(default_factory=list)
    """Actions never taken at random, such as the one that ends an episode: a text, or its beginning followed by `*`. If no other action is
    possible, the agent's own is taken."""
    max_steps: int | None = Field(default=None, ge=1)
    """Longest episode of a scripted agent, in steps; None: the environment's limit."""


class DistillConfig(Section):
    """The phase distill: skills from successes and failures, by type of task."""

    teacher: str = "heuristic"
    """Teacher that writes the skills: `heuristic` (what winners did and losers did not; no language model), `openai`
    (`endpoints`), or `module:attribute` of your own."""
    max_general: int = Field(default=12, ge=0)
    """Most general principles (SkillRL: 8-12, WebShop 10-15)."""
    max_specific: int = Field(default=6, ge=0)
    """Most skills of one type of task (SkillRL: 4-6)."""
    max_mistakes: int = Field(default=12, ge=0)
    """Most mistakes to avoid (SkillRL: 8-12)."""
    successes: int = Field(default=5, ge=0)
    """Won episodes of each type to show the teacher (SkillRL: 5; WebShop: 8)."""
    failures: int = Field(default=5, ge=0)
    """Lost episodes of each type to show the teacher."""


class DemonstrationsConfig(Section):
    """Demonstrations of the phase sft if `sft.data` is not set: steps of collected episodes, with skills in their prompts."""

    trajectories: str | list[str] | None = None
    """One or more files of collected episodes; None: those of the run's phase collect."""
    examples: int | None = Field(default=7500, ge=1)
    """Most steps to imitate (SkillRL: 7,500 of ALFWorld, 2,400 of WebShop), spread over episodes; None: all."""
    label: Literal["success", "expert"] = "success"
    """Actions to imitate: `success`: those of won episodes. `expert`: the agent's own action at each step of every episode (see
    `collect.epsilon`)."""
    rationale: Literal["none", "openai"] = "none"
    """Content of `<think>`. `none`: no tag. `openai`: a text written by the teacher of `endpoints`."""
    no_skill_fraction: float = Field(default=0.2, ge=0, le=1)
    """Share of the episodes whose prompts have no skills, so that the policy learns what skills add."""
    random_skill_fraction: float = Field(default=0.1, ge=0, le=1)
    """Share of the episodes whose prompts have random skills of the bank instead of retrieved ones."""


class EvolveConfig(Section):
    """Skills evolve during training: failures on training tasks lead to new and better skills."""

    every: int = Field(default=5, ge=1)
    """Steps of the rl phase between two checks of success by task type (SkillRL: 5)."""
    threshold: float = Field(default=0.4, gt=0, le=1)
    """Task types whose success since the last check is below this are analyzed (SkillRL: 0.4). To turn evolution off, remove the section."""
    min_episodes: int = Field(default=8, ge=1)
    """Episodes of a type needed to judge it."""
    max_failures_below_threshold: int = Field(default=10, ge=1)
    """Failures to analyze of types below the threshold (SkillRL: 10)."""
    max_failures_above_threshold: int = Field(default=5, ge=0)
    """Failures to analyze of types above the threshold but not perfect, once any type is below it (SkillRL: 5)."""
    max_new_skills: int = Field(default=3, ge=0)
    """Most new or changed skills per round (SkillRL: 3)."""
    teacher: str = "heuristic"
    """As `distill.teacher`, or `analogy`: copies skills of other task types, filled in with the actions offered in failures of a type
    without skills. They are guesses: use it with `skills.gate`."""
