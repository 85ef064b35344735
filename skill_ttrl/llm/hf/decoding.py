"""Decoding where samples with the same text so far are one row of the model: a prefix tree that grows by a token a step.

A slot is a row of the model's batch. Samples share a slot until they draw different tokens; then the first goes on in it and
the others copy its keys and values to free slots. Slots of samples that are done are given to others, so the model never
computes a row that nobody needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, DynamicLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

LEAST_GROWTH = 64
"""Tokens by which a cache grows at least where it may."""


@dataclass
class _Extent:
    """Sizes that all layers of a cache share."""

    rows: int
    """Slots in use."""
    most_rows: int
    most_tokens: int


class SlotLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers has no types here
    """Keys and values of one layer, in memory with room for more rows and tokens: adding to it copies nothing that is there."""

    def __init__(self, extent: _Extent) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._extent = extent
        self._length = 0

    def get_seq_length(self) -> int:
        """Tokens of each row."""
        return self._length

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add tokens; gives the keys and values of all so far (views)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = (
                part.new_empty(0, part.shape[1], 0, part.shape[3]) for part in (key_states, value_states)
            )
        rows, end = len(key_states), self._length + key_states.shape[2]
        self._reserve(rows, end)
        assert self.keys is not None and self.values is not None
        self.keys[:rows, :, self._length : end] = key_states
        self.values[:rows, :, self._length : end] = value_states
        self._length = end
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def copy(self, sources: Int[Tensor, " C"], targets: Int[Tensor, " C"]) -> None:
        """Copy rows to other rows, none of which is a source."""
        self._reserve(self._extent.rows, self._length)
        for part in (self.keys, self.values):
            assert part is not None
            part[targets, :, : self._length] = part[sources, :, : self._length]

    def _reserve(self, rows: int, tokens: int) -> None:
        """Make room for so many rows and tokens, and for more where more may come; the rest of the rows is given back then."""
        assert self.keys is not None and self.values is not None
        had_rows, _, had_tokens, _ = self.keys.shape
        if tokens > had_tokens:
            tokens = max(tokens, min(tokens + max(LEAST_GROWTH, tokens // 2), self._extent.most_tokens))
        elif rows > had_rows:
            rows, tokens = max(rows, min(2 * had_rows, self._extent.most_rows)), had_tokens
        else:
            return
        self.keys, self.values = self._resized(self.keys, rows, tokens), self._resized(self.values, rows, tokens)

    def _resized(self, part: Tensor, rows: int, tokens: int) -> Tensor:
        resized = part.new_empty(rows, part.shape[1], tokens, part.shape[3])
        resized[: len(part), :, : self._length] = part[:rows, :, : self._length]
        return resized


class SlotCache(Cache):
    """Keys and values of all layers, by slot; at most `most_rows` slots of `most_tokens` tokens."""

    def __init__(self, most_rows: int, most_tokens: int) -> None:
        # Nothing here refers to itself: the memory is free as soon as nobody decodes.
        extent = self.extent = _Extent(0, most_rows, most_tokens)
        super().__init__(layer_class_to_replicate=partial(SlotLayer, extent))  # type: ignore[arg-type]

    def copy(self, sources: Int[Tensor, " C"], targets: Int[Tensor, " C"], rows: int) -> None:
        """Copy slots to other slots; `rows` slots are in use from now on."""
        self.extent.rows = rows
        if len(sources):
            for layer in self.layers:
                assert isinstance(layer, SlotLayer)
                layer.copy(sources, targets)


class Decoding:
    """A model that reads prompts and then one token a slot and step.

    Args:
        model: A causal language model of transformers.
        prompts: Tokens of different prompts, one slot each at the beginning.
        pad_id: Fills up shorter prompts on the left.
        most_rows: Most slots there will be.
        most_new_tokens: Most tokens that will follow a prompt.
    """

    def __init__(
        self, model: Any, prompts: Sequence[tuple[int, ...]], pad_id: int, *, most_rows: int, most_new_tokens: int
    ) -> None:
        self._model = model
        self._masks_by_slot = takes_slot_masks(model)
        self.slots: list[int] = list(range(len(prompts)))
        """Slot of each prompt."""
        longest = max(len(prompt) for prompt in prompts)
        pads = [longest - len(prompt) for prompt in prompts]
        rows = [[pad_id] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
        self._pads_S: Int[Tensor, " S"] = torch.tensor(pads, device=model.device)
        """Padding on the left of each slot."""
        self._padded = any(pads)
        self._length = longest
        """Tokens in each slot, padding counted."""
        self._cache = SlotCache(most_rows, longest + most_new_tokens)
        columns_T = torch.arange(longest, device=model.device)
        self.logits_S_V: Float[Tensor, "S V"] = self._forward(
            torch.tensor(rows, device=model.device),
            attention_mask=(columns_T >= self._pads_S[:, None]).long(),
            position_ids=(columns_T - self._pads_S[:, None]).clamp_(min=0),
            logits_to_keep=1,
        )

    def advance(self, slots_M: Int[Tensor, " M"], token_M: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
        """Read the next token of each sample, and give each its slot from now on.

        Samples of the same slot with the same token stay together; slots that no sample names are free.
        """
        vocabulary = self.logits_S_V.shape[1]
        ways, way_M = torch.unique(slots_M * vocabulary + token_M, return_inverse=True)
        parents_C, token_C = ways // vocabulary, ways % vocabulary
        slots_C = self._settle(parents_C)
        token_S, pads_S = torch.empty_like(token_C), torch.empty_like(token_C)
        token_S[slots_C], pads_S[slots_C] = token_C, self._pads_S[parents_C]
        self._pads_S = pads_S
        positions_S_1 = (self._length - pads_S)[:, None]
        self._length += 1
        self.logits_S_V = self._forward(token_S[:, None], attention_mask=self._mask(), position_ids=positions_S_1)
        return slots_C[way_M]

    def _settle(self, parents_C: Int[Tensor, " C"]) -> Int[Tensor, " C"]:
        """A slot for each way, given the slot it comes from (ascending): 0 to C - 1, with as few copies as can be."""
        count = len(parents_C)
        stays_C = (parents_C < count) & (torch.diff(parents_C, prepend=parents_C.new_tensor([-1])) > 0)
        free = torch.ones(count, dtype=torch.bool, device=parents_C.device)
        free[parents_C[stays_C]] = False
        slots_C = parents_C.clone()
        slots_C[~stays_C] = targets = free.nonzero().squeeze(1)
        self._cache.copy(parents_C[~stays_C], targets, count)
        return slots_C

    def _mask(self) -> Bool[Tensor, "S 1 1 T"] | Int[Tensor, "S T"] | None:
        if self._masks_by_slot and not self._padded:
            return None
        seen_S_T = torch.arange(self._length, device=self._pads_S.device) >= self._pads_S[:, None]
        return seen_S_T[:, None, None] if self._masks_by_slot else seen_S_T.long()

    def _forward(self, ids_S_T: Int[Tensor, "S T"], **inputs: Any) -> Float[Tensor, "S V"]:
        out = self._model(input_ids=ids_S_T, past_key_values=self._cache, use_cache=True, **inputs)
        logits: Tensor = out.logits[:, -1]
        return logits


def takes_slot_masks(model: Any) -> bool:
    """True if a mask of which keys each row sees may go to the attention of every layer as it is: all see all tokens before.

    Making a mask is most of what transformers does for a token of a small model.
    """
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ())
    if layers - {"full_attention"} or getattr(config, "sliding_window", None) is not None:
        return False
    masks = ALL_MASK_ATTENTION_FUNCTIONS
    return config._attn_implementation in masks and masks[config._attn_implementation] is sdpa_mask
