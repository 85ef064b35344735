"""Which items go through the model together, and which of several processes computes them: plans alone, no tensors of tokens."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from skill_ttrl.rl.forward.items import Items


def cut_micro_batches(
    batch: Items,
    indices: Int[Tensor, " M"],
    *,
    sequences: int | None = None,
    tokens: int | None = None,
    packed: bool = False,
) -> list[Int[Tensor, " N"]]:
    """Cut items into micro-batches.

    Padded items are taken shortest first. Packed ones go prompt by prompt, the prompts with the shortest items first; items with
    the same prompt stay together where they fit.

    Args:
        batch: All items.
        indices: Those to cut (M,).
        sequences: Most items of a micro-batch, at least 1; None: any number.
        tokens: Most tokens that the model computes for a micro-batch: rows x longest row; packed, each prompt once and all
            responses. An item that is longer is a micro-batch of its own. None: any number.
        packed: How the items will be laid out.
    """
    if len(indices) == 0:
        return []
    most = len(indices) if sequences is None else sequences
    if tokens is None and not packed:
        return list(torch.split(_by_length(batch, indices), most))
    limit = math.inf if tokens is None else tokens
    parts = _cut_units(batch, indices, most, limit) if packed else _cut_rows(batch, indices, most, limit)
    return [torch.tensor(part) for part in parts]


def _cut_rows(batch: Items, indices: Int[Tensor, " M"], sequences: int, tokens: float) -> list[list[int]]:
    """Cut padded items: those of a micro-batch are as long as its longest."""
    order = _by_length(batch, indices)
    parts: list[list[int]] = []
    for item, length in zip(order.tolist(), batch.lengths_N[order].tolist(), strict=True):
        if not parts or len(parts[-1]) == sequences or (len(parts[-1]) + 1) * length > tokens:
            parts.append([])
        parts[-1].append(item)
    return parts


def _cut_units(batch: Items, indices: Int[Tensor, " M"], sequences: int, tokens: float) -> list[list[int]]:
    """Cut packed items prompt by prompt; a prompt whose items do not fit together is cut itself."""
    parts: list[list[int]] = []
    filled = 0
    for unit in _prompt_units(batch, indices):
        cost, room = unit.cost, parts and len(parts[-1]) + len(unit.items) <= sequences
        if room and filled + cost <= tokens:
            parts[-1] += unit.items
            filled += cost
        elif len(unit.items) <= sequences and cost <= tokens:
            parts.append(list(unit.items))
            filled = cost
        else:
            for number, (item, response) in enumerate(zip(unit.items, unit.responses, strict=True)):
                if number == 0 or len(parts[-1]) == sequences or filled + response > tokens:
                    parts.append([])
                    filled = unit.prompt
                parts[-1].append(item)
                filled += response
    return parts


def split_over_ranks(
    batch: Items, indices: Int[Tensor, " M"], ranks: int, *, packed: bool = False
) -> list[Int[Tensor, " N"]]:
    """Deal items out to ranks so that each has about as many tokens to compute: the same split on every rank.

    Packed items of one prompt, whose prompt counts once, stay together as far as that leaves no rank with more than its share.

    Args:
        batch: All items.
        indices: Those to deal out (M,).
        ranks: Number of ranks, at least 1; some get no items where there are fewer.
        packed: How the items will be laid out.
    """
    if not packed:
        dealt = balanced(batch.lengths_N[indices].tolist(), ranks)
        return [indices[torch.tensor(places, dtype=torch.long)] for places in dealt]
    units = _prompt_units(batch, indices)
    share = max(1.0, sum(unit.cost for unit in units) / ranks)
    pieces = [piece for unit in units for piece in unit.pieces(math.ceil(unit.cost / share))]
    dealt = balanced([piece.cost for piece in pieces], ranks)
    return [
        torch.tensor(sorted(item for place in places for item in pieces[place].items), dtype=torch.long)
        for places in dealt
    ]


def balanced(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Places of the items of each part, so that the parts cost about the same.

    Longest processing time first (Graham 1969): the next costliest item goes to the cheapest part so far. The costliest part is at
    most 4/3 of the best split. Ties go to the lower place and the lower part, so every rank finds the same split.

    Args:
        costs: cost of each item, such as its tokens.
        parts: number of parts, at least 1; some are empty where there are fewer items.

    Returns:
        For each part the places of its items, ascending. Each item is in exactly one part.
    """
    found: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0.0, part) for part in range(parts)]
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        total, part = heapq.heappop(heap)
        found[part].append(place)
        heapq.heappush(heap, (total + costs[place], part))
    return [sorted(places) for places in found]


@dataclass(frozen=True, slots=True)
class _PromptUnit:
    """Items with the same prompt, shortest first."""

    prompt: int
    """Tokens of the prompt."""
    items: list[int]
    responses: list[int]
    """Tokens of each response."""

    @property
    def cost(self) -> int:
        """Tokens to compute: the prompt once and all responses."""
        return self.prompt + sum(self.responses)

    def pieces(self, count: int) -> list[_PromptUnit]:
        """About equal parts, so many or as many as there are items."""
        dealt = balanced(self.responses, max(1, min(count, len(self.items))))
        return [
            _PromptUnit(self.prompt, [self.items[place] for place in hand], [self.responses[place] for place in hand])
            for hand in dealt
        ]


def _prompt_units(batch: Items, indices: Int[Tensor, " M"]) -> list[_PromptUnit]:
    """Items by prompt, those with the shortest longest response first."""
    order = _by_length(batch, indices)
    units: dict[int, _PromptUnit] = {}
    columns = (order, batch.prompt_lengths_N[order], batch.response_lengths_N[order])
    for item, prompt, response in zip(*(column.tolist() for column in columns), strict=True):
        unit = units.setdefault(batch.prompt_keys[item], _PromptUnit(prompt, [], []))
        unit.items.append(item)
        unit.responses.append(response)
    return sorted(units.values(), key=lambda unit: unit.prompt + unit.responses[-1])


def _by_length(batch: Items, indices: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
    return indices[torch.argsort(batch.lengths_N[indices], stable=True)]
