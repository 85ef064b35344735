"""Drawing tokens: many from one distribution, where several samples have the same text so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.llm.hf.choices import Walk
from skill_ttrl.llm.hf.decoding import Decoding, KeptDecoding, KeptRows
from skill_ttrl.types import derive_seed

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


@dataclass
class Draft:
    """A completion while it grows."""

    walk: Walk
    limit: int
    """Most tokens."""
    end_id: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    allowed: list[tuple[int, ...]] = field(default_factory=list)
    """The set that each token was drawn from."""
    next: tuple[int, ...] = ()
    """The set that the next one is drawn from."""
    stopped: bool = False
    """True once its end token is there."""

    @property
    def done(self) -> bool:
        """True where no token follows."""
        return self.stopped or len(self.ids) >= self.limit

    def look(self) -> None:
        """Find what the next token is drawn from."""
        if not self.done:
            self.next = self.walk.allowed(self.limit - len(self.ids))

    def add(self, token: int, logprob: float) -> None:
        """Add a token of those in `next`."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.allowed.append(self.next)
        self.stopped = token == self.end_id
        if not self.stopped:
            self.walk.take(token)
        self.look()

    def add_forced(self) -> tuple[int, ...]:
        """Add tokens as long as only one can follow, and give them."""
        before = len(self.ids)
        while len(self.next) == 1 and not self.done:
            self.add(self.next[0], 0.0)
        return tuple(self.ids[before:])


def sample_choices(
    drafts: Sequence[Draft],
    owners: Sequence[int],
    prompts: Sequence[tuple[int, ...]],
    begin: Callable[[list[tuple[int, ...]]], Decoding | KeptDecoding],
    sampling: Sampling,
    uniform_N_T: Float[Tensor, "N T"],
    *,
    several: bool,
) -> None:
    """Write the drafts.

    Args:
        drafts: One for each sample, those of a prompt with the same choices.
        owners: The prompt of each.
        prompts: Their tokens.
        begin: Reads prompts; those that it gets are the ones that a token must be drawn for.
        sampling: Temperature and truncation.
        uniform_N_T: A number in [0, 1) for each token of each draft.
        several: True if `begin` gives a `KeptDecoding`, which reads several tokens of a sample at once.
    """
    for draft in drafts:
        draft.look()
    # A draft whose model reads one token at a time has its forced ones drawn, from themselves alone.
    runs = {owner: draft.add_forced() if several else () for owner, draft in zip(owners, drafts, strict=True)}
    running = [number for number, draft in enumerate(drafts) if not draft.done]
    if not running:
        return
    read = list(dict.fromkeys(owners[number] for number in running))
    decoding = begin([(*prompts[owner], *runs[owner]) for owner in read])
    slot_of = dict(zip(read, decoding.slots, strict=True))
    slots = [slot_of[owners[number]] for number in running]
    while True:
        living = [drafts[number] for number in running]
        places = torch.tensor([[number, len(draft.ids)] for number, draft in zip(running, living, strict=True)])
        uniform_M = uniform_N_T[places[:, 0], places[:, 1]]
        new: list[tuple[int, ...]] = []
        for draft, (token, logprob) in zip(living, _draw(decoding, slots, living, sampling, uniform_M), strict=True):
            draft.add(token, logprob)
            new.append((token, *(draft.add_forced() if several else ())))
        on = [place for place, draft in enumerate(living) if not draft.done]
        if not on:
            return
        running, slots = [running[place] for place in on], [slots[place] for place in on]
        slots = _advance(decoding, slots, [new[place] for place in on])


def _draw(
    decoding: Decoding | KeptDecoding,
    slots: Sequence[int],
    drafts: Sequence[Draft],
    sampling: Sampling,
    uniform_M: Float[Tensor, " M"],
) -> list[tuple[int, float]]:
    """A token and its log-prob for each draft. Only the logits of allowed tokens are looked at: the vocabulary may be long."""
    logits_S_V = decoding.logits_S_V
    device = logits_S_V.device
    most = max(len(draft.next) for draft in drafts)
    ids = [list(draft.next) + [-1] * (most - len(draft.next)) for draft in drafts]
    ids_M_A = torch.tensor(ids, device=device)
    absent_M_A = ids_M_A < 0
    logits_M_A = logits_S_V[torch.tensor(slots, device=device)[:, None], ids_M_A.clamp(min=0)].float()
    logits_M_A = logits_M_A.masked_fill(absent_M_A, -torch.inf)
    place_M, logprob_M = sample_token(logits_M_A, sampling, uniform_M.to(device))
    token_M = ids_M_A.gather(1, place_M[:, None])[:, 0]
    return list(zip(token_M.tolist(), logprob_M.tolist(), strict=True))


def _advance(decoding: Decoding | KeptDecoding, slots: list[int], runs: list[tuple[int, ...]]) -> list[int]:
    if isinstance(decoding, KeptDecoding):
        return decoding.advance_runs(slots, runs)
    device = decoding.logits_S_V.device
    tokens = torch.tensor([run[0] for run in runs], device=device)
    found: list[int] = decoding.advance(torch.tensor(slots, device=device), tokens).tolist()
    return found


MOST_LOGITS = 200_000_000
"""Logits that are held at once."""


@dataclass
class Tree:
    """Tokens of some choices, each beginning that they share once; the last token of a choice is not in it: nothing follows it."""

    choices: tuple[tuple[int, ...], ...]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """Of each token the one before it; -1: the prompt's last."""
    paths: list[list[int]] = field(default_factory=list)
    """Of each choice, the node after which each of its tokens comes."""

    def __post_init__(self) -> None:
        known: dict[tuple[int, int], int] = {}
        for choice in self.choices:
            path = [-1]
            for token in choice[:-1]:
                node = known.setdefault((path[-1], token), len(self.tokens))
                if node == len(self.tokens):
                    self.tokens.append(token)
                    self.parents.append(path[-1])
                path.append(node)
            self.paths.append(path)

    def seen(self, size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each token which of them it sees: itself and those before it. (size, size), False beyond its own."""
        found = np.zeros((size, size), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                found[node, :node] = found[parent, :node]
            found[node, node] = True
        return found

    def depths(self) -> list[int]:
        """Tokens between the prompt and each token."""
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent < 0 else found[parent] + 1)
        return found

    def token_logprobs(self, probabilities: Sequence[float], number: int) -> list[float]:
        """Log-probs of the tokens of a choice, each among what may stand in its place; they add up to that of the choice."""
        mass = dict.fromkeys(range(-1, len(self.tokens)), 0.0)
        for path, probability in zip(self.paths, probabilities, strict=True):
            for node in path:
                mass[node] += probability
        masses = [*(mass[node] for node in self.paths[number]), probabilities[number]]
        return [min(0.0, math.log(after / before)) for before, after in pairwise(masses)]


def score_choices(
    model: Any, rows: KeptRows, prompts: Sequence[tuple[int, ...]], trees: Sequence[Tree], pad_id: int
) -> Float[Tensor, "P C"]:
    """The log-prob of each prompt's choices; minus infinity beyond a prompt's own."""
    device = model.device
    scores = torch.full((len(prompts), max(len(tree.choices) for tree in trees)), -torch.inf, device=device)
    size = (max(len(tree.tokens) for tree in trees) + 1) * model.config.get_text_config().vocab_size
    for part in _parts(len(prompts), max(1, MOST_LOGITS // size)):
        own = trees[part]
        rows.expect(len(prompts))
        places, new = rows.begin(prompts[part])
        by_row: list[Tree] = list(own)
        for tree, row in zip(own, places, strict=True):
            by_row[row] = tree
        logprobs_R_N_V = rows.read_trees(model, new, by_row, pad_id).float().log_softmax(-1)
        where = [
            (row, node + 1, token, part.start + number, choice)
            for number, (tree, row) in enumerate(zip(own, places, strict=True))
            for choice, path in enumerate(tree.paths)
            for node, token in zip(path, tree.choices[choice], strict=True)
        ]
        row_K, node_K, token_K, prompt_K, choice_K = torch.tensor(where, device=device).T
        scores[prompt_K, choice_K] = 0.0
        scores.index_put_((prompt_K, choice_K), logprobs_R_N_V[row_K, node_K, token_K], accumulate=True)
    return scores


def _parts(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
