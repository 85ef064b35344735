"""One policy update: a batch of rollouts in, better weights and metrics out.

`score` computes log-probs without gradient; `update` learns. Each epoch goes through the batch in mini-batches, one optimiser step each; a mini-batch is computed in
micro-batches whose gradients add up to that of the whole. The learner knows tokens, log-probs and advantages, and nothing
of where they came from.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import CheckpointError
from skill_ttrl.rl.batch import MicroBatch, RolloutBatch
from skill_ttrl.rl.kl import compute_kl_penalty
from skill_ttrl.rl.losses import (
    LOSSES,
    Denominators,
    LossInputs,
    aggregate,
    bounded_log_ratio,
    build_loss,
    compute_entropy_bonus,
    ratio_metrics,
)
from skill_ttrl.rl.optim import build_optimizer, learning_rate
from skill_ttrl.rl.parallel.ranks import ALONE, Ranks
from skill_ttrl.rl.parallel.split import own_micro_batches
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import derive_seed


class Learner(Protocol):
    """A learner as a training loop holds it: of this process, or one that spans several."""

    def score(self, batch: RolloutBatch, *, temperature: float, own: bool, reference: bool) -> RolloutBatch:
        """Compute log-probs of the batch's tokens; see `LocalLearner.score`."""

    def update(self, batch: RolloutBatch, *, step: int, seed: int, temperature: float) -> dict[str, float]:
        """Learn from one batch; see `LocalLearner.update`."""


class LocalLearner:
    """Policy-gradient learner in one process, or this rank's part of one that spans several.

    Every rank has the whole batch and computes its share of each mini-batch; denominators are the whole mini-batch's, so gradients
    of all ranks add up to those of one process.

    Args:
        policy: What learns.
        config: Loss, optimiser, mini-batches, KL and entropy terms.
        accelerator: Precision (autocast, fp16's scaler); see `device.make_accelerator`.
        total_steps: Calls of `update` in the run: the length of the learning-rate schedule.
        max_response_tokens: Horizon of the loss aggregation `seq-mean-token-sum-norm`; None: longest response at hand.
        ranks: Processes that call each method at the same time with the same arguments.
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
    ) -> None:
        self.policy = policy
        self.config = config
        self._ranks = ranks
        self._accelerator = accelerator
        self._loss = build_loss(config.loss)
        self._horizon = max_response_tokens
        # Tokens without an advantage need no forward pass where nothing else pulls on them.
        alone = config.kl_coef == 0 and config.entropy_coef == 0
        self._skip_dead = alone and LOSSES.get(config.loss["type"]).zero_without_advantage
        self._optimizer = build_optimizer(
            policy.model,
            config.optimizer,
            learning_rate=config.learning_rate,
            muon_learning_rate=config.muon_learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            scaler=accelerator.scaler,
            ranks=ranks,
        )
        per_epoch = math.ceil(config.prompts_per_step / (config.mini_batch_prompts or config.prompts_per_step))
        self._updates_per_step = per_epoch * config.epochs
        self._total_updates = total_steps * self._updates_per_step
        self._warmup = (
            round(config.warmup_ratio * self._total_updates) if config.warmup_steps is None else config.warmup_steps
        )
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
            The batch with these log-probs, in nats and float32.
        """
        self.policy.model.eval()
        self.policy.release_weights()
        if own:
            batch = replace(batch, old_log_probs_F=self._score(batch, temperature))
        if reference:
            with self.policy.as_reference():
                batch = replace(batch, ref_log_probs_F=self._score(batch, temperature))
        return batch

    def _score(self, batch: RolloutBatch, temperature: float) -> Float[Tensor, " F"]:
        """Log-probs of all trained tokens: each rank computes its share, and all have the whole."""
        found_F = torch.zeros(len(batch.tokens_F))
        # Cast copies of the weights live as long as autocast does: one of its own for each pass over the batch.
        with self._accelerator.autocast():
            for rows, counts in self._own_rows(batch, torch.arange(len(batch))):
                part = batch.micro_batch(rows, self.policy.pad_id)
                log_probs_N_R, _ = self.policy.token_logprobs(part.to(self.policy.device), temperature=temperature)
                if counts:
                    found_F[batch.trained_places(rows)] = log_probs_N_R.float().cpu()[part.response_mask_N_R.bool()]
        self._ranks.sum_([found_F])
        return found_F

    def _own_rows(self, batch: RolloutBatch, indices: Int[Tensor, " M"]) -> Iterator[tuple[Int[Tensor, " N"], bool]]:
        """Items of each micro-batch of this rank; see `own_micro_batches`."""
        size, in_step = self.config.micro_batch_size, self.policy.sharding is not None
        return own_micro_batches(batch, indices, size, self._ranks, in_step=in_step)

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
            skipped_updates post_entropy`. `entropy` is minus the mean log-prob of the sampled tokens (nats a token): an unbiased
            estimate for the policy that sampled; `post_entropy` is TTRL's name for it. An empty batch has neither of them and no
            `learning_rate`. `updates` are optimiser steps taken; `skipped_updates` those refused
            because loss or gradient was not finite. Items whose advantage is 0 are not computed where the loss allows it
            and neither KL nor entropy counts: the gradient is the same, means over tokens leave them out, and a
            mini-batch that has no others takes no optimiser step.
        """
        metrics = _UpdateMetrics()
        self.policy.release_weights()
        with self.policy.training(derive_seed(seed, "dropout", step, *self._ranks.apart)):
            position = step * self._updates_per_step
            for epoch in range(self.config.epochs):
                for indices in self._mini_batches(batch, derive_seed(seed, "minibatch", step, epoch)):
                    self._update_mini_batch(batch, indices, position, temperature, metrics)
                    position += 1
        refresh = self.config.reference_refresh_steps
        if refresh is not None and (step + 1) % refresh == 0 and batch.ref_log_probs_F is not None:
            self.policy.refresh_reference()
        return metrics.gathered(self._ranks).summary() | _batch_metrics(batch)

    def _mini_batches(self, batch: RolloutBatch, seed: int) -> Iterator[Int[Tensor, " M"]]:
        """Item indices of each mini-batch, in a seeded order of whole prompts or of samples."""
        if len(batch) == 0:
            return
        prompts, generator = torch.unique(batch.prompt_index_N), torch.Generator().manual_seed(seed)
        size = self.config.mini_batch_prompts or len(prompts)
        if self.config.mini_batch_by == "samples":
            order = torch.randperm(len(batch), generator=generator)
            yield from torch.tensor_split(order, min(len(batch), math.ceil(len(prompts) / size)))
            return
        order = torch.randperm(len(prompts), generator=generator)
        for chosen in torch.split(prompts[order], size):
            yield torch.isin(batch.prompt_index_N, chosen).nonzero().squeeze(1)

    def _update_mini_batch(
        self,
        batch: RolloutBatch,
        indices: Int[Tensor, " M"],
        position: int,
        temperature: float,
        metrics: _UpdateMetrics,
    ) -> None:
        config = self.config
        denominators = Denominators(
            tokens=float(batch.trained_tokens_N[indices].sum()),
            sequences=float((batch.trained_tokens_N[indices] > 0).sum()),
            horizon=float(self._horizon or batch.response_lengths_N[indices].max()),
        )
        computed_N = batch.has_advantage_N if self._skip_dead else batch.trained_tokens_N > 0
        alive = indices[computed_N[indices]]
        fraction = learning_rate(position, self._total_updates, 1.0, self._warmup, config.schedule, config.min_lr_ratio)
        self._optimizer.set_lr(fraction)
        metrics.rate = fraction * config.learning_rate
        if len(alive) == 0:
            return
        total = torch.zeros((), device=self.policy.device)
        for rows, counts in self._own_rows(batch, alive):
            micro_batch = batch.micro_batch(rows, self.policy.pad_id)
            loss, means = self._micro_batch_loss(micro_batch.to(self.policy.device), denominators, temperature)
            self._optimizer.backward(loss if counts else loss * 0.0)
            if counts:
                total += loss.detach()
                metrics.add(means, micro_batch.trained_tokens)
        self._ranks.sum_([total])
        norm, applied = self._optimizer.step(total, config.grad_clip)
        metrics.count(norm, applied)

    def _micro_batch_loss(
        self, micro_batch: MicroBatch, denominators: Denominators, temperature: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        config, mask = self.config, micro_batch.response_mask_N_R
        with self._accelerator.autocast():
            log_probs, entropy = self.policy.token_logprobs(
                micro_batch, temperature=temperature, with_entropy=config.entropy_coef > 0
            )
        inputs = LossInputs(
            log_probs,
            micro_batch.old_log_probs_N_R,
            micro_batch.advantages_N_R,
            mask,
            micro_batch.sampler_log_probs_N_R,
            entropy,
        )
        token_loss, info = self._loss(inputs)
        if micro_batch.weights_N_R is not None:
            token_loss = token_loss * micro_batch.weights_N_R
        loss = aggregate(token_loss, mask, config.loss_aggregation, denominators)
        log_ratio = bounded_log_ratio(log_probs.detach(), micro_batch.old_log_probs_N_R)
        means = info | ratio_metrics(log_ratio, mask) | {"policy_loss": loss.detach()}
        if config.kl_coef > 0:
            assert micro_batch.ref_log_probs_N_R is not None
            kl_loss, means["kl"] = compute_kl_penalty(
                log_probs,
                micro_batch.ref_log_probs_N_R,
                mask,
                config.kl_coef,
                config.kl_estimator,
                config.loss_aggregation,
                denominators,
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
        return {"optimizer": self._optimizer.state_dict(), "reference": self.policy.reference_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the model's weights are loaded apart.

        Raises:
            CheckpointError: the state has no reference, and this configuration needs one.
        """
        wanted = self.config.kl_coef > 0 or self.config.kl_in_reward is not None
        if wanted and state["reference"] is None and not self.policy.has_adapters:
            raise CheckpointError(
                f"rl.kl_coef is {self.config.kl_coef}, but the checkpoint holds no reference model: it was written with "
                "rl.kl_coef=0. Resume with that, or start a new run."
            )
        self._optimizer.load_state_dict(state["optimizer"])
        self.policy.load_reference_state(state["reference"])


def _batch_metrics(batch: RolloutBatch) -> dict[str, float]:
    if not len(batch):
        return {"tokens": 0.0, "sequences": 0.0}
    tokens = int(batch.trained_F.sum())
    entropy = -float(batch.old_log_probs_F[batch.trained_F].mean()) if tokens else 0.0
    return {"entropy": entropy, "tokens": float(tokens), "sequences": float(len(batch)), "post_entropy": entropy}


class _UpdateMetrics:
    """Gathers the metrics of one update; nothing waits for the device until the end."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._means: dict[str, list[Tensor]] = defaultdict(list)
        self._weights: list[int] = []
        self._norms: list[float] = []
        self._skipped = 0

    def add(self, means: dict[str, Tensor], tokens: int) -> None:
        for name, value in means.items():
            self._means[name].append(value.detach())
        self._weights.append(tokens)

    def count(self, norm: float, applied: bool) -> None:
        self._norms.append(norm)
        self._skipped += not applied

    def gathered(self, ranks: Ranks) -> _UpdateMetrics:
        """Those of all ranks together, on the driver; the other ranks' own elsewhere."""
        if not ranks.several:
            return self
        whole = _UpdateMetrics()
        whole.rate, whole._norms, whole._skipped = self.rate, self._norms, self._skipped
        columns = {name: torch.stack(values).cpu() for name, values in self._means.items()}
        for their_columns, weights in ranks.gather((columns, self._weights)):
            for name, column in their_columns.items():
                whole._means[name] += column
            whole._weights += weights
        return whole

    def summary(self) -> dict[str, float]:
        updates = len(self._norms)
        result = dict.fromkeys(("policy_loss", "kl", "clip_fraction", "approx_kl", "ratio_mean", "ratio_max"), 0.0)
        weights = torch.tensor(self._weights, dtype=torch.float64)
        for name, values in self._means.items():
            column = torch.stack(values).double().cpu()
            if name == "policy_loss":  # parts of the optimiser steps' losses: they add up
                result[name] = float(column.sum()) / updates
            elif name == "ratio_max":
                result[name] = float(column.max())
            else:
                result[name] = float((column * weights).sum() / weights.sum())
        finite = [norm for norm in self._norms if math.isfinite(norm)]
        return result | {
            "grad_norm": sum(finite) / max(1, len(finite)),
            **({} if self.rate is None else {"learning_rate": self.rate}),
            "updates": float(updates - self._skipped),
            "skipped_updates": float(self._skipped),
        }
