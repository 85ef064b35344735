"""Sections of a config: the phases of supervised learning, `sft`, `dagger` and the baseline `vote_sft`. Defaults: SkillRL."""

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
