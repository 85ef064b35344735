"""One policy update: a batch of rollouts in, better weights and metrics out.

`score` computes log-probs without gradient; `update` learns. Each epoch goes through the batch in mini-batches, one optimizer
step each; a mini-batch is computed in micro-batches whose gradients add up to that of the whole. The learner knows tokens,
log-probs and advantages, and nothing of where they came from.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.config.rl import naming_own
from skill_ttrl.rl.algorithms import (
    AdvantageEstimate,
    TrainingSamples,
    build_algorithm,
    requirements,
    whiten_advantages,
)
from skill_ttrl.rl.batch import RolloutBatch, pack, with_advantages
from skill_ttrl.rl.critic import DROPOUT, Critic
from skill_ttrl.rl.device import autocast_dtype
from skill_ttrl.rl.losses import (
    Denominators,
    LossInputs,
    aggregate,
    bounded_log_ratio,
    build_loss,
    compute_entropy_bonus,
    compute_kl_penalty,
    ratio_metrics,
)
from skill_ttrl.rl.micro_batch import MicroBatch
from skill_ttrl.rl.optim import build_optimizer, finite_mean, learning_rate, shared_rows, why_skipped
from skill_ttrl.rl.parallel.ranks import ALONE, Ranks, own_micro_batches
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Group, Trajectory, VoteResult, derive_seed

if TYPE_CHECKING:
    from skill_ttrl.rl.parallel.driver import RanksLearner


class LocalLearner:
    """Policy-gradient learner in one process, or this rank's part of one that spans several.

    Every rank has the whole batch and computes its share of each mini-batch; denominators are the whole mini-batch's, so gradients
    of all ranks add up to those of one process.

    Args:
        policy: What learns.
        config: Loss, optimizer, mini-batches, KL and entropy terms.
        accelerator: Precision (autocast, fp16's scaler); see `device.make_accelerator`.
        total_steps: Calls of `update` in the run: the length of the learning-rate schedule.
        max_response_tokens: Horizon of the loss aggregation `seq-mean-token-sum-norm`; None: longest response at hand.
        ranks: Processes that call each method at the same time with the same arguments.
        critic_model: Decoder of `rl.critic.model`; None: the policy's own.
    """

    def __init__(
        self,
        policy: Policy,
        config: RLConfig,
        accelerator: Accelerator,
        *,
        total_steps: int,
        max_response_tokens: int | None = None,
        ranks: Ranks = ALONE,
        critic_model: Policy | None = None,
    ) -> None:
        self.policy = policy
        self.config = config
        self.skipped: list[str] = []
        """Why optimizer steps of the latest update were not taken; fp16's loss scaler leaves out further ones, which are counted alone."""
        self._ranks = ranks
        self._own_rows = partial(own_micro_batches, policy, ranks=ranks, sequences=config.micro_batch_size)
        self._accelerator = accelerator
        self._loss = build_loss(config.loss)
        self._horizon = max_response_tokens
        # Tokens without an advantage need no forward pass where nothing else pulls on them.
        indifferent = config.kl_coef == 0 and config.entropy_coef == 0
        self._skip_dead = indifferent and getattr(self._loss, "zero_without_advantage", False)
        policy.release_weights()  # the optimizer holds this rank's shards
        self._optimizer = build_optimizer(
            policy.model,
            learning_rate=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            scaler=accelerator.scaler,
            ranks=ranks,
            shared=shared_rows(policy),
        )
        per_epoch = math.ceil(config.prompts_per_step / (config.mini_batch_size or config.prompts_per_step))
        self._updates_per_step = per_epoch * config.ppo_epochs
        self._total_updates = total_steps * self._updates_per_step
        warmup = config.warmup_steps
        self._warmup = warmup if isinstance(warmup, int) else round(warmup * self._total_updates)
        self._critic: Critic | None = None
        if config.critic is not None:
            self._critic = Critic(policy, config, accelerator, apart=critic_model, ranks=ranks)
        if config.kl_coef > 0 or config.kl_in_reward is not None:
            policy.keep_reference()

    @torch.no_grad()
    def score(self, batch: RolloutBatch, *, temperature: float, own: bool, reference: bool) -> RolloutBatch:
        """Compute log-probs of the batch's trained tokens, without gradient and without dropout.

        Args:
            batch: Rollouts of one step.
            temperature: At which the tokens were sampled.
            own: Set `old_log_probs_F` to those of this policy.
            reference: Set `ref_log_probs_F` to those of the reference model.

        Returns:
            The batch with these log-probs, in nats and float32, and the critic's values where there is one.
        """
        self.policy.release_weights()
        if own:
            batch = replace(batch, old_log_probs_F=self._score(batch, temperature))
        if reference:
            with self.policy.as_reference():
                batch = replace(batch, ref_log_probs_F=self._score(batch, temperature))
        return batch if self._critic is None else self._critic.score(batch)

    def _score(self, batch: RolloutBatch, temperature: float) -> Float[Tensor, " F"]:
        """Log-probs of all trained tokens: each rank computes its share, and all have the whole."""
        own, dtype = self._own_rows(batch), autocast_dtype(self._accelerator)
        found_F = self.policy.score(batch, own, temperature=temperature, autocast=dtype)
        self._ranks.sum_([found_F])
        return found_F

    def update(self, batch: RolloutBatch, *, step: int, seed: int, temperature: float) -> dict[str, float]:
        """Learn from one batch.

        Args:
            batch: Rollouts of this step.
            step: Number of the step, 0 for the first. With `seed` it decides the order of the mini-batches, and it
                places the step on the learning-rate schedule.
            seed: The run's seed.
            temperature: At which the tokens were sampled.

        Returns:
            `policy_loss kl entropy clip_fraction approx_kl ratio_max grad_norm learning_rate tokens sequences updates
            skipped_updates post_entropy all_tokens computed_tokens operations`. `entropy` is minus the mean log-prob of the sampled
            tokens (nats a token): an unbiased estimate for the policy that sampled; `post_entropy` is TTRL's name for it. An empty
            batch has neither of them and no `learning_rate`. `kl` is there only where the KL term was computed: `rl.kl_coef` is
            above 0, and there was something to learn from. `updates` are optimizer steps taken; `skipped_updates` those refused
            because loss or gradient was not finite. `all_tokens` are those of prompts and responses, `computed_tokens` what the
            model computed for them, `operations` its floating-point operations, those of `score` included. Items whose advantage
            is 0 are not computed where the loss allows it and neither KL nor entropy counts: the gradient is the same, means over
            tokens leave them out, and a mini-batch that has no others takes no optimizer step. With a critic also the metrics of
            `Critic.update`.
        """
        values = {} if self._critic is None else self._update_critic(self._critic, batch, step, seed)
        metrics, self.skipped = UpdateMetrics(), [] if self._critic is None else self._critic.skipped
        metrics.work(self.policy.scored)
        self.policy.scored = 0.0
        self.policy.release_weights()
        with self.policy.training(derive_seed(seed, "dropout", step, *self._ranks.apart)):
            position = step * self._updates_per_step
            for epoch in range(self.config.ppo_epochs):
                for indices in self._mini_batches(batch, derive_seed(seed, "minibatch", step, epoch)):
                    self._update_mini_batch(batch, indices, position, temperature, metrics)
                    position += 1
        return metrics.gathered(self._ranks).summary() | batch_metrics(batch) | values

    def _update_critic(self, critic: Critic, batch: RolloutBatch, step: int, seed: int) -> dict[str, float]:
        """Let the critic learn from the returns, in mini-batches like the policy's."""
        seeds = (derive_seed(seed, "critic minibatch", step, epoch) for epoch in range(self.config.ppo_epochs))
        every = (indices for each in seeds for indices in self._mini_batches(batch, each))
        parts = ((indices, self._denominators(batch, indices)) for indices in every)
        return critic.update(batch, parts, seed=derive_seed(seed, DROPOUT, step, *self._ranks.apart))

    def _mini_batches(self, batch: RolloutBatch, seed: int) -> Iterator[Int[Tensor, " M"]]:
        """Item indices of each mini-batch, in a seeded order of whole prompts or of samples."""
        if len(batch) == 0:
            return
        prompts, generator = torch.unique(batch.prompt_index_N), torch.Generator().manual_seed(seed)
        size = self.config.mini_batch_size or len(prompts)
        if self.config.mini_batch_by == "samples":
            order = torch.randperm(len(batch), generator=generator)
            yield from torch.tensor_split(order, min(len(batch), math.ceil(len(prompts) / size)))
            return
        order = torch.randperm(len(prompts), generator=generator)
        for chosen in torch.split(prompts[order], size):
            yield torch.isin(batch.prompt_index_N, chosen).nonzero().squeeze(1)

    def _denominators(self, batch: RolloutBatch, indices: Int[Tensor, " M"]) -> Denominators:
        return Denominators(
            tokens=float(batch.trained_tokens_N[indices].sum()),
            sequences=float((batch.trained_tokens_N[indices] > 0).sum()),
            horizon=float(self._horizon or batch.response_lengths_N[indices].max()),
        )

    def _update_mini_batch(
        self,
        batch: RolloutBatch,
        indices: Int[Tensor, " M"],
        position: int,
        temperature: float,
        metrics: UpdateMetrics,
    ) -> None:
        config = self.config
        denominators = self._denominators(batch, indices)
        computed_N = batch.has_advantage_N if self._skip_dead else batch.trained_tokens_N > 0
        alive = indices[computed_N[indices]]
        fraction = learning_rate(
            position, self._total_updates, 1.0, self._warmup, config.lr_scheduler, config.min_lr_ratio
        )
        self._optimizer.set_lr(fraction)
        metrics.rate = fraction * config.learning_rate
        if len(alive) == 0:
            return
        total = torch.zeros((), device=self.policy.device)
        for rows, counts in self._own_rows(batch, alive):
            micro_batch = self.policy.lay_out(batch, rows)
            loss, means = self._micro_batch_loss(micro_batch, denominators, temperature)
            self._optimizer.backward(loss if counts else loss * 0.0)
            metrics.work(self.policy.work.update(micro_batch), micro_batch.computed_tokens)
            if counts:
                total += loss.detach()
                metrics.add(means, micro_batch.trained_tokens)
        self._ranks.sum_([total])
        norm, applied = self._optimizer.step(total, config.grad_clip)
        metrics.count(norm, applied, self._optimizer.part_norms)
        if not applied and (self._accelerator.scaler is None or not math.isfinite(float(total))):
            self.skipped.append(why_skipped(batch, indices, float(total), norm))

    def _micro_batch_loss(
        self, micro_batch: MicroBatch, denominators: Denominators, temperature: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(loss, metrics)."""
        config, mask = self.config, micro_batch.response_mask_N_R
        with self._accelerator.autocast():
            log_probs, entropy = self.policy.token_logprobs(
                micro_batch, temperature=temperature, with_entropy=config.entropy_coef > 0
            )
        inputs = LossInputs(log_probs, micro_batch.old_log_probs_N_R, micro_batch.advantages_N_R, mask)
        with naming_own("loss", config.loss):
            token_loss, info = self._loss(inputs)
            if token_loss.shape != mask.shape:
                raise ValueError(
                    f"it returned a loss of shape {tuple(token_loss.shape)} for tokens of {tuple(mask.shape)}"
                )
            if not token_loss.requires_grad:
                raise ValueError("its loss has no gradient: compute it from `log_probs`, without detach()")
        if micro_batch.weights_N_R is not None:
            token_loss = token_loss * micro_batch.weights_N_R
        loss = aggregate(token_loss, mask, config.loss_aggregation, denominators)
        log_ratio = bounded_log_ratio(log_probs.detach(), micro_batch.old_log_probs_N_R)
        means = info | ratio_metrics(log_ratio, mask) | {"policy_loss": loss.detach()}
        if config.kl_coef > 0:
            assert micro_batch.ref_log_probs_N_R is not None
            references = micro_batch.ref_log_probs_N_R
            kl_loss, means["kl"] = compute_kl_penalty(
                log_probs, references, mask, config.kl_coef, config.loss_aggregation, denominators
            )
            loss = loss + kl_loss
        if entropy is not None:
            loss = loss + compute_entropy_bonus(
                entropy, mask, config.entropy_coef, config.loss_aggregation, denominators
            )
        return loss, means

    def state_dict(self) -> dict[str, Any]:
        """State for an exact resume, without the model's weights and the step number.

        The reference's weights are part of it where they cannot be had from the model: always without adapters, since
        the model's own files hold the trained weights; with adapters only after a refresh.
        """
        critic = {} if self._critic is None else {"critic": self._critic.state_dict()}
        return {"optimizer": self._optimizer.state_dict(), "reference": self.policy.reference, **critic}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the model's weights are loaded apart."""
        self._optimizer.load_state_dict(state["optimizer"])
        self.policy.load_reference(state["reference"])
        if self._critic is not None:
            self._critic.load_state_dict(state["critic"])


# Metrics of one update, gathered over its micro-batches, optimizer steps and ranks.


def batch_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Metrics of a batch as it came: `entropy`, `post_entropy` (nats a token), `tokens` (trained), `all_tokens` and `sequences`."""
    tokens = float(batch.trained_F.sum())
    found = {"tokens": tokens, "all_tokens": float(len(batch.tokens_F)), "sequences": float(len(batch))}
    if not len(batch):
        return found
    # Minus the mean log-prob: an unbiased estimate of the entropy of the policy that sampled.
    entropy = -float(batch.old_log_probs_F[batch.trained_F].mean()) if tokens else 0.0
    return found | {"entropy": entropy, "post_entropy": entropy}


@dataclass
class UpdateMetrics:
    """Gathers the metrics of one update; nothing waits for the device until the end."""

    rate: float | None = None
    means: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    weights: list[int] = field(default_factory=list)
    """Trained tokens of each micro-batch."""
    norms: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    skipped: int = 0
    computed: int = 0
    operations: float = 0.0

    def add(self, means: dict[str, Tensor], tokens: int) -> None:
        """Add the means over the trained tokens of one micro-batch."""
        for name, value in means.items():
            self.means[name].append(value.detach())
        self.weights.append(tokens)

    def work(self, operations: float, tokens: int = 0) -> None:
        """Count floating-point operations, and tokens that the update computed."""
        self.operations += operations
        self.computed += tokens

    def count(self, norm: float, applied: bool, parts: Mapping[str, float]) -> None:
        """Count one optimizer step: the norm of the gradient, whether weights changed, and the norm of each part of the model."""
        self.norms.append(norm)
        for name, value in parts.items():
            self.parts[name].append(value)
        self.skipped += not applied

    def gathered(self, ranks: Ranks) -> UpdateMetrics:
        """Those of all ranks together, on the driver; the other ranks' own elsewhere."""
        if not ranks.several:
            return self
        whole = replace(self, means=defaultdict(list), weights=[], computed=0, operations=0.0)
        columns = {name: torch.stack(values).cpu() for name, values in self.means.items()}
        own = (columns, self.weights, self.operations, self.computed)
        for their_columns, weights, operations, computed in ranks.gather(own):
            whole.work(operations, computed)
            for name, column in their_columns.items():
                whole.means[name] += column
            whole.weights += weights
        return whole

    def summary(self) -> dict[str, float]:
        """All metrics: means over tokens, gradient norms as means over the optimizer steps whose norm is finite."""
        updates = len(self.norms)
        result = dict.fromkeys(("policy_loss", "clip_fraction", "approx_kl", "ratio_mean", "ratio_max"), 0.0)
        weights = torch.tensor(self.weights, dtype=torch.float64)
        for name, values in self.means.items():
            column = torch.stack(values).double().cpu()
            if name == "policy_loss":  # parts of the optimizer steps' losses: they add up
                result[name] = float(column.sum()) / updates
            elif name == "ratio_max":
                result[name] = float(column.max())
            else:
                result[name] = float((column * weights).sum() / weights.sum())
        return result | {
            "grad_norm": finite_mean(self.norms),
            **{f"grad_norm/{name}": finite_mean(norms) for name, norms in self.parts.items()},
            **({} if self.rate is None else {"learning_rate": self.rate}),
            "updates": float(updates - self.skipped),
            "skipped_updates": float(self.skipped),
            "computed_tokens": float(self.computed),
            "operations": self.operations,
        }


# One update, from rewarded rollouts to new weights: scores → KL penalty → advantages → gradient.
#
# The order is verl's. Advantages are computed where the votes are; only `LocalLearner.score` and `LocalLearner.update` touch the model, so a
# learner may span several processes.


@dataclass(frozen=True, slots=True)
class UpdateRecord:
    """Scores and advantages of an update's trajectories (E), group after group: recorded, never read by the update."""

    trajectories: Sequence[Trajectory]
    """As they were given to the update."""
    scores: Sequence[float]
    """Reward of each, before a KL penalty."""
    advantages: Sequence[Sequence[float | None]]
    """Of each a row with the mean advantage of each step's trained tokens; None for a step that has none."""


def record_update(samples: TrainingSamples, batch: RolloutBatch) -> UpdateRecord:
    """Read from the batch what each trajectory was rewarded and what its advantages are.

    Args:
        samples: Rollouts with rewards.
        batch: The same, with advantages.
    """
    tokens_S = batch.sum_by_turn(batch.trained_F.float())
    means_S = batch.sum_by_turn(batch.advantages_F * batch.trained_F) / tokens_S.clamp(min=1)
    rows: list[list[float | None]] = [[None] * len(each.steps) for each in samples.trajectories]
    turns = zip(batch.turn_places, tokens_S.tolist(), means_S.tolist(), strict=True)
    for (trajectory, step), tokens, mean in turns:
        if tokens:  # others are out of the loss: a filter or the algorithm left them out
            rows[trajectory][step] = mean
    return UpdateRecord(samples.trajectories, samples.rewards, rows)


def score_metrics(record: UpdateRecord) -> dict[str, float]:
    """Mean, largest and smallest score of the rollouts and advantage of their trained steps (verl: `critic/score`, `critic/advantages`)."""
    advantages = [value for row in record.advantages for value in row if value is not None]
    columns = {"score": [*record.scores], "advantage": advantages}
    found: dict[str, float] = {}
    for name, values in columns.items():
        if values:
            found |= {f"{name}/mean": fmean(values), f"{name}/max": max(values), f"{name}/min": min(values)}
    return found


class UpdateRule:
    """How a step's rollouts change the weights.

    Args:
        config: Algorithm, correction and KL penalty.
        sampler_is_learner: The learner's own model samples, so its log-probs need no correction by default.
        join: Learn from each episode as one sequence, as far as each prompt extends the previous one; see `pack`.

    Raises:
        ConfigError: there is no such algorithm or correction, or an option is wrong.
    """

    record: UpdateRecord | None = None
    """Of the latest update."""

    def __init__(self, config: RLConfig, *, sampler_is_learner: bool, join: bool = False) -> None:
        self.config = config
        self.join = join
        self.algorithm = build_algorithm(config.algorithm)
        self.requires = requirements(self.algorithm)
        self.corrects = corrects(config, sampler_is_learner=sampler_is_learner)

    def __call__(
        self,
        learner: LocalLearner | RanksLearner,
        groups: Sequence[Group],
        votes: Sequence[VoteResult],
        *,
        step: int,
        seed: int,
        temperature: float,
    ) -> dict[str, float]:
        """Learn from one step's rollouts.

        Args:
            learner: What learns.
            groups: Rollouts with rewards.
            votes: The vote of each group, as it bears on these rollouts. The algorithm has them where `rl.reward` is `majority`.
            step: Number of the step, 0 for the first.
            seed: The run's seed.
            temperature: At which the tokens were sampled.

        Returns:
            Metrics of the correction, the KL penalty, the algorithm and `LocalLearner.update`.
        """
        config, penalty = self.config, self.config.kl_in_reward
        batch = pack(groups, invalid_action_penalty_coef=config.invalid_action_penalty_coef, join=self.join)
        # Two forward passes at most, none where nothing asks for them.
        batch = learner.score(
            batch,
            temperature=temperature,
            own=self.corrects,
            reference=config.kl_coef > 0 or penalty is not None,
        )
        metrics: dict[str, float] = {}
        if self.corrects:
            batch, metrics = corrected(batch)
        if penalty is not None:
            batch, kl_metrics = apply_kl_penalty(batch, penalty.coef)
            metrics |= kl_metrics
        samples = TrainingSamples(
            groups,
            votes if config.voted else None,
            config.invalid_action_penalty_coef,
            batch,
            env_rewards=config.reward == "env" and not config.extra_rewards and not config.overlong_penalty,
            main_reward=config.reward,
        )
        batch, found = self.estimate(samples, batch)
        metrics |= found
        metrics |= learner.update(batch, step=step, seed=seed, temperature=temperature)
        return metrics

    def estimate(self, samples: TrainingSamples, batch: RolloutBatch) -> tuple[RolloutBatch, Mapping[str, float]]:
        """Estimate the batch's advantages; gives the metrics of the algorithm too, and sets `record`."""
        with naming_own("algorithm", self.config.algorithm):
            found = self.algorithm.advantages(samples)
            if not isinstance(found, AdvantageEstimate):
                found = AdvantageEstimate(found)
            if found.trained_F is not None:
                batch = replace(batch, trained_F=batch.trained_F & found.trained_F)
            batch = replace(with_advantages(batch, samples.groups, found.advantages), returns_F=found.returns_F)
        if getattr(self.algorithm, "whitens", False):
            mask_F = batch.trained_F.float()
            batch = replace(batch, advantages_F=whiten_advantages(batch.advantages_F[None], mask_F[None])[0])
        self.record = record_update(samples, batch)
        return batch, {**score_metrics(self.record), **found.metrics}


# DAPO's soft penalty of overlong responses (arXiv 2503.14476, section 3.4).


def length_penalty(length: int, limit: int, buffer: int, factor: float) -> float:
    """Penalty of a response, at most 0 (equation 13): it begins where `buffer` tokens are left and reaches -`factor` at the limit.

    Args:
        length: Sampled tokens.
        limit: Longest possible response.
        buffer: Tokens before the limit, at least 1.
        factor: Penalty at the limit.
    """
    return -factor * min(max((length - (limit - buffer)) / buffer, 0.0), 1.0)


def overlong_penalties(group: Group, factor: float, limit: int) -> list[float]:
    """Penalty of each rollout: that of its longest response, over a fifth of the `limit` (`rollout.max_new_tokens`)."""

    def longest(trajectory: Trajectory) -> int:
        return max((step.completion.num_sampled_tokens for step in trajectory.steps if step.completion), default=0)

    return [length_penalty(longest(each), limit, max(limit // 5, 1), factor) for each in group.trajectories]


# KL penalty on the rewards.


def apply_kl_penalty(batch: RolloutBatch, coef: float) -> tuple[RolloutBatch, dict[str, float]]:
    """Subtract the KL penalty from the scores: `token_level_rewards` = `token_level_scores` - coef * KL (k1).

    Returns:
        (batch, metrics): `reward_kl`, nats a token: the mean over items of each item's mean over its tokens, as in verl.
    """
    assert batch.ref_log_probs_F is not None
    kl_F = (batch.old_log_probs_F - batch.ref_log_probs_F) * batch.trained_F.float()
    counts_N = batch.trained_tokens_N.clamp(min=1)
    mean = float((batch.sum_by_item(kl_F) / counts_N).mean()) if len(batch) else 0.0
    return replace(batch, rewards_F=batch.scores_F - coef * kl_F), {"reward_kl": mean}


# Rates of an update: tokens a second, and the share of the GPU's peak that it reached (MFU).


PEAK_FLOPS = {
    "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12, "B200": 2250e12,
}  # fmt: skip
"""Dense bf16 operations a second by NVIDIA's data sheets (SXM and HGX where there are several forms). The first name that is in the GPU's
name counts."""


def peak_flops(name: str) -> float | None:
    """Peak of a GPU by its name; None if it is not in the table."""
    return next((flops for known, flops in PEAK_FLOPS.items() if known in name), None)


def update_rates(
    metrics: Mapping[str, float], seconds: float, device: torch.device, ranks: int = 1
) -> dict[str, float]:
    """Rates of an update that took so many seconds, scores included.

    Args:
        metrics: Of `LocalLearner.update`: `all_tokens` and `operations`.
        seconds: Wall time.
        device: Where a rank computes.
        ranks: Processes that computed it, each with a device of its own.

    Returns:
        `update_tokens_per_second`, of all tokens, prompts included; and `mfu`, the operations as a share of what the devices do at best in
        bf16, only for a GPU in `PEAK_FLOPS`.
    """
    rates = {"update_tokens_per_second": metrics["all_tokens"] / max(seconds, 1e-9)}
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if peak is not None:
        rates["mfu"] = metrics["operations"] / max(seconds, 1e-9) / (peak * ranks)
    return rates


class GpuMemoryMonitor:
    """Memory of the learner's GPU from the moment this is made; on other devices it has no metrics."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._used = 0
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # the allocator knows no device before
            torch.cuda.reset_peak_memory_stats(device)

    def sample(self) -> None:
        """Sample the memory in use on the whole device: the learner's, an engine's, other processes'."""
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            self._used = max(self._used, total - free)

    def metrics(self) -> dict[str, float]:
        """`gpu_peak_bytes`: peak of what torch handed out in this process. `gpu_used_bytes`: most that was in use on the whole
        device when it was sampled. Empty without a GPU.
        """
        if self._device.type != "cuda":
            return {}
        peak = torch.cuda.max_memory_allocated(self._device)
        return {"gpu_peak_bytes": float(peak), "gpu_used_bytes": float(self._used)}


# The correction for a rollout backend whose log-probs are not the learner's own.
#
# An engine computes the same weights with other kernels, in another precision or some updates late, so tokens come from a distribution
# pi_sampler that is near to the learner's pi_old and not equal to it. The learner then scores the batch itself before it learns from it: its
# own log-probs are the denominators of the policy ratio, and each token's loss is weighted by what separates the two (verl's decoupled mode,
# TRL): truncated importance sampling (Ionides 2008; for sampling engines Yao et al. 2025, "Your efficient RL framework secretly brings you
# off-policy RL training").


LOG_WEIGHT_BOUND = 20.0
"""Log-weights are clamped to this before exp (verl)."""
LARGEST_WEIGHT = 2.0
"""Importance weights are clamped to this (verl)."""
PREFIX = "rollout_corr/"
"""Begins verl's names of the metrics."""


def corrects(rl: RLConfig, *, sampler_is_learner: bool) -> bool:
    """True if tokens are weighted (`rl.rollout_correction`); `auto` weighs none where the learner's own model samples."""
    return rl.rollout_correction == "token_truncate" or (rl.rollout_correction == "auto" and not sampler_is_learner)


def corrected(batch: RolloutBatch, largest: float = LARGEST_WEIGHT) -> tuple[RolloutBatch, dict[str, float]]:
    """Weight each trained token, and measure the gap between learner and sampler.

    Args:
        batch: With `old_log_probs_F` of the learner itself (`LocalLearner.score`).
        largest: What weights are clamped to.

    Returns:
        (batch, metrics). The metrics, over trained tokens, are those of `mismatch_metrics` and, by verl's names, `rollout_is_mean`,
        `rollout_is_eff_sample_size` ((sum w)^2 / (K sum w^2), in (0, 1]), and `rollout_is_ratio_fraction_high` and `_low` (shares beyond
        the bound and its inverse).
    """
    trained = batch.trained_F
    if not bool(trained.any()):
        return batch, {}
    old_K, sampler_K = batch.old_log_probs_F[trained], batch.sampler_log_probs_F[trained]
    ratio_K = (old_K - sampler_K).clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND).exp()
    weights_K = ratio_K.clamp(0.0, largest)
    found = {
        "rollout_is_mean": float(weights_K.mean()),
        "rollout_is_eff_sample_size": float(weights_K.double().mean()) ** 2 / float(weights_K.double().square().mean()),
        "rollout_is_ratio_fraction_high": float((ratio_K > largest).float().mean()),
        "rollout_is_ratio_fraction_low": float((ratio_K < 1.0 / largest).float().mean()),
    }
    weights_F = torch.ones_like(batch.old_log_probs_F)
    weights_F[trained] = weights_K
    metrics = mismatch_metrics(old_K, sampler_K, torch.unique(batch.item_F[trained], return_inverse=True)[1])
    return replace(batch, weights_F=weights_F), metrics | {f"{PREFIX}{name}": each for name, each in found.items()}


def mismatch_metrics(
    old_K: Float[Tensor, " K"], sampler_K: Float[Tensor, " K"], sequence_K: Int[Tensor, " K"]
) -> dict[str, float]:
    """Measure how far the learner is from the sampler, from log-probs of tokens of these sequences, numbered from 0.

    Returns:
        `sampling/logp_difference/mean` and `/max` (absolute, nats); with verl's prefix `kl` and `k3_kl` (estimates k1 and k3 of
        KL(pi_sampler || pi_old), nats a token), `training_ppl` and `rollout_ppl` (mean perplexity of a sequence), `log_ppl_diff` and
        `log_ppl_abs_diff` (mean over sequences, nats a token), `ppl_ratio`, `chi2_token` and `chi2_seq` (E r^2 - 1 of tokens' and
        sequences' ratios).
    """
    counts_N = torch.bincount(sequence_K)

    def sums_N(values_K: Float[Tensor, " K"]) -> Float[Tensor, " N"]:
        return values_K.new_zeros(len(counts_N)).index_add(0, sequence_K, values_K)

    log_ratio_K = old_K - sampler_K
    bounded_K = log_ratio_K.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    old_N, sampler_N = sums_N(old_K) / counts_N, sums_N(sampler_K) / counts_N
    product_N = sums_N(log_ratio_K).clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    verl = {
        "kl": -log_ratio_K.mean(),
        "k3_kl": (bounded_K.exp() - bounded_K - 1).mean(),
        "training_ppl": (-old_N).exp().mean(),
        "rollout_ppl": (-sampler_N).exp().mean(),
        "log_ppl_diff": (sampler_N - old_N).mean(),
        "log_ppl_abs_diff": (sampler_N - old_N).abs().mean(),
        "ppl_ratio": (sampler_N - old_N).exp().mean(),
        "chi2_token": (2 * bounded_K).exp().mean() - 1,
        "chi2_seq": (2 * product_N).exp().mean() - 1,
    }
    return {
        "sampling/logp_difference/mean": float(log_ratio_K.abs().mean()),
        "sampling/logp_difference/max": float(log_ratio_K.abs().max()),
        **{f"{PREFIX}{name}": float(value) for name, value in verl.items()},
    }
