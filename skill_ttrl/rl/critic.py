"""A critic: the expected return before each token, read by a linear head from the hidden states of a decoder.

The decoder is the policy's own or a model apart. Of the policy's own the head alone learns, from hidden states that are taken as they
are: the value loss never moves the policy. A model apart learns as a whole. Values begin at 0: the first advantages are the returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor, nn

from skill_ttrl.config.rl import CriticConfig, RLConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.losses import AggregationMode, Denominators, aggregate, masked_mean
from skill_ttrl.rl.micro_batch import MicroBatch
from skill_ttrl.rl.optim import PolicyOptimizer, adamw, finite_mean, why_skipped
from skill_ttrl.rl.parallel.ranks import ALONE, Ranks, like, local, own_micro_batches
from skill_ttrl.rl.policy import Policy

MODEL_RATE = 1e-5
"""Learning rate of a model apart where none is set (verl's)."""
VALUE_CLIP = 0.5
"""Largest change of a value in one step that reduces the loss (verl's): for rewards near 1."""
WEIGHT_DECAY = 0.01
"""Of a separate model's matrices."""
DROPOUT = "critic dropout"

MiniBatches = Iterable[tuple[Int[Tensor, " M"], Denominators]]
"""Items of each optimizer step, and the divisors of its means."""


class Critic:
    """Values of the tokens of a batch.

    Args:
        policy: What the values are of.
        config: The settings of the phase, with `critic`.
        accelerator: Precision.
        apart: Decoder of its own, as a `Policy`; None: the policy's.
        ranks: Processes that call each method at the same time with the same arguments.
    """

    def __init__(
        self,
        policy: Policy,
        config: RLConfig,
        accelerator: Accelerator,
        *,
        apart: Policy | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        assert config.critic is not None
        self.settings: CriticConfig = config.critic
        self._config = config
        self._decoder, self._learns = (policy, False) if apart is None else (apart, True)
        self._accelerator = accelerator
        self._scales = self._learns and accelerator.scaler is not None
        self._ranks = ranks
        self._own_rows = partial(own_micro_batches, self._decoder, ranks=ranks, sequences=config.micro_batch_size)
        base = self._decoder.model.get_base_model() if self._decoder.has_adapters else self._decoder.model
        width = int(base.config.get_text_config().hidden_size)
        self.head = ValueHead(width, self._decoder.device)
        self._optimizer = self._build_optimizer()
        self.skipped: list[str] = []
        """Why optimizer steps of the latest update were not taken, as `LocalLearner.skipped`."""

    @torch.no_grad()
    def score(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with `values_F`: the value before each trained token. The first batch centres the head."""
        self._decoder.model.eval()
        self._decoder.release_weights()
        values_F = torch.zeros(len(batch.tokens_F))
        total_D = torch.zeros_like(self.head.centre)
        for rows, counts in self._own_rows(batch):
            part = self._decoder.lay_out(batch, rows)
            hidden_Q_D = self._hidden_states(part)
            if counts:
                values_N_R = self._values(hidden_Q_D, part)
                values_F[batch.trained_places(rows)] = values_N_R[part.response_mask_N_R.bool()].cpu()
                total_D += hidden_Q_D[part.rows_K].float().sum(dim=0)
        self._ranks.sum_([values_F])
        self._ranks.sum_([total_D])
        self.head.centre_on(total_D, int(batch.trained_F.sum()))
        return replace(batch, values_F=values_F)

    def _hidden_states(self, micro_batch: MicroBatch) -> Float[Tensor, "Q D"]:
        with self._accelerator.autocast(), torch.set_grad_enabled(torch.is_grad_enabled() and self._learns):
            return self._decoder.forward_pass(lambda: self._decoder.hidden_states(micro_batch))

    def _values(self, hidden_Q_D: Float[Tensor, "Q D"], micro_batch: MicroBatch) -> Float[Tensor, "N R"]:
        """Values of a micro-batch's trained tokens; 0 where nothing is trained."""
        return micro_batch.spread(self.head(hidden_Q_D)[micro_batch.rows_K])

    def update(self, batch: RolloutBatch, mini_batches: MiniBatches, *, seed: int) -> dict[str, float]:
        """Learn to predict `returns_F`: the intercept takes their mean, the rest follows by gradient descent.

        Args:
            batch: With `values_F` and `returns_F`.
            mini_batches: One for each optimizer step.
            seed: Of dropout, where the decoder learns.

        Returns:
            `critic/vf_loss` and `critic/vf_clipfrac` (means over the optimizer steps), `critic/grad_norm`, `critic/lr`,
            `critic/updates`, `critic/skipped_updates` (loss or gradient was not finite), and of the values before the update
            `critic/values/mean`, `critic/returns/mean` and `critic/vf_explained_var`. Empty without trained tokens.
        """
        assert batch.values_F is not None and batch.returns_F is not None
        self.skipped = []
        if not bool(batch.trained_F.any()):
            return {}
        values_K, returns_K = batch.values_F[batch.trained_F], batch.returns_F[batch.trained_F]
        difference = float((returns_K - values_K).double().mean())
        self.head.shift(difference)
        # Values of before the update, for the clip, as if the intercept had been this one then.
        shifted = replace(batch, values_F=(batch.values_F + difference) * batch.trained_F)
        found = []
        if not self._learns:
            self._decoder.model.eval()
        with self._decoder.training(seed) if self._learns else nullcontext():
            for indices, denominators in mini_batches:
                if len(indices := indices[batch.trained_tokens_N[indices] > 0]):
                    found.append(self._step(shifted, indices, denominators))
        losses, shares, norms, applied = (list(column) for column in zip(*found, strict=True))
        return {
            "critic/vf_loss": finite_mean(losses),
            "critic/vf_clipfrac": finite_mean(shares),
            "critic/grad_norm": finite_mean(norms),
            "critic/lr": self.learning_rate,
            "critic/updates": float(sum(applied)),
            "critic/skipped_updates": float(len(applied) - sum(applied)),
            "critic/values/mean": float(values_K.mean()),
            "critic/returns/mean": float(returns_K.mean()),
            "critic/vf_explained_var": explained_variance(values_K, returns_K),
        }

    @property
    def learning_rate(self) -> float:
        """Of the model apart, or of the head that learns alone."""
        usual = MODEL_RATE if self._learns else RATE / len(self.head.weight)
        return self.settings.learning_rate or usual

    def _step(
        self, batch: RolloutBatch, indices: Int[Tensor, " M"], denominators: Denominators
    ) -> tuple[float, float, float, bool]:
        """One optimizer step: (loss, share of clipped tokens, norm of the gradient, whether weights changed)."""
        sums = torch.zeros(2, device=self._decoder.device)
        for rows, counts in self._own_rows(batch, indices):
            part = self._decoder.lay_out(batch, rows)
            assert part.values_N_R is not None and part.returns_N_R is not None
            part_loss, part_share = compute_value_loss(
                self._values(self._hidden_states(part), part),
                part.returns_N_R,
                part.values_N_R,
                part.response_mask_N_R,
                loss_agg_mode=self._config.loss_aggregation,
                denominators=denominators,
            )
            self._optimizer.backward(part_loss if counts else part_loss * 0.0)
            if counts:
                sums += torch.stack([part_loss.detach(), part_share * part.trained_tokens / denominators.tokens])
        self._ranks.sum_([sums])
        norm, applied = self._optimizer.step(sums[0], self._config.grad_clip)
        loss, share = sums.tolist()
        if not applied and not (self._scales and math.isfinite(loss)):
            self.skipped.append(why_skipped(batch, indices, loss, norm))
        return loss, share, norm, applied

    def _build_optimizer(self) -> PolicyOptimizer:
        """AdamW for the head, and one for the decoder where it learns: its weights may be sharded, those of the head never are."""
        rate = RATE / len(self.head.weight)
        rates = {"head": rate if self._learns else self.learning_rate, "decoder": self.learning_rate}
        parts: dict[str, list[nn.Parameter]] = {"head": list(self.head.parameters())}
        if self._learns:
            parts["decoder"] = list(self._decoder.trainable_parameters().values())
        optimizers = [adamw(each, rates[name], weight_decay=WEIGHT_DECAY) for name, each in parts.items()]
        scaler = torch.amp.GradScaler(self._decoder.device.type) if self._scales else None
        return PolicyOptimizer(optimizers, scaler, self._ranks, parts)

    def state_dict(self) -> dict[str, Any]:
        """State for an exact resume: head, optimizer, and the weights of a decoder that learns."""
        weights = self._decoder.trainable_parameters() if self._learns else {}
        return {
            "head": self.head.state_dict(),
            "decoder": {name: parameter.detach() for name, parameter in weights.items()},
            "optimizer": self._optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        weights = self._decoder.trainable_parameters() if self._learns else {}
        self.head.load_state_dict(state["head"])
        for name, value in state["decoder"].items():
            local(weights[name]).copy_(local(like(value, weights[name])))
        self._optimizer.load_state_dict(state["optimizer"])


# The linear head of a critic, on hidden states less their mean, with an intercept that follows the mean return.


RATE = 0.1
"""Learning rate times the width of the hidden states, where none is set: an optimizer step moves a value by about so much at most."""


class ValueHead(nn.Module):
    """V = w (h - centre) + intercept, in float32; w, and with it every value, begins at 0.

    Hidden states have a large common part. Without the centre w would learn the mean return through it, and values would differ by how
    far each state goes along that part, which carries no information about its return. So only w is left to gradient descent.

    Args:
        width: Of the hidden states.
        device: Where it computes.
    """

    centre: Tensor
    intercept: Tensor
    has_centre: Tensor

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.register_buffer("centre", torch.zeros(width, device=device))
        self.register_buffer("intercept", torch.zeros((), device=device))
        self.register_buffer("has_centre", torch.zeros((), dtype=torch.bool))

    def forward(self, hidden_Q_D: Float[Tensor, "Q D"]) -> Float[Tensor, " Q"]:
        """Value of each hidden state."""
        return (hidden_Q_D.float() - self.centre) @ self.weight + self.intercept

    @torch.no_grad()
    def centre_on(self, total_D: Float[Tensor, " D"], count: int) -> None:
        """Take the mean of these hidden states, given as sum and number, for the centre; once."""
        if count and not self.has_centre:
            self.centre.copy_(total_D / count)
            self.has_centre.fill_(True)

    @torch.no_grad()
    def shift(self, difference: float) -> None:
        """Add to every value; nothing where it is not finite."""
        if math.isfinite(difference):
            self.intercept += difference


# The clipped loss of a value function, and how much of the returns it explains.


def compute_value_loss(
    values: Float[Tensor, "N T"],
    returns: Float[Tensor, "N T"],
    old_values: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    value_clip: float = VALUE_CLIP,
    loss_agg_mode: AggregationMode = "token-mean",
    denominators: Denominators | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Aggregate max((V - R)^2, (clip(V, V_old +- c) - R)^2) / 2 of each token over a batch (verl, TRL).

    Args:
        values: Of the critic that learns, with gradient (N, T).
        returns: What it learns to predict (N, T).
        old_values: Of the critic before this update (N, T).
        response_mask: 1 at trained tokens (N, T).
        value_clip: c, the largest step of a value that the loss rewards.
        loss_agg_mode: See `losses.aggregate`.
        denominators: See `losses.aggregate`.

    Returns:
        (loss, share of the tokens where the clip decides); the second is detached.
    """
    plain = (values - returns).square()
    near = old_values + (values - old_values).clamp(-value_clip, value_clip)
    bounded = (near - returns).square()
    loss = 0.5 * torch.maximum(plain, bounded)
    share = masked_mean((bounded > plain).to(loss.dtype), response_mask)
    return aggregate(loss, response_mask, loss_agg_mode, denominators), share


def explained_variance(values: Float[Tensor, " K"], returns: Float[Tensor, " K"]) -> float:
    """1 - Var(R - V) / Var(R): 1 for a perfect critic, 0 for a constant one, below 0 for one that misleads (verl: 1e-5 is added).

    0 for fewer than two tokens.
    """
    if len(returns) < 2:
        return 0.0
    return float(1.0 - (returns - values).double().var() / (returns.double().var() + 1e-5))
