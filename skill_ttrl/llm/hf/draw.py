"""Drawing tokens: many from one distribution, where several samples have the same text so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.llm.hf.choices import Walk
from skill_ttrl.llm.hf.decoding import Decoding, KeptDecoding
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
