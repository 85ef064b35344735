"""The language-model head as the learner applies it: to hidden states at chosen positions, for the tokens that follow them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skill_ttrl.rl.forward.allowed import LimitedTokens
from skill_ttrl.rl.forward.gradients import gather_rows, may_gather
from skill_ttrl.rl.forward.log_probs import HeadSettings, score_tokens
from skill_ttrl.rl.forward.micro_batch import MicroBatch

CUSTOM_HEAD_COPIES = 4
"""Float32 copies of the logits of a head that is not a plain linear layer: its logits, their log-softmax, their gradients."""


class Head:
    """Head of a causal language model.

    Args:
        model: The model, without adapters around it.
        budget: Most logits (positions x vocabulary) that are held for the backward pass.
    """

    def __init__(self, model: Any, budget: int) -> None:
        self._module: nn.Module = model.get_output_embeddings()
        self._budget = budget
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])
        config = model.config.get_text_config()
        self._scale = float(getattr(config, "logit_scale", None) or 1.0)
        self._scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)

    def logits(self, hidden: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape V"]:
        """Logits of hidden states."""
        logits: Tensor = self._module(hidden)
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits

    def score(
        self,
        hidden_Q_D: Float[Tensor, "Q D"],
        micro_batch: MicroBatch,
        *,
        temperature: float,
        with_entropy: bool,
        gather_gradient: bool,
    ) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"] | None]:
        """Log-probs of the trained tokens of a micro-batch, and on request the entropies.

        `gather_gradient`: the weight's gradient may go straight to `.grad` (see `gradients`).
        """
        settings = HeadSettings(self._scale, self._softcap, temperature, with_entropy, self._budget)
        if _is_plain_linear(self._module):
            settings = replace(settings, gather_gradient=gather_gradient and may_gather(self._module.weight))
        if not micro_batch.allowed:
            return self._score(hidden_Q_D, micro_batch.targets_K, micro_batch.rows_K, None, settings)
        log_probs_K = hidden_Q_D.new_zeros(micro_batch.trained_tokens, dtype=torch.float32)
        entropy_K = torch.zeros_like(log_probs_K) if with_entropy else None
        for part in micro_batch.allowed:
            hidden = hidden_Q_D.index_select(0, part.queries_Q)
            found, entropy = self._score(hidden, part.targets_K, part.rows_K, part, settings)
            log_probs_K = log_probs_K.index_copy(0, part.places_K, found)
            if entropy_K is not None and entropy is not None:
                entropy_K = entropy_K.index_copy(0, part.places_K, entropy)
        return log_probs_K, entropy_K

    def _score(
        self, hidden_Q_D: Tensor, targets_K: Tensor, rows_K: Tensor, part: LimitedTokens | None, settings: HeadSettings
    ) -> tuple[Tensor, Tensor | None]:
        """Score tokens against all rows of the head, or against those of `part`."""
        if not _is_plain_linear(self._module):
            return self._score_custom(hidden_Q_D[rows_K], targets_K, part, settings)
        weight: Tensor = self._module.weight
        bias: Tensor | None = self._module.bias
        if part is not None and part.ids_V is not None:
            weight = gather_rows(weight, part.ids_V, straight=settings.gather_gradient)
            bias = None if bias is None else bias[part.ids_V]
            settings = replace(settings, gather_gradient=False)
        return score_tokens(
            hidden_Q_D, weight, bias, targets_K, rows_K, settings, None if part is None else part.limits
        )

    def _score_custom(
        self, hidden_K_D: Tensor, targets_K: Tensor, part: LimitedTokens | None, settings: HeadSettings
    ) -> tuple[Tensor, Tensor | None]:
        """The same for a head of any kind, in chunks of positions."""
        rows = max(1, self._budget // (CUSTOM_HEAD_COPIES * self._vocabulary))
        parts = []
        for places in torch.split(torch.arange(len(targets_K), device=targets_K.device), rows):
            arguments = (hidden_K_D[places], targets_K[places], self._limits_at(part, places), settings)
            if torch.is_grad_enabled() and len(targets_K) > rows:
                # Logits are computed again in the backward pass instead of being held for all chunks.
                parts.append(checkpoint(self._score_chunk, *arguments, use_reentrant=False))
            else:
                parts.append(self._score_chunk(*arguments))
        log_probs_K = torch.cat([log_probs for log_probs, _ in parts])
        return log_probs_K, torch.cat([entropy for _, entropy in parts]) if settings.with_entropy else None

    def _limits_at(self, part: LimitedTokens | None, places: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """(rows of the head that count, which of them the tokens at `places` leave out); None for all, and for none."""
        if part is None or part.limits is None:
            return None if part is None else part.ids_V, None
        width = self._vocabulary if part.ids_V is None else len(part.ids_V)
        return part.ids_V, ~part.limits.mask(0, width, part.rows_K[places])

    def _score_chunk(
        self,
        hidden_K_D: Tensor,
        targets_K: Tensor,
        limits: tuple[Tensor | None, Tensor | None],
        settings: HeadSettings,
    ) -> tuple[Tensor, Tensor | None]:
        logits_K_V = self.logits(hidden_K_D).float() / settings.temperature
        ids_V, outside_K_V = limits
        if ids_V is not None:
            logits_K_V = logits_K_V.index_select(1, ids_V)
        if outside_K_V is not None:
            logits_K_V = logits_K_V.masked_fill(outside_K_V, -torch.inf)
        log_p_K_V = torch.log_softmax(logits_K_V, dim=-1)
        log_probs_K = log_p_K_V.gather(1, targets_K[:, None]).squeeze(1)
        if not settings.with_entropy:
            return log_probs_K, None
        finite_K_V = log_p_K_V if outside_K_V is None else log_p_K_V.masked_fill(outside_K_V, 0.0)
        return log_probs_K, -(log_p_K_V.exp() * finite_K_V).sum(dim=-1)


def _is_plain_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """True if the head is its weight and bias and nothing else: no adapters, hooks or sharded tensors."""
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return False
    return type(head.weight.data) is Tensor
