"""Sections of a config: the phases that change weights, `sft`, `rl` and the baseline `vote_sft`. Defaults: TTRL and SkillRL."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from skill_ttrl.config.data import SourceConfig
from skill_ttrl.config.section import Beta, Section


class SFTConfig(Section):
    """Supervised cold start on demonstrations, loss on completions only."""

    data: SourceConfig | None = None
    """Demonstrations with `prompt` and `response` columns, or a family's."""
    steps: int = Field(default=500, ge=0)
    batch_size: int = Field(default=64, ge=1)
    """Demonstrations a step."""
    micro_batch_size: int = Field(default=64, ge=1)
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` takes hidden matrices, AdamW the rest."""
    learning_rate: float = Field(default=1e-4, gt=0, le=10)
    """Peak rate of AdamW (SkillRL: 1e-4)."""
    muon_learning_rate: float = Field(default=0.02, gt=0, le=10)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=20, ge=0)
    schedule: Literal["constant", "cosine"] = "cosine"
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Where the cosine ends, as a share of the peak."""
    restart_after: float | None = Field(default=None, gt=0, lt=1)
    """Share of the steps after which the schedule begins again, warm-up included (SGDR, arXiv 1608.03983); None: never."""
    restart_scale: float = Field(default=1.0, gt=0)
    """Peak rates after the restart, as a share of those before."""
    grad_clip: float = Field(default=1.0, gt=0)
    order: Literal["shuffled", "given"] = "shuffled"
    """Of the demonstrations: each epoch one shuffle drawn from the run's seed, or as the source has them (a curriculum)."""
    clean_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, from the start, that see a family's demonstrations without noise."""
    whole_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, from the start, whose loss is on the prompts too: a model that has read nothing yet learns its words and how
    to copy from them. 0 for a pretrained one."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints."""


class RLConfig(Section):
    """Reinforcement learning: what is rewarded and how the weights follow. Defaults but that of `steps`: TTRL (arXiv 2504.16084, §3.1)."""

    reward: str = "majority"
    """`majority` (no labels), the controls `label`, `random`, `format`, `env` (the environment's own return),
    `module:function`, or `model:PATH` for a Hugging Face reward model."""
    reward_revision: str | None = None
    """Commit of a hub's reward model, or digest of the files of one in a folder; recorded when it is resolved."""
    steps: int = Field(default=80, ge=0)
    """Steps of `prompts_per_step` prompts each. TTRL counts passes over the data instead: 80 of AIME 2024, 30 of AMC, 10 of MATH-500; n
    passes over P problems are n * (P // `prompts_per_step`) steps. On resume it may be larger (docs/resume.md)."""
    prompts_per_step: int = Field(default=8, ge=1)
    algorithm: dict[str, Any] | None = None
    """An algorithm with options of its own: `type` (a registered name, or `module:Class`) and that algorithm's options. None: GRPO with
    `advantage`, `loss`, the clips and so on of this section."""
    advantage: str = "grpo"
    group_statistics: Literal["episodes", "steps"] = "episodes"
    """What mean and deviation of a group of episodes are taken over. `episodes`: each episode weighs the same, however long it
    is. `steps`: each step does, so that long ones weigh more (verl-agent, SkillRL)."""
    invalid_penalty: float = Field(default=0.0, ge=0)
    """Taken off the reward of each step whose action was invalid (SkillRL: 0.1, beside a reward of 10)."""
    loss: str = "ppo_clip"
    learning_rate: float = Field(default=5e-7, gt=0, le=10)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: float = Field(default=0.01, ge=0)
    warmup_steps: int | None = Field(default=None, ge=0)
    """None: `warmup_ratio` of the optimiser's steps."""
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    schedule: Literal["constant", "cosine"] = "cosine"
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    grad_clip: float = Field(default=1.0, gt=0)
    epochs: int = Field(default=1, ge=1)
    """Passes over each batch of rollouts."""
    mini_batch_prompts: int | None = Field(default=1, ge=1)
    """Prompts in each optimiser step (TTRL: 1, that is 32 samples); None: all of the batch in one."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Sequences in each forward pass; gradients accumulate over them. Changes memory, not results."""
    clip_ratio: float = Field(default=0.2, gt=0)
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper clip when it differs (DAPO: 0.28); None: the same as `clip_ratio`."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound on the loss of a sample with negative advantage, as a multiple of it; None: no bound."""
    loss_aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    kl_coef: float = Field(default=0.001, ge=0)
    """Weight of the KL term towards the reference model, in the loss; 0 keeps no reference model."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    sampler_correction: Literal["auto", "none", "truncate", "mask"] = "auto"
    """What is done about a sampler whose log-probs are not the learner's own (docs/learner.md). `truncate`: each token's
    advantage is weighted by min(p_learner / p_sampler, cap) (truncated importance sampling); `mask`: tokens whose weight is
    above the cap or below its inverse are left out. Both measure the gap and take the learner's own log-probs for the clip.
    `none`: the sampler's log-probs are taken for both. `auto`: `none` for `hf`, which is the learner, `truncate` else."""
    sampler_correction_cap: float = Field(default=2.0, gt=1)
    """Largest weight (verl: 2)."""
    reference_refresh_steps: int | None = Field(default=None, ge=1)
    """Copy the policy into the reference every so many steps; None: never."""
    entropy_coef: float = Field(default=0.0, ge=0)
    advantage_epsilon: float = Field(default=1e-6, gt=0)
    """Added to the group's standard deviation (verl: 1e-6)."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    validate_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on the held-out tasks (TTRL: 2); None: before and after only."""
    stop_rule: str | None = None
    """Ends the phase early, at a checkpoint, by signs that need no label: `entropy`, `flip_rate`, `agreement`
    (see `skill_ttrl.runs.stop_rules`), or `module:function` of your own. None: all steps are done."""
    stop_options: dict[str, Any] = Field(default_factory=dict)
    """Options of that rule, e.g. `threshold`."""


class VoteSFTConfig(Section):
    """The baseline: fine-tuning on the samples that agree with their majority, as many sampled as the rl phase would
    (LMSI, arXiv 2210.11610). Steps, prompts, `micro_batch_size`, `betas`, `weight_decay` and `grad_clip` are those of `rl`.
    """

    passes: int = Field(default=1, ge=1)
    """Passes over the samples that agree."""
    batch_size: int = Field(default=64, ge=1)
    """Samples a step."""
    learning_rate: float = Field(default=1e-5, gt=0, le=10)
    """Peak rate of AdamW; small models take more."""
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    """Share of the optimiser's steps."""
    schedule: Literal["constant", "cosine"] = "cosine"
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Where the cosine ends, as a share of the peak."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints while it learns; while it samples they are `rl.checkpoint_every` rounds apart."""
