"""The language-model head as the learner applies it: to hidden states at chosen positions, for the tokens that follow them."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skill_ttrl.rl.forward.gradients import may_gather
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
        if not _is_plain_linear(self._module):
            return self._score_custom(hidden_Q_D, micro_batch, temperature, with_entropy)
        weight, bias = self._module.weight, self._module.bias
        settings = HeadSettings(
            self._scale,
            self._softcap,
            temperature,
            with_entropy,
            self._budget,
            gather_gradient=gather_gradient and may_gather(weight),
        )
        return score_tokens(hidden_Q_D, weight, bias, micro_batch.targets_K, micro_batch.rows_K, settings)

    def _score_custom(
        self, hidden_Q_D: Tensor, micro_batch: MicroBatch, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The same for a head of any kind, in chunks of positions."""
        hidden_K_D, targets_K = hidden_Q_D[micro_batch.rows_K], micro_batch.targets_K
        rows = max(1, self._budget // (CUSTOM_HEAD_COPIES * self._vocabulary))
        parts = []
        for hidden, targets in zip(torch.split(hidden_K_D, rows), torch.split(targets_K, rows), strict=True):
            arguments = (hidden, targets, temperature, with_entropy)
            if torch.is_grad_enabled() and len(targets_K) > rows:
                # Logits are computed again in the backward pass instead of being held for all chunks.
                parts.append(checkpoint(self._score_chunk, *arguments, use_reentrant=False))
            else:
                parts.append(self._score_chunk(*arguments))
        log_probs_K = torch.cat([log_probs for log_probs, _ in parts])
        return log_probs_K, torch.cat([entropy for _, entropy in parts]) if with_entropy else None

    def _score_chunk(
        self, hidden_K_D: Tensor, targets_K: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        log_p_K_V = torch.log_softmax(self.logits(hidden_K_D).float() / temperature, dim=-1)
        log_probs_K = log_p_K_V.gather(1, targets_K[:, None]).squeeze(1)
        return log_probs_K, -(log_p_K_V.exp() * log_p_K_V).sum(dim=-1) if with_entropy else None


def _is_plain_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """True if the head is its weight and bias and nothing else: no adapters, hooks or sharded tensors."""
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return False
    return type(head.weight.data) is Tensor
