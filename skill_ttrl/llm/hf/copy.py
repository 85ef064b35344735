"""The `hf` backend with weights of its own: rollouts go on while the learner learns, at the price of a second model in memory."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from skill_ttrl.llm.hf.backend import HFBackend

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class HFCopyBackend(HFBackend):
    """Samples from a copy of the learner's model, which has the learner's weights as of the last `update_weights`.

    With `keeps_cache` the keys and values of episodes in flight outlive an update (`rollout.kv_cache_on_update`).
    """

    is_learner = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        keeps_cache: bool = False,
        **options: Any,
    ) -> None:
        # The copy's parameters need grads as the learner's do: torch takes other kernels where they do not, which round otherwise.
        super().__init__(deepcopy(model), tokenizer, **options)
        self._keeps_cache = keeps_cache
        self._learner: Any = model

    @torch.no_grad()
    def update_weights(self, policy_version: int) -> None:
        """Copy the weights that learn. Nothing may be sampled meanwhile (`HandOver`)."""
        for own, learned in zip(self.model.parameters(), self._learner.parameters(), strict=True):
            if learned.requires_grad:
                own.copy_(learned)
        kept_rows = self._kept_rows if self._keeps_cache else None
        super().update_weights(policy_version)
        self._kept_rows, self._weights = kept_rows, self._weight_versions()
