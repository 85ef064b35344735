"""Items of a batch as one forward pass takes them: rows padded on the right, or a prefix tree without padding.

Suffixes: _N items, _T positions of prompt and response, _R positions of the response alone, _Q positions at which something is
predicted, _K trained tokens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from skill_ttrl.rl.tree import PrefixTree, build_tree, moved

if TYPE_CHECKING:
    from skill_ttrl.rl.batch import RolloutBatch


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens of N items, where their trained tokens are predicted, and the values that the loss needs of each."""

    tokens_N_T: Int[Tensor, "N T"]
    """Padded items, in which attention is causal, so no real token sees padding; with a tree its nodes, (1, F)."""
    positions_Q: Int[Tensor, " Q"]
    """Where in these, flattened, trained tokens are predicted: one position before each. No position twice."""
    rows_K: Int[Tensor, " K"]
    """Which of these positions predicts each trained token: nodes of a tree may predict several."""
    targets_K: Int[Tensor, " K"]
    """The token that is scored at each: the trained token, or its label (`RolloutBatch.labels_F`)."""
    slots_K: Int[Tensor, " K"]
    """Where each belongs in the flattened (N, R)."""
    response_mask_N_R: Float[Tensor, "N R"]
    """1 at trained tokens, 0 elsewhere."""
    old_log_probs_N_R: Float[Tensor, "N R"]
    advantages_N_R: Float[Tensor, "N R"]
    """0 where nothing is trained, as all matrices here."""
    ref_log_probs_N_R: Float[Tensor, "N R"] | None = None
    values_N_R: Float[Tensor, "N R"] | None = None
    returns_N_R: Float[Tensor, "N R"] | None = None
    weights_N_R: Float[Tensor, "N R"] | None = None
    tree: PrefixTree | None = None
    """None: the items are padded."""
    allowed: tuple[LimitedTokens, ...] = ()
    """The trained tokens by the part of the vocabulary that they were drawn from; empty: all from the whole."""

    @property
    def positions_K(self) -> Int[Tensor, " K"]:
        """Where each trained token is predicted."""
        return self.positions_Q[self.rows_K]

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens (K)."""
        return len(self.targets_K)

    @property
    def computed_tokens(self) -> int:
        """Tokens that the model computes, padding counted."""
        return self.tokens_N_T.numel()

    @property
    def attention_pairs(self) -> int:
        """Pairs of a query and a key that it sees, padding counted."""
        if self.tree is not None:
            return int(self.tree.positions_F.sum()) + len(self.tree)
        rows, length = self.tokens_N_T.shape
        return rows * length * (length + 1) // 2

    def to(self, device: torch.device) -> MicroBatch:
        """Move to another device."""
        return self if self.tokens_N_T.device == device else moved(self, device)


MATRICES = tuple(
    field.name for field in fields(MicroBatch) if field.name.endswith("_N_R") and field.name != "response_mask_N_R"
)
"""Fields of a `MicroBatch` that hold the values of a batch's field of the same name, with _F."""


class _Responses(NamedTuple):
    """Response tokens of some items as a matrix."""

    columns_R: Int[Tensor, " R"]
    prompts_N_1: Int[Tensor, "N 1"]
    mask_N_R: Bool[Tensor, "N R"]
    """Which are trained."""
    places_K: Int[Tensor, " K"]
    """Where the trained tokens stand in the batch."""
    parts: dict[str, Any]
    """Fields of a `MicroBatch` that do not depend on its layout."""


def pad(batch: RolloutBatch, rows: Int[Tensor, " N"], pad_id: int) -> MicroBatch:
    """Pad the items at `rows` on the right, with `pad_id`."""
    responses = _responses(batch, rows)
    starts, lengths = batch.starts_N[rows, None], batch.lengths_N[rows, None]
    columns_T = torch.arange(int(lengths.max()))
    tokens_N_T = batch.tokens_F[(starts + columns_T).clamp(max=len(batch.tokens_F) - 1)]
    offsets_N_1 = torch.arange(len(rows))[:, None] * len(columns_T)
    positions_N_R = offsets_N_1 + responses.prompts_N_1 + responses.columns_R - 1
    positions_K = positions_N_R[responses.mask_N_R]
    rows_K = torch.arange(len(positions_K))
    return MicroBatch(
        tokens_N_T=tokens_N_T.masked_fill(columns_T >= lengths, pad_id),
        positions_Q=positions_K,
        rows_K=rows_K,
        **responses.parts,
        allowed=limited_tokens(batch, responses.places_K, rows_K, responses.parts["targets_K"]),
    )


def pack_tree(batch: RolloutBatch, rows: Int[Tensor, " N"]) -> MicroBatch:
    """Merge what the items at `rows` begin with; what comes after an item's last prediction is left out."""
    responses = _responses(batch, rows)
    last_N_1 = torch.where(responses.mask_N_R, responses.columns_R, 0).amax(dim=1, keepdim=True)
    inputs_N_1 = responses.prompts_N_1 + last_N_1
    tree, nodes_N_T = build_tree(batch.tokens_F, batch.starts_N[rows], inputs_N_1.squeeze(1))
    columns_N_R = (responses.prompts_N_1 + responses.columns_R - 1).clamp(max=nodes_N_T.shape[1] - 1)
    nodes_K = nodes_N_T.gather(1, columns_N_R)[responses.mask_N_R]
    positions_Q, rows_K = torch.unique(nodes_K, return_inverse=True)
    return MicroBatch(
        tokens_N_T=tree.tokens_F[None],
        positions_Q=positions_Q,
        rows_K=rows_K,
        **responses.parts,
        tree=tree,
        allowed=limited_tokens(batch, responses.places_K, rows_K, responses.parts["targets_K"]),
    )


def _responses(batch: RolloutBatch, rows: Int[Tensor, " N"]) -> _Responses:
    prompts_N_1, lengths_N_1 = batch.prompt_lengths_N[rows, None], batch.response_lengths_N[rows, None]
    columns_R = torch.arange(int(lengths_N_1.max()))
    sources_N_R = (batch.starts_N[rows, None] + prompts_N_1 + columns_R).clamp(max=len(batch.tokens_F) - 1)
    mask_N_R = batch.trained_F[sources_N_R] & (columns_R < lengths_N_1)
    places_K = sources_N_R[mask_N_R]
    parts: dict[str, Any] = {
        "targets_K": (batch.tokens_F if batch.labels_F is None else batch.labels_F)[places_K],
        "slots_K": mask_N_R.flatten().nonzero().squeeze(1),
        "response_mask_N_R": mask_N_R.float(),
    }
    for name in MATRICES:
        values_F = getattr(batch, f"{name.removesuffix('_N_R')}_F")
        parts[name] = None if values_F is None else values_F[sources_N_R].masked_fill(~mask_N_R, 0.0)
    return _Responses(columns_R, prompts_N_1, mask_N_R, places_K, parts)


# Which items go through the model together, and which of several processes computes them: plans alone, no tensors of tokens.


def cut_micro_batches(
    batch: RolloutBatch,
    indices: Int[Tensor, " M"],
    *,
    sequences: int,
    packed: bool = False,
) -> list[Int[Tensor, " N"]]:
    """Cut items into micro-batches.

    Padded items are taken shortest first. Packed ones go prompt by prompt, the prompts with the shortest items first; items with
    the same prompt stay together where they fit.

    Args:
        batch: All items.
        indices: Those to cut (M,).
        sequences: Most items of a micro-batch, at least 1.
        packed: How the items will be laid out.
    """
    if len(indices) == 0:
        return []
    if not packed:
        return list(torch.split(_by_length(batch, indices), sequences))
    parts: list[list[int]] = []
    for unit in _prompt_units(batch, indices):
        if parts and len(parts[-1]) + len(unit.items) <= sequences:
            parts[-1] = [*parts[-1], *unit.items]
        else:  # a prompt whose items do not fit together is cut itself
            parts += (unit.items[at : at + sequences] for at in range(0, len(unit.items), sequences))
    return [torch.tensor(part) for part in parts]


def split_over_ranks(
    batch: RolloutBatch, indices: Int[Tensor, " M"], ranks: int, *, packed: bool = False
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


def _prompt_units(batch: RolloutBatch, indices: Int[Tensor, " M"]) -> list[_PromptUnit]:
    """Items by prompt, those with the shortest longest response first."""
    order = _by_length(batch, indices)
    units: dict[int, _PromptUnit] = {}
    columns = (order, batch.prompt_lengths_N[order], batch.response_lengths_N[order])
    for item, prompt, response in zip(*(column.tolist() for column in columns), strict=True):
        unit = units.setdefault(batch.prompt_keys[item], _PromptUnit(prompt, [], []))
        unit.items.append(item)
        unit.responses.append(response)
    return sorted(units.values(), key=lambda unit: unit.prompt + unit.responses[-1])


def _by_length(batch: RolloutBatch, indices: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
    return indices[torch.argsort(batch.lengths_N[indices], stable=True)]


# Floating-point operations of forward and backward passes, counted from the shapes of a model and of its micro-batches.
#
# As in PaLM (arXiv 2204.02311, appendix B), what gradient checkpointing or the head computes twice counts once. Here tokens count as
# they are computed: what several sequences share once, padding too.


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Operations of a causal language model: two for each multiplication of a weight or an attention score."""

    weights: int
    """Numbers in the decoder's linear layers."""
    learnt: int
    """Of these, numbers that learn."""
    head: int
    """Numbers in the head's matrix."""
    head_learns: bool
    attention: int
    """Width of all query heads together x layers."""
    vocabulary: int

    def forward(self, micro_batch: MicroBatch) -> float:
        """Operations of a forward pass: the decoder's for each token, the head's where a trained token is predicted."""
        scores = 4 * self.attention * micro_batch.attention_pairs  # of a query with a key, and of its share of a value
        return 2.0 * (self.weights * micro_batch.computed_tokens + self.head * self._whole_heads(micro_batch)) + scores

    def update(self, micro_batch: MicroBatch) -> float:
        """Operations of a forward and a backward pass: gradients of all inputs, and of the weights that learn."""
        tokens, positions = micro_batch.computed_tokens, self._whole_heads(micro_batch)
        gradients = 2.0 * (self.learnt * tokens + self.head * positions * self.head_learns)
        return self.forward(micro_batch) * 2 + gradients + 4 * self.attention * micro_batch.attention_pairs

    def _whole_heads(self, micro_batch: MicroBatch) -> float:
        """Positions at which the head is applied; one with fewer of its rows counts as their share."""
        if not micro_batch.allowed:
            return len(micro_batch.positions_Q)
        shares = (1.0 if part.ids_V is None else len(part.ids_V) / self.vocabulary for part in micro_batch.allowed)
        return sum(len(part.queries_Q) * share for part, share in zip(micro_batch.allowed, shares, strict=True))

    @classmethod
    def of(cls, model: Any) -> ModelWork:
        """Count a transformers model, with the adapters that sit in it; weights may be sharded."""
        config = model.config.get_text_config()
        linear = [module for module in model.get_decoder().modules() if isinstance(module, nn.Linear)]
        head = model.get_output_embeddings()
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            weights=sum(module.weight.numel() for module in linear),
            learnt=sum(module.weight.numel() for module in linear if module.weight.requires_grad),
            head=config.vocab_size * config.hidden_size,
            head_learns=any(parameter.requires_grad for parameter in head.parameters()),
            attention=width * config.num_attention_heads * config.num_hidden_layers,
            vocabulary=config.vocab_size,
        )


# Trained tokens that were drawn from a part of the vocabulary (`Completion.allowed`): which parts, and how they are computed together.
#
# Tokens of small sets are scored against the rows of the head that their sets name, gathered once for a micro-batch: a handful of the
# 151k rows of a large vocabulary. Tokens of large sets, and those of the whole vocabulary, are scored against all rows. In both cases
# what a set leaves out is masked block by block.
#
# Suffixes: _K trained tokens, _Q pairs of a position and a set, _U sets, _P tokens in all of these, _V gathered rows, _B a block of rows.


GATHERED_SET = 1024
"""Largest set whose rows are gathered."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows of a head that are left at each of Q positions."""

    sets_Q: Int[Tensor, " Q"]
    """Set of each position."""
    set_P: Int[Tensor, " P"]
    row_P: Int[Tensor, " P"]
    """The rows of each set, as pairs."""
    count: int
    """Number of sets (U)."""
    first_is_free: bool
    """Set 0 has all rows."""

    def mask(self, start: int, end: int, positions: Int[Tensor, " M"] | None = None) -> Bool[Tensor, "Q B"]:
        """True at the rows from `start` to `end` that a position may give: of these positions, or of all."""
        mask_U_B = torch.zeros(self.count, end - start, dtype=torch.bool, device=self.sets_Q.device)
        inside = ((self.row_P >= start) & (self.row_P < end)).nonzero().squeeze(1)
        mask_U_B[self.set_P[inside], self.row_P[inside] - start] = True
        if self.first_is_free:
            mask_U_B[0] = True
        return mask_U_B[self.sets_Q if positions is None else self.sets_Q[positions]]


@dataclass(frozen=True, slots=True)
class LimitedTokens:
    """Trained tokens of a micro-batch that are scored against the same rows of the head."""

    places_K: Int[Tensor, " K"]
    """Which of the micro-batch's trained tokens they are."""
    targets_K: Int[Tensor, " K"]
    """Row of each."""
    rows_K: Int[Tensor, " K"]
    """Which of the Q predicts each."""
    queries_Q: Int[Tensor, " Q"]
    """Position of each, an index of `MicroBatch.positions_Q`."""
    ids_V: Int[Tensor, " V"] | None
    """Token of each row that is gathered; None: all rows of the head, in their order."""
    limits: Limits | None
    """None: all of these rows count everywhere."""


def limited_tokens(
    batch: RolloutBatch, places_K: Int[Tensor, " K"], rows_K: Int[Tensor, " K"], targets_K: Int[Tensor, " K"]
) -> tuple[LimitedTokens, ...]:
    """Sort the trained tokens of a micro-batch by the rows that they are scored against.

    Args:
        batch: Items with `allowed_F`, on the CPU.
        places_K: Where the trained tokens stand in it.
        rows_K: Which position of the micro-batch predicts each.
        targets_K: What is scored.

    Returns:
        One or two parts with all K tokens; empty where none is limited.
    """
    if batch.allowed_F is None or batch.allowed_sizes_U is None:
        return ()
    set_K = batch.allowed_F[places_K]
    gathers_K = (set_K >= 0) & (batch.allowed_sizes_U[set_K.clamp(min=0)] <= GATHERED_SET)
    if not bool((set_K >= 0).any()):
        return ()
    chosen = ((part_K.nonzero().squeeze(1), gathers) for part_K, gathers in ((gathers_K, True), (~gathers_K, False)))
    return tuple(
        _part(batch, part, set_K[part], rows_K[part], targets_K[part], gathers) for part, gathers in chosen if len(part)
    )


def _part(
    batch: RolloutBatch, places_K: Tensor, set_K: Tensor, rows_K: Tensor, targets_K: Tensor, gathers: bool
) -> LimitedTokens:
    assert batch.allowed_ids_P is not None
    assert batch.allowed_sizes_U is not None
    names_U, local_K = torch.unique(set_K, return_inverse=True)  # -1, any token, comes first
    pairs_Q, inverse_K = torch.unique(rows_K * len(names_U) + local_K, return_inverse=True)
    known_U = names_U.clamp(min=0)
    sizes_U = batch.allowed_sizes_U[known_U].masked_fill(names_U < 0, 0)
    starts_U = (batch.allowed_sizes_U.cumsum(0) - batch.allowed_sizes_U)[known_U]
    set_P = torch.arange(len(names_U)).repeat_interleave(sizes_U)
    ids_P = batch.allowed_ids_P[torch.arange(len(set_P)) + (starts_U - sizes_U.cumsum(0) + sizes_U)[set_P]]
    ids_V, row_P = torch.unique(ids_P, return_inverse=True) if gathers else (None, ids_P)
    limits = Limits(pairs_Q % len(names_U), set_P, row_P, len(names_U), bool(names_U[0] < 0))
    return LimitedTokens(
        places_K,
        targets_K if ids_V is None else torch.searchsorted(ids_V, targets_K),
        inverse_K,
        pairs_Q // len(names_U),
        ids_V,
        limits if len(set_P) else None,
    )
