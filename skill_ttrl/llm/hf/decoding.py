"""Decoding where samples with the same text so far are one row of the model: a prefix tree that grows by a token a step.

A slot is a row of the model's batch. Samples share a slot until they draw different tokens; then the first stays in it and
the others copy its keys and values to free slots. Slots of samples that are done are given to others, so the model never
computes a row that nobody needs. `sample_token` draws the tokens, many from one distribution where several samples share a slot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, DynamicLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.types import derive_seed

LEAST_HEADER = 32
"""Tokens with which all prompts begin that are worth reading once for all of them."""
LEAST_GROWTH = 64
"""Tokens by which a cache grows at least where it may."""


@dataclass
class _Extent:
    """Sizes that all layers of a cache share."""

    rows: int
    """Slots in use."""
    most_rows: int
    most_tokens: int


class _RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers has no types here
    """Keys and values of one layer, in memory with room for more rows and columns: what is added copies nothing."""

    keys: Tensor
    values: Tensor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Begin without any room."""
        super().lazy_initialization(key_states, value_states)
        self.keys, self.values = (
            part.new_zeros(0, part.shape[1], 0, part.shape[3]) for part in (key_states, value_states)
        )

    def move(self, sources: Int[Tensor, " C"], targets: Int[Tensor, " C"], width: int) -> None:
        """Copy rows to others all at once: a target may be a source too."""
        for part in (self.keys, self.values):
            part[targets, :, :width] = part[sources, :, :width]

    def resize(self, rows: int, width: int) -> None:
        """Have memory for exactly so many rows and columns.

        New memory is zero: what is masked counts for nothing only where it is a number.
        """
        self.keys, self.values = (_resized(part, rows, width) for part in (self.keys, self.values))


def _resized(part: Tensor, rows: int, width: int) -> Tensor:
    resized = part.new_zeros(rows, part.shape[1], width, part.shape[3])
    rows_both, width_both = min(rows, part.shape[0]), min(width, part.shape[2])
    resized[:rows_both, :, :width_both] = part[:rows_both, :, :width_both]
    return resized


class SlotLayer(_RoomyLayer):
    """A layer whose rows all have the same number of columns."""

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
        rows, end = len(key_states), self._length + key_states.shape[2]
        self._reserve(rows, end)
        self.keys[:rows, :, self._length : end] = key_states
        self.values[:rows, :, self._length : end] = value_states
        self._length = end
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def copy(self, sources: Int[Tensor, " C"], targets: Int[Tensor, " C"]) -> None:
        """Copy rows to other rows, none of which is a source."""
        self._reserve(self._extent.rows, self._length)
        self.move(sources, targets, self._length)

    def _reserve(self, rows: int, tokens: int) -> None:
        """Make room for so many rows and tokens, and for more where more may come; the rest of the rows is given back then."""
        had_rows, _, had_tokens, _ = self.keys.shape
        if tokens > had_tokens:
            tokens = max(tokens, min(tokens + max(LEAST_GROWTH, tokens // 2), self._extent.most_tokens))
        elif rows > had_rows:
            rows, tokens = max(rows, min(2 * had_rows, self._extent.most_rows)), had_tokens
        else:
            return
        self.resize(rows, tokens)


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
        header = self._header = self._common(prompts)
        """Tokens that all prompts begin with, which are read once."""
        rows = [[pad_id] * pad + list(prompt[header:]) for pad, prompt in zip(pads, prompts, strict=True)]
        self._pads_S: Int[Tensor, " S"] = torch.tensor(pads, device=model.device)
        """Padding of each slot, behind the header."""
        self._padded = any(pads)
        self._length = longest
        """Tokens in each slot, padding counted."""
        # Nothing here refers to itself: the memory is free as soon as nobody decodes.
        self._extent = _Extent(0, most_rows, longest + most_new_tokens)
        self._cache = Cache(layer_class_to_replicate=partial(SlotLayer, self._extent))  # type: ignore[arg-type]
        if header:
            first = torch.tensor([prompts[0][:header]], device=model.device)
            self._forward(first, position_ids=torch.arange(header, device=model.device)[None], logits_to_keep=1)
            others = torch.arange(1, len(prompts), device=model.device)
            self._copy(torch.zeros_like(others), others, len(prompts))
        columns_T = torch.arange(header, longest, device=model.device)
        self.logits_S_V: Float[Tensor, "S V"] = self._forward(
            torch.tensor(rows, device=model.device),
            attention_mask=self._seen().long(),
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
        self._copy(parents_C[~stays_C], targets, count)
        return slots_C

    def _copy(self, sources: Int[Tensor, " C"], targets: Int[Tensor, " C"], rows: int) -> None:
        """Copy slots to other slots; `rows` slots are in use from now on."""
        self._extent.rows = rows
        for layer in self._cache.layers if len(sources) else ():
            assert isinstance(layer, SlotLayer)
            layer.copy(sources, targets)

    def _mask(self) -> Bool[Tensor, "S 1 1 T"] | Int[Tensor, "S T"] | None:
        if self._masks_by_slot and not self._padded:
            return None
        seen_S_T = self._seen()
        return seen_S_T[:, None, None] if self._masks_by_slot else seen_S_T.long()

    def _seen(self) -> Bool[Tensor, "S T"]:
        """Columns of each slot that are no padding."""
        columns_T = torch.arange(self._length, device=self._pads_S.device)
        return (columns_T < self._header) | (columns_T >= self._header + self._pads_S[:, None])

    def _common(self, prompts: Sequence[tuple[int, ...]]) -> int:
        """Tokens that all prompts begin with, where reading them once is worth it and no window counts columns."""
        if len(prompts) == 1 or not self._masks_by_slot:
            return 0
        first, last = min(prompts), max(prompts)  # what these share, all do
        header = min(_shared(list(first), list(last)), min(map(len, prompts)) - 1)
        return header if header >= LEAST_HEADER else 0

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


GROWTH = 64
"""Columns that are added to memory at once."""


class _Plan:
    """Where the next tokens go; all layers of a cache share it."""

    rows_K: Int[Tensor, " K"]
    columns_K: Int[Tensor, " K"]
    real_S_Q: Bool[Tensor, "S Q"] | None
    """Which of the tokens that the model is given are no padding; None: all."""
    rows = width = 0
    """Rows that are read, and columns that they have then."""
    expected = 0
    """Rows that there may soon be."""


class KeptLayer(_RoomyLayer):
    """A layer whose rows have as many columns as each has tokens."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plan = plan

    def get_seq_length(self) -> int:
        """Columns in use."""
        return self._plan.width

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Put each new token in its place; gives the keys and values of the rows that are read (views)."""
        plan = self._plan
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.reserve(plan.rows, plan.width)
        for part, states in ((self.keys, key_states), (self.values, value_states)):
            new_S_Q = states.transpose(1, 2)
            new_K = new_S_Q[:, 0] if plan.real_S_Q is None else new_S_Q[plan.real_S_Q]
            part[plan.rows_K, :, plan.columns_K] = new_K
        return self.keys[: plan.rows, :, : plan.width], self.values[: plan.rows, :, : plan.width]

    def reserve(self, rows: int, width: int) -> None:
        """Make room for so many rows and columns, and for some more where there was too little."""
        had_rows, _, had_width, _ = self.keys.shape
        if rows <= had_rows and width <= had_width:
            return
        rows = had_rows if rows <= had_rows else max(self._plan.expected, rows if not had_rows else rows + rows // 8)
        width = had_width if width <= had_width else width + GROWTH
        self.resize(rows, width)


class KeptRows:
    """Rows of a model's KV cache and the tokens in each. The model reads the first rows; the others wait to be continued."""

    def __init__(self) -> None:
        self.plan = _Plan()
        self.cache: Any = Cache(layer_class_to_replicate=partial(KeptLayer, self.plan))  # type: ignore[arg-type]
        self.texts: list[list[int]] = []
        """Tokens of each row."""
        self._used: list[int] = []
        """When each row was used last."""
        self._clock = 0

    def begin(self, prompts: Sequence[tuple[int, ...]]) -> tuple[list[int], list[Sequence[int]]]:
        """Make the first rows those of the prompts; gives the row of each, and for each row the tokens yet to be computed, at least one.

        A prompt takes the row with the longest beginning of it: the row itself where the prompt continues all of it and no other wanted it
        first, else a copy.
        """
        self._clock += 1
        ordered = sorted((text, row) for row, text in enumerate(self.texts) if text)
        keys = [text for text, _ in ordered]
        found = [_longest_beginning(keys, list(prompt)) for prompt in prompts]
        parents = [ordered[place][1] if shared else None for shared, place in found]
        ours = {ordered[place][1] for shared, place in found if shared and shared == len(keys[place])}
        places = self.arrange(parents, ours)
        new: list[Sequence[int]] = [()] * len(prompts)
        for row, prompt, (shared, _) in zip(places, prompts, found, strict=True):
            shared = min(shared, len(prompt) - 1)  # the last token is read even so, for its logits
            self.texts[row], self._used[row], new[row] = list(prompt[:shared]), self._clock, prompt[shared:]
        return places, new

    def arrange(self, parents: Sequence[int | None], ours: set[int]) -> list[int]:
        """Make the first rows continue `parents` (None: empty), with as few copies as can be; gives the row of each.

        Rows that are not `ours`, those that are to be continued, wait behind them.
        """
        count, before = len(parents), len(self.texts)
        rows: list[int | None] = [None] * max(count, before)
        places = [-1] * count
        for number, parent in enumerate(parents):
            if parent is not None and parent < count and parent in ours and rows[parent] is None:
                rows[parent], places[number] = parent, parent
        free = iter([row for row in range(count) if rows[row] is None])
        for number, parent in enumerate(parents):
            if places[number] < 0:
                places[number] = next(free)
                rows[places[number]] = parent
        waiting = [row for row in range(before) if row not in ours and self.texts[row]]
        for row in waiting:
            if row >= count:
                rows[row] = row
        behind = iter([row for row in range(count, len(rows)) if rows[row] is None])
        for row in waiting:
            if row < count:
                place = next(behind, len(rows))
                rows[place : place + 1] = [row]
        self._move(rows)
        return places

    def _move(self, rows: Sequence[int | None]) -> None:
        """Let row i be what row `rows[i]` was; None: empty."""
        moved = [(source, target) for target, source in enumerate(rows) if source is not None and source != target]
        if moved and self.cache.layers:
            device = self.cache.layers[0].keys.device
            sources, targets = torch.tensor(moved, device=device).T
            width = max(len(self.texts[source]) for source, _ in moved)
            for layer in self.cache.layers:
                layer.reserve(len(rows), width)
                layer.move(sources, targets, width)
        self.texts = [[] if source is None else list(self.texts[source]) for source in rows]
        self._used = [self._clock if source is None else self._used[source] for source in rows]

    def read(self, model: Any, new: Sequence[Sequence[int]], pad_id: int) -> Float[Tensor, "S V"]:
        """Give the model the next tokens of the first rows, at least one each; the logits after the last of each."""
        plan, device = self.plan, model.device
        longest = max(map(len, new))
        starts = [len(text) for text in self.texts[: len(new)]]
        ids_S_Q = torch.tensor([[pad_id] * (longest - len(run)) + list(run) for run in new], device=device)
        # Padding stands on the left, so that the last logits are those asked for.
        first_S = torch.tensor(
            [start - longest + len(run) for start, run in zip(starts, new, strict=True)], device=device
        )
        place_S_Q = first_S[:, None] + torch.arange(longest, device=device)
        plan.rows, plan.width = len(new), max(start + len(run) for start, run in zip(starts, new, strict=True))
        if longest == 1:
            plan.real_S_Q, plan.rows_K, plan.columns_K = None, torch.arange(len(new), device=device), place_S_Q[:, 0]
        else:
            plan.real_S_Q = place_S_Q >= torch.tensor(starts, device=device)[:, None]
            plan.rows_K, columns = plan.real_S_Q.nonzero(as_tuple=True)
            plan.columns_K = place_S_Q[plan.rows_K, columns]
        place_S_Q = place_S_Q.clamp(min=0)  # padding sees something too: an attention over nothing is no number
        seen_S_1_Q_T = (torch.arange(plan.width, device=device) <= place_S_Q[:, :, None])[:, None]
        out = model(
            input_ids=ids_S_Q,
            past_key_values=self.cache,
            use_cache=True,
            attention_mask=seen_S_1_Q_T,
            position_ids=place_S_Q,
            logits_to_keep=1,
        )
        for text, run in zip(self.texts, new, strict=False):
            text.extend(run)
        logits: Tensor = out.logits[:, -1]
        return logits

    def shrink(self, most_bytes: int) -> None:
        """Forget the rows that were used longest ago until all take at most so much memory."""
        layers = self.cache.layers
        taken = sum(part.nbytes for layer in layers for part in (layer.keys, layer.values))
        if taken <= most_bytes:
            return
        had_rows, width = layers[0].keys.shape[0], max(map(len, self.texts))
        a_token = taken // (had_rows * layers[0].keys.shape[2])
        stay = sorted(range(len(self.texts)), key=lambda row: -self._used[row])[: most_bytes // (a_token * width)]
        self._move(sorted(stay))
        for layer in layers:
            layer.resize(len(stay), width if stay else 0)


class KeptDecoding:
    """A model that reads prompts and then the next tokens of each slot, on kept rows; see `Decoding`.

    Args:
        model: A causal language model of transformers, one of those that `takes_slot_masks`.
        prompts: Tokens of different prompts, one slot each at the beginning.
        pad_id: Fills up shorter ones.
        rows: Where keys and values are kept.
        most_rows: Most slots there will be.
    """

    def __init__(
        self, model: Any, prompts: Sequence[tuple[int, ...]], pad_id: int, rows: KeptRows, *, most_rows: int
    ) -> None:
        self._model, self._pad_id, self._rows = model, pad_id, rows
        rows.plan.expected = most_rows
        self.slots, new = rows.begin(prompts)
        """Slot of each prompt."""
        self.logits_S_V: Float[Tensor, "S V"] = rows.read(model, new, pad_id)

    def advance(self, slots_M: Int[Tensor, " M"], token_M: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
        """Read the next token of each sample, and give each its slot from now on; see `Decoding.advance`."""
        runs = [(token,) for token in token_M.tolist()]
        return torch.tensor(self.advance_runs(slots_M.tolist(), runs), device=slots_M.device)

    def advance_runs(self, slots: Sequence[int], runs: Sequence[tuple[int, ...]]) -> list[int]:
        """The same for several tokens of each sample, as many as it has."""
        ways: dict[tuple[int, tuple[int, ...]], int] = {}
        way = [ways.setdefault(each, len(ways)) for each in zip(slots, runs, strict=True)]
        parents = [slot for slot, _ in ways]
        places = self._rows.arrange(parents, set(parents))
        new: list[tuple[int, ...]] = [()] * len(ways)
        for place, (_, run) in zip(places, ways, strict=True):
            new[place] = run
        self.logits_S_V = self._rows.read(self._model, new, self._pad_id)
        return [places[number] for number in way]


def _longest_beginning(ordered: Sequence[list[int]], tokens: list[int]) -> tuple[int, int]:
    """Length of the longest prefix that a text of a sorted list shares with `tokens`, and the place of that text.

    It stands next to where `tokens` would.
    """
    at = bisect_left(ordered, tokens)
    near = range(max(0, at - 1), min(at + 1, len(ordered)))
    return max(((_shared(ordered[place], tokens), place) for place in near), key=itemgetter(0), default=(0, 0))


def _shared(one: list[int], other: list[int]) -> int:
    """Tokens that two texts have in common at the beginning."""
    if other[: len(one)] == one:
        return len(one)
    return next(number for number, (a, b) in enumerate(zip(one, [*other, None], strict=False)) if a != b)


BLOCK = 8_000_000
"""Numbers (distributions x vocabulary) that are summed up at once, in float64."""


def sample_seeds(requests: Sequence[Request], seed: int) -> list[list[int]]:
    """A seed for each sample of each request."""
    return [
        [derive_seed(seed, "sample", number, sample) for sample in range(request.n)]
        for number, request in enumerate(requests)
    ]


def row_uniforms(seeds: Sequence[int], length: int) -> Float[Tensor, "N T"]:
    """(N, length) numbers in [0, 1), each row drawn from its own seed: what a row samples depends on no other row."""
    generator = torch.Generator()
    rows = [torch.rand(length, generator=generator.manual_seed(seed)) for seed in seeds]
    return torch.stack(rows) if rows else torch.zeros(0, length)


def sample_token(
    logits_S_V: Float[Tensor, "S V"],
    sampling: Sampling,
    uniform_M: Float[Tensor, " M"],
    rows_M: Int[Tensor, " M"] | None = None,
    vocabulary: int | None = None,
) -> tuple[Int[Tensor, " M"], Float[Tensor, " M"]]:
    """Tokens and their log-probabilities (nats) at the sampling temperature, before any truncation.

    A token is where its cumulative distribution passes its number. Truncation (`top_k`, `top_p`) decides which
    tokens can be drawn; the log-probability stays that of the whole distribution, the one the learner can compute again.
    Temperature 0 takes the most likely token.

    Args:
        logits_S_V: Of S distributions.
        sampling: Temperature and truncation.
        uniform_M: A float32 number in [0, 1) for each token.
        rows_M: The distribution of each token; None: token i comes from distribution i.
        vocabulary: Ids from here on are not drawn: rows that pad a model's vocabulary, of which the tokenizer has no text.
    """
    logits_S_V = logits_S_V.float()
    if rows_M is None:
        rows_M = torch.arange(len(logits_S_V), device=logits_S_V.device)
    if sampling.temperature > 0:
        logits_S_V = logits_S_V / sampling.temperature
    logprobs_S_V = torch.log_softmax(logits_S_V, dim=-1)
    drawn_S_V = logprobs_S_V[:, :vocabulary]
    if sampling.temperature == 0:
        token_M = drawn_S_V.argmax(-1)[rows_M]
    else:
        token_M = _invert(truncate(drawn_S_V, sampling), uniform_M, rows_M)
    return token_M, logprobs_S_V[rows_M, token_M]


def _invert(
    logprobs_S_V: Float[Tensor, "S V"], uniform_M: Float[Tensor, " M"], rows_M: Int[Tensor, " M"]
) -> Int[Tensor, " M"]:
    """The token at which each distribution's sum passes its number."""
    count, vocabulary = logprobs_S_V.shape
    # A sum over a vocabulary of 151k loses its small terms in float32; Metal has nothing larger.
    wide = torch.float32 if logprobs_S_V.device.type == "mps" else torch.float64
    size = max(1, BLOCK // vocabulary) if wide == torch.float64 else 1
    token_M = torch.empty_like(rows_M)
    for start in range(0, count, size):
        sums_B_V = logprobs_S_V[start : start + size].exp().cumsum(-1, dtype=wide)
        # One sorted row for all: distribution i takes the numbers from i to i + 1.
        sums_B_V /= sums_B_V[:, -1:].clone()
        sums_B_V += torch.arange(len(sums_B_V), device=sums_B_V.device)[:, None]
        inside = slice(None) if size >= count else ((rows_M >= start) & (rows_M < start + size)).nonzero().squeeze(1)
        rows = rows_M[inside] - start
        places = torch.searchsorted(sums_B_V.flatten(), uniform_M[inside].to(wide) + rows, right=True)
        token_M[inside] = (places - rows * vocabulary).clamp_(max=vocabulary - 1)
    return token_M


def truncate(logprobs_N_V: Float[Tensor, "N V"], sampling: Sampling) -> Float[Tensor, "N V"]:
    """Log-probabilities with all tokens outside `top_k` and `top_p` at minus infinity; the likeliest always stays."""
    if 0 < sampling.top_k < logprobs_N_V.shape[-1]:
        floor = logprobs_N_V.topk(sampling.top_k, dim=-1).values[:, -1:]
        logprobs_N_V = logprobs_N_V.masked_fill(logprobs_N_V < floor, -torch.inf)
    if sampling.top_p < 1:
        ordered, index = logprobs_N_V.sort(descending=True, dim=-1)
        share = ordered.softmax(-1)
        outside = share.cumsum(-1) - share >= sampling.top_p
        logprobs_N_V = logprobs_N_V.masked_fill(outside.scatter(1, index, outside), -torch.inf)
    return logprobs_N_V
