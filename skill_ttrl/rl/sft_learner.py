"""Supervised cold start: imitate demonstrations, loss on the responses only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator

from skill_ttrl.config import SFTConfig
from skill_ttrl.rl.losses import Denominators, aggregate
from skill_ttrl.rl.optim import build_optimizer, learning_rate, shared_rows
from skill_ttrl.rl.pack import EncodedDemonstration, pack_demonstrations
from skill_ttrl.rl.parallel.ranks import ALONE, Ranks, own_micro_batches
from skill_ttrl.rl.policy import Policy
from skill_ttrl.rl.update_metrics import SkippedUpdate
from skill_ttrl.types import derive_seed

GRAD_CLIP = 1.0
"""Largest norm of a gradient; a longer one is scaled down to it."""


class SFTLearner:
    """Maximum likelihood of response tokens.

    Args:
        policy: What learns.
        config: How; `config.steps` is the length of the learning-rate schedule.
        accelerator: Precision (autocast, fp16's scaler).
        ranks: Processes that call each method at the same time with the same arguments; each computes its share of a batch.
    """

    def __init__(self, policy: Policy, config: SFTConfig, accelerator: Accelerator, ranks: Ranks = ALONE) -> None:
        self.policy = policy
        self.skipped: list[SkippedUpdate] = []
        """The latest step, if it was not taken."""
        self._ranks = ranks
        self.config = config
        self._accelerator = accelerator
        policy.release_weights()  # the optimizer holds this rank's shards
        self._optimizer = build_optimizer(
            policy.model,
            learning_rate=config.learning_rate,
            muon_learning_rate=config.muon_learning_rate if config.optimizer == "muon" else None,
            betas=config.betas,
            scaler=accelerator.scaler,
            ranks=ranks,
            offload=policy.offload_optimizer,
            shared=shared_rows(policy),
        )

    def step(self, demonstrations: Sequence[EncodedDemonstration], step: int, *, seed: int = 0) -> dict[str, float]:
        """One optimizer step on a batch of (prompt_ids, response_ids).

        Args:
            demonstrations: The batch; the loss is the mean over all its response tokens.
            step: Number of the step, 0 for the first; places it on the learning-rate schedule.
            seed: The run's seed; only dropout draws from it.

        Returns:
            `loss` (nats a token), `grad_norm`, `learning_rate` (AdamW's), `tokens`, and `skipped_updates`: 1 where the
            step was refused because loss or gradient was not finite.
        """
        config = self.config
        batch = pack_demonstrations(demonstrations)
        tokens = int(batch.trained_F.sum())
        denominators = Denominators(tokens, len(batch), float(batch.response_lengths_N.max()))
        fraction = rate_fraction(step, config)
        self._optimizer.set_lr(fraction)
        total = torch.zeros((), device=self.policy.device)
        self.policy.release_weights()
        every = torch.arange(len(batch))
        with self.policy.training(derive_seed(seed, "dropout", "sft", step, *self._ranks.apart)):
            for rows, counts in own_micro_batches(
                self.policy, batch, every, self._ranks, sequences=config.micro_batch_size
            ):
                on_device = self.policy.lay_out(batch, rows)
                with self._accelerator.autocast():
                    log_probs, _ = self.policy.token_logprobs(on_device)
                loss = aggregate(-log_probs, on_device.response_mask_N_R, "token-mean", denominators)
                self._optimizer.backward(loss if counts else loss * 0.0)
                total += loss.detach() * counts
            self._ranks.sum_([total])
            norm, applied = self._optimizer.step(total, GRAD_CLIP)
        overflow = self._accelerator.scaler is not None and math.isfinite(float(total))
        self.skipped = [] if applied else [SkippedUpdate(batch, every, float(total), norm, overflow)]
        return {
            "loss": float(total),
            "grad_norm": norm,
            "learning_rate": fraction * config.learning_rate,
            "tokens": float(tokens),
            "skipped_updates": float(not applied),
        }

    def state_dict(self) -> dict[str, Any]:
        """State for an exact resume, without the model's weights and the step number."""
        return {"optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave; the model's weights are loaded apart."""
        self._optimizer.load_state_dict(state["optimizer"])


def rate_fraction(step: int, config: SFTConfig) -> float:
    """The rate of a step as a share of the peak: one schedule, or two where the config restarts it."""
    begin, length, peak = 0, config.steps, 1.0
    if config.lr_restart_at is not None:
        restart = round(config.lr_restart_at * config.steps)
        if step < restart:
            length = restart
        else:
            begin, length, peak = restart, config.steps - restart, config.lr_restart_scale
    shape = config.warmup_steps, config.lr_scheduler, config.min_lr_ratio, config.decay_from
    return learning_rate(step - begin, length, peak, *shape)
