"""Section of a config: reinforcement learning. Defaults: TTRL (arXiv 2504.16084, section 3.1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from skill_ttrl.config.section import Beta, Section


class ImpliedType(str):
    """Type of options that are stated without one: an algorithm may bring another."""


def _named(default: str) -> BeforeValidator:
    """Read a bare name as `{"type": name}`, and options without a type as those of `default`."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            return {"type": value}
        if not isinstance(value, dict):
            raise ValueError("expected a name, or {type: name} with options")
        if not isinstance(value.get("type", default), str):
            raise ValueError("its type must be a name")
        return {"type": ImpliedType(default)} | value

    return BeforeValidator(read)


class KLInRewardConfig(Section):
    """KL penalty on the rewards: `token_level_rewards` = `token_level_scores` - coef * KL (PPO for RLHF, arXiv 1909.08593)."""

    coef: float = Field(default=0.001, gt=0)
    """Coefficient; the initial one where `target` is set."""
    estimator: Literal["k1", "k2", "k3", "abs"] = "k1"
    """Estimate of each token's KL divergence to the reference."""
    target: float | None = Field(default=None, gt=0)
    """Mean KL (nats per token) that an adaptive coefficient aims at (arXiv 1909.08593, section 2.2); None: the coefficient is fixed."""
    horizon: int = Field(default=10_000, ge=1)
    """Rollouts over which an adaptive coefficient changes."""


class AdaptiveEntropyConfig(Section):
    """An entropy coefficient that follows the policy's entropy (Skywork-OR1, arXiv 2505.22312); it begins at `rl.entropy_coef`."""

    target: float = Field(ge=0)
    """Target entropy (nats per token). At or below it the coefficient applies and grows; above it the coefficient is 0 in the loss and
    shrinks."""
    delta: float = Field(default=0.005, gt=0)
    """Change of the coefficient per step."""
    min: float = Field(default=0.0, ge=0)
    """Smallest coefficient."""
    max: float = Field(default=1.0, gt=0)
    """Largest coefficient."""

    @model_validator(mode="after")
    def _min_is_not_above_max(self) -> AdaptiveEntropyConfig:
        if self.min > self.max:
            raise ValueError(f"min ({self.min:g}) must not be above max ({self.max:g})")
        return self


class RejectionConfig(Section):
    """Exclude tokens or sequences on which learner and backend differ too much (verl: `rollout_rs`)."""

    statistic: Literal[
        "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3",
        "seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3",
    ] = "seq_mean_k1"  # fmt: skip
    """Statistic, by verl's names: an estimate of the divergence of a token, or its sum, mean or maximum over the sequence.
    `seq_mean_k1` is the geometric mean of a sequence's ratios p_backend / p_learner."""
    low: float | None = Field(default=None, gt=0)
    """For k1: the smallest ratio; None: 1 / `high`."""
    high: float = Field(default=2.0, gt=0)
    """For k1: the largest ratio; else the largest divergence, in nats."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> RejectionConfig:
        if self.low is not None and not self.statistic.endswith("k1"):
            raise ValueError(f"low bounds a ratio and applies only to k1; {self.statistic} has no lower bound")
        if self.statistic.endswith("k1") and self.high < (1.0 if self.low is None else self.low):
            raise ValueError(
                f"high ({self.high:g}) would reject everything: it must be at least low, and at least 1 if low is not set"
            )
        return self


COPY = "policy"
"""`rl.critic.model`: a copy of the policy."""


class CriticConfig(Section):
    """The critic of `rl.algorithm: gae` (docs/algorithms.md). Its loss is aggregated as `rl.loss_aggregation` says."""

    model: str | None = None
    """Decoder that the values are read from. None: the policy's own, with only a linear head to train. `policy`: a copy of the policy at
    the start of the phase. Otherwise a Hugging Face id or a folder. A separate model trains all its weights, or adapters if `model.lora` is
    set."""
    revision: str | None = None
    """Commit of a hub model; recorded when it is resolved."""
    learning_rate: float | None = Field(default=None, gt=0, le=10)
    """Constant AdamW rate of a separate model or a head; None: 1e-5 for a model (verl), 0.1 / hidden size for a head."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of a separate model's matrices."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm of the critic; a larger one is scaled down to it."""
    value_clip: float | None = Field(default=0.5, gt=0)
    """Largest change of a value in one step that reduces the loss (verl: 0.5); None: no bound."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps at the start that train only the critic (verl: `trainer.critic_warmup`)."""
    ppo_epochs: int | None = Field(default=None, ge=1)
    """Passes over each batch; None: `rl.ppo_epochs`."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Sequences in each forward pass; None: as set in `rl`."""


class RolloutCorrectionConfig(Section):
    """Importance weights against a rollout backend whose log-probs are not the learner's own (docs/algorithms.md)."""

    type: str = "auto"
    """`token_truncate`: weight each token's loss by p_learner / p_backend, at most `threshold` (truncated importance sampling).
    `token_mask`: drop tokens whose weight is out of bounds. `sequence_truncate`, `sequence_mask`: the same with one weight per sequence.
    `icepop`: `token_mask` with the bounds 0.5 and 5. `none`: use the backend's log-probs as the learner's. `auto`: `none` for `hf`, which
    is the learner, and without `rescore`; otherwise `token_truncate`, also for `hf` under `rl.max_staleness`."""
    threshold: float | None = Field(default=None, gt=0)
    """Largest weight; None: 2 (verl), for `icepop` 5."""
    threshold_low: float | None = Field(default=None, ge=0)
    """Smallest weight; None: 1 / `threshold` for a mask, 0.5 for `icepop`, no bound for truncation. 0: no bound."""
    sequence_ratio: Literal["product", "geometric"] = "product"
    """Weight of a sequence: the product of its tokens' ratios (verl, TRL), or their geometric mean."""
    batch_normalize: bool = False
    """Divide a step's weights by their mean (verl: `rollout_is_batch_normalize`)."""
    reject: RejectionConfig | None = None
    """Drop tokens or sequences, independently of the weights; None: keep all."""
    rescore: bool = True
    """Let the learner score each batch before the update, at the cost of one forward pass per step. False: take the policy ratio against
    the backend's log-probs, and apply masks within the update (verl: `bypass_mode`; prime-rl)."""
    off_policy_kl: float | None = Field(default=None, gt=0)
    """Drop tokens with a negative advantage in sequences whose mean log p_backend / p_learner exceeds this (DeepSeek-V3.2; TRL's
    `off_policy_mask_threshold`: 0.5); None: keep all."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> RolloutCorrectionConfig:
        high = self.threshold or (5.0 if self.type == "icepop" else 2.0)
        low = self.threshold_low
        if low is None and self.type.endswith("_mask"):
            low = 1.0 / high
        if (low or 0.0) >= high:
            stated = "threshold_low" if self.threshold_low is not None else "threshold_low = 1 / threshold"
            raise ValueError(
                f"{stated} ({low:g}) must be below threshold ({high:g}): no weight would be within the bounds"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value


class DynamicSamplingConfig(Section):
    """Sample further tasks to replace those whose rollouts all earn the same reward (DAPO, arXiv 2503.14476, section 3.2)."""

    max_rounds: int = Field(default=10, ge=1)
    """Most rounds of `rl.prompts_per_step` tasks per step (verl's DAPO: 10)."""
    when_exhausted: Literal["continue", "raise"] = "continue"
    """What to do with too few such groups after the last round: train on those found, with a warning, or end the run (exit code 8)."""


class OverlongConfig(Section):
    """Responses near or at `rollout.max_new_tokens` (DAPO, arXiv 2503.14476, section 3.4)."""

    penalty: bool = True
    """Reduce the reward of responses in the last `buffer` tokens before the limit, linearly up to `factor`."""
    buffer: int | None = Field(default=None, ge=1)
    """Tokens; None: a fifth of `rollout.max_new_tokens` (DAPO: 4096 of 20480)."""
    factor: float = Field(default=1.0, gt=0)
    """Penalty at the limit (DAPO: 1)."""
    filter: bool = False
    """Exclude truncated responses from the loss; they still count in their group's statistics (TRL: `mask_truncated_completions`)."""

    @model_validator(mode="after")
    def _does_something(self) -> OverlongConfig:
        if not self.penalty and not self.filter:
            raise ValueError("neither penalty nor filter is on; set one of them, or overlong: null")
        return self


class RLConfig(Section):
    """Reinforcement learning: what is rewarded and how the weights follow. Defaults but that of `steps`: TTRL (arXiv 2504.16084, §3.1)."""

    reward: str = "majority"
    """`majority` (no labels), `verify` (each problem's `check`), the controls `label`, `random`, `format`, `env` (the environment's own return),
    `module:function`, or `model:PATH` for a Hugging Face reward model."""
    extra_rewards: dict[str, Annotated[float, Field(gt=-1e15, lt=1e15)]] = Field(default_factory=dict)
    """Further rewards by name (as in `reward`, except `model:PATH`), each with its weight; `reward` itself has weight 1. The rollout earns
    their weighted sum; the algorithm `gdpo` normalizes each of them first."""
    reward_revision: str | None = None
    """Commit of a hub reward model, or digest of a folder's files; recorded when it is resolved."""
    steps: int = Field(default=80, ge=0)
    """Steps of `prompts_per_step` prompts each. TTRL counts passes over the data instead: 80 of AIME 2024, 30 of AMC, 10 of MATH-500; n
    passes over P problems are n * (P // `prompts_per_step`) steps. On resume it may be larger (docs/operations.md)."""
    total_epochs: int | None = Field(default=None, ge=1)
    """Passes over the training tasks instead of `steps`: the run sets `steps` to n * (P // `prompts_per_step`), at least n, and this to
    None. None: `steps` applies."""
    prompts_per_step: int = Field(default=8, ge=1)
    """Tasks per step, each with a group of rollouts (verl: `data.train_batch_size`)."""
    max_staleness: int = Field(default=0, ge=0)
    """Steps by which rollouts may run ahead of the learner (docs/scale.md): the weights that sample are at most this many steps older than
    those being trained. 0: sampling and learning alternate. Above 0, `hf` samples with a copy of the model."""
    in_flight_updates: bool = True
    """Rollouts that run ahead receive new weights between two turns. False: only once they have ended, which makes a run repeatable and
    needs `max_staleness` 1."""
    algorithm: Annotated[dict[str, Any], _named("grpo")] = Field(default_factory=lambda: {"type": "grpo"})
    """How rewards become advantages: a name, or `type` (a registered name, or `module:Class`) with that algorithm's options
    (docs/algorithms.md). An algorithm may change the defaults of this section."""
    invalid_action_penalty_coef: float = Field(default=0.0, ge=0)
    """Subtracted from the reward of each step whose action was invalid (SkillRL: 0.1, with a reward of 10 for success)."""
    loss: Annotated[dict[str, Any], _named("ppo_clip")] = Field(default_factory=lambda: {"type": "ppo_clip"})
    """The policy loss: a name, or `type` (a registered name, or `module:Class`) with that loss's options (docs/algorithms.md)."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` takes hidden matrices, AdamW the rest."""
    learning_rate: float = Field(default=5e-7, gt=0, le=10)
    """Peak rate of AdamW."""
    muon_learning_rate: float = Field(default=0.005, gt=0, le=10)
    """Peak rate of Muon."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's decay rates for the running means of the gradient and its square."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of matrices only."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """None: `warmup_ratio` of the optimizer's steps."""
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    """Share of the optimizer's steps in which the rate rises from 0, if `warmup_steps` is not set."""
    lr_scheduler: Literal["constant", "cosine"] = "cosine"
    """Schedule of the rate after the warm-up; `cosine` falls to `min_lr_ratio`."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of the peak rate at the end of a cosine."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm; a larger one is scaled down to it."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over each batch of rollouts."""
    mini_batch_size: int | None = Field(default=1, ge=1)
    """Prompts per optimizer step (TTRL: 1, that is 32 samples); None: the whole batch in one step. If it does not divide the batch, the
    last mini-batch is smaller and its mean has the same weight as the others."""
    mini_batch_by: Literal["prompts", "samples"] = "prompts"
    """Unit in which a batch is shuffled and divided into mini-batches. `prompts`: all samples of a prompt stay together (verl on one GPU).
    `samples`: each mini-batch has the same number of samples, drawn from all prompts (TRL); gradients then vary less between mini-batches."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Sequences in each forward pass; gradients accumulate over them. Affects memory and speed, not results: packed, a beginning that the
    prompts of a pass share is computed once, so larger is faster where prompts are long and answers short."""
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    """Instead of `micro_batch_size`: most tokens per forward pass. Counted as rows x longest row, or with packing (`model.packing`) as each
    prompt once plus all responses. A longer sequence gets its own forward pass."""
    loss_aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    """How token losses become one number (verl: `loss_agg_mode`; docs/learner.md)."""
    kl_coef: float = Field(default=0.001, ge=0)
    """Weight of the loss term for the KL divergence from the reference model; 0: no reference model."""
    kl_estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k3+"] = "k3"
    """Estimate of each token's KL divergence. `k1+` and `k3+` have the value of `k1` and `k3` and the gradient of `k2`, the only unbiased
    one (docs/algorithms.md)."""
    kl_bias_correction: bool = False
    """Multiply the KL term by the policy ratio, which makes the gradient of k3 unbiased (DeepSeek-V3.2; TRL's `use_bias_correction_kl`)."""
    kl_in_reward: KLInRewardConfig | None = None
    """A KL penalty on the rewards, before advantages; None: none."""
    rollout_correction: RolloutCorrectionConfig = Field(default_factory=RolloutCorrectionConfig)
    dynamic_sampling: DynamicSamplingConfig | None = None
    """Sample further tasks until `prompts_per_step` groups have different rewards; None: use all groups of one round."""
    overlong: OverlongConfig | None = None
    """Treatment of overlong responses; None: like any other."""
    ref_model_sync_steps: int | None = Field(default=None, ge=1)
    """Copy the policy into the reference model every this many steps; None: never."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss."""
    adaptive_entropy: AdaptiveEntropyConfig | None = None
    """Adapt the coefficient to a target entropy; None: it is fixed."""
    top_entropy_quantile: float = Field(default=1.0, gt=0, le=1)
    """Share of a step's tokens, those of the highest entropy, that have a policy loss (arXiv 2506.01939: 0.2; SPINE, arXiv 2511.17938). The
    others still count in the means. Below 1 it costs one forward pass per step, unless a correction scores the batch anyway."""
    critic: CriticConfig | None = None
    """The critic, required by `rl.algorithm: gae`; None: none."""
    whiten_advantages: bool = False
    """Normalize a step's advantages to mean 0 and variance 1 over its tokens, with any algorithm."""
    save_steps: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Steps between evaluations on the held-out tasks (TTRL: 2); None: only before and after."""
    stop_rule: str | None = None
    """Stops the phase early, at a checkpoint, by a criterion without labels: `collapse`, which gives back the weights of before RL and looks
    only where `rl.reward` is `majority`, `entropy` (see `skill_ttrl.runs.stop_rules`), or `module:function` of your own. None: run all steps."""
    stop_options: dict[str, Any] = Field(default_factory=dict)
    """Options of that rule, e.g. `threshold`."""

    @property
    def stops_collapse(self) -> bool:
        """True if the rule `collapse` is in force: it judges votes, so they must be what is rewarded."""
        return self.stop_rule == "collapse" and self.reward == "majority"

    @model_validator(mode="after")
    def _hand_over_keeps_pace(self) -> RLConfig:
        if self.max_staleness > 1 and not self.in_flight_updates:
            raise ValueError(
                f"in_flight_updates=false needs a max_staleness of at most 1, found {self.max_staleness}. Set max_staleness to 1, or in_flight_updates to true"
            )
        return self

    @field_validator("extra_rewards")
    @classmethod
    def _weights_count(cls, value: dict[str, float]) -> dict[str, float]:
        for name, weight in value.items():
            if weight == 0:
                raise ValueError(f"the weight of {name} is 0, so it has no effect; remove it")
            if name.startswith("model:"):
                raise ValueError(f"{name}: a reward model can only be rl.reward, whose version is recorded")
        return value
