"""Sampling completions that are one of their request's choices: each token is drawn from those that may come next.

A token that nothing else could take the place of is written without asking the model, which reads it together with the next one that is
drawn, or with the next turn of the episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.hf.choices import Walk
from skill_ttrl.llm.hf.decoding import Decoding
from skill_ttrl.llm.hf.draw import sample_token
from skill_ttrl.llm.hf.kept import KeptDecoding


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
