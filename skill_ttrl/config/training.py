"""Sections of a config: the phases of supervised learning, `sft`, `dagger` and the baseline `vote_sft`. Defaults: SkillRL."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from skill_ttrl.config.data import SourceConfig
from skill_ttrl.config.section import Beta, Section


class SFTConfig(Section):
    """Supervised cold start on demonstrations, loss on completions only."""

    data: SourceConfig | None = None
    """Demonstrations with `prompt` and `response` columns, or those of a family."""
    require_answers: bool = True
    """Refuse demonstrations of math problems if none contains an answer that a vote can read. False: imitate them as they are."""
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
    weight_decay: float = Field(default=0.0, ge=0)
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
    grad_clip: float = Field(default=1.0, gt=0)
    shuffle: bool = True
    """Shuffle the demonstrations in each epoch, with the run's seed. False: use the order of the source (a curriculum)."""
    noise_free_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, from the start, that use a family's demonstrations without noise."""
    prompt_loss_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, from the start, whose loss includes the prompts: an untrained model learns their words and how to copy from them.
    0 for a pretrained model."""
    save_steps: int = Field(default=100, ge=1)
    """Steps between checkpoints."""

    @model_validator(mode="after")
    def _decay_is_linear(self) -> SFTConfig:
        if self.decay_from and self.lr_scheduler != "linear":
            raise ValueError(f"decay_from applies only to lr_scheduler linear, found {self.lr_scheduler}")
        return self


class DaggerConfig(Section):
    """Rounds in which the policy plays training tasks, the expert (`collect.agent`) says at each state what it would do there, and the
    policy imitates that (DAgger, arXiv 1011.0686). Batches, optimizer and schedule are those of `sft`, begun anew in each round.
    """

    rounds: int = Field(default=4, ge=1)
    episodes: int = Field(default=600, ge=1)
    """Episodes that the policy plays per round. Those of all rounds so far are imitated."""
    temperatures: list[Annotated[float, Field(ge=0)]] = Field(default=[0.0, 0.7, 0.4], min_length=1)
    """Sampling temperatures, shared out among the episodes of a round. 0: greedy."""
    max_turns: int | None = Field(default=None, ge=1)
    """Longest episode, in turns; None: `agent.max_turns`."""
    structured_actions: bool | None = None
    """As `agent.structured_actions`, for these episodes; None: the same. Unrestricted, the policy also gets labels for its invalid actions."""
    steps: Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=1)]] = 200
    """Updates per round; a list: one value for each round."""
    demonstrations: float = Field(default=0.5, ge=0, lt=1)
    """Share of a round's data that is drawn from the demonstrations of `sft`; the rest are the policy's own labeled episodes. Each pass
    over these uses other demonstrations."""
    learning_rate: float | None = Field(default=None, gt=0, le=10)
    """Peak rate of AdamW; None: as in `sft`."""
    muon_learning_rate: float | None = Field(default=None, gt=0, le=10)
    """Peak rate of Muon; None: as in `sft`."""
    eval_rounds: int | None = Field(default=None, ge=1)
    """Rounds between evaluations, named "dagger 0" (before the first round; "before" if no phase follows), "dagger 1" and so on. None:
    none."""
    save_steps: int = Field(default=100, ge=1)
    """Updates between checkpoints within a round. Another is saved once a round's episodes are played, and one at its end."""

    @model_validator(mode="after")
    def _steps_of_each_round(self) -> DaggerConfig:
        if isinstance(self.steps, list) and len(self.steps) != self.rounds:
            raise ValueError(f"steps has {len(self.steps)} values for {self.rounds} rounds")
        return self

    @property
    def round_steps(self) -> list[int]:
        """Updates of each round."""
        return self.steps if isinstance(self.steps, list) else [self.steps] * self.rounds

    @property
    def evaluations(self) -> int:
        """Evaluations before the first round and between rounds."""
        return 0 if self.eval_rounds is None else 1 + (self.rounds - 1) // self.eval_rounds


class VoteSFTConfig(Section):
    """The baseline: fine-tuning on the samples that agree with their majority, with as many samples as the rl phase (LMSI, arXiv 2210.11610). Steps, prompts, `micro_batch_size`, `betas`, `weight_decay` and `grad_clip` are those of `rl`."""

    passes: int = Field(default=1, ge=1)
    """Passes over the samples that agree."""
    batch_size: int = Field(default=64, ge=1)
    """Samples per optimizer step."""
    learning_rate: float = Field(default=1e-5, gt=0, le=10)
    """Peak rate of AdamW; small models can use more."""
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    """Share of the optimizer's steps."""
    lr_scheduler: Literal["constant", "cosine"] = "cosine"
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Final rate of the cosine, as a share of the peak."""
    save_steps: int = Field(default=100, ge=1)
    """Steps between checkpoints while learning; while sampling, `rl.save_steps` rounds."""
