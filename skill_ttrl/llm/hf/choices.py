"""Completions that are one of some given texts: which tokens may come next, and how they are drawn.

A choice with a slot at its end, `search <words>`, stands for all texts that have words of a given list there (`Request.slot_words`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.chat import encode_plain
from skill_ttrl.llm.hf.decoding import Decoding, KeptDecoding, sample_token

Ids = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Filling:
    """How far a choice with a slot for given words has been written."""

    rest: int = 0
    """Tokens that it needs at least from here on, the end token included."""
    moves: tuple[tuple[int, Filling], ...] = ()
    """Tokens that may come next, each with the state it leads to."""


@dataclass(frozen=True, eq=False, slots=True)
class WordSlot:
    """A choice with a slot for given words."""

    before: str
    """The text before the slot."""
    first: Mapping[Ids, str]
    """Each word by the tokens of the text before the slot and of it; of words with the same tokens, the first."""
    later: Mapping[Ids, str]
    """Each word by its tokens behind another one."""
    begin: Filling
    end_id: int

    def text(self, ids: Ids) -> str | None:
        """The choice that was written; None where these are no tokens of it."""
        if not ids or ids[-1] != self.end_id:
            return None
        last = len(ids) - 1
        said: dict[int, tuple[str, ...]] = {
            len(own): (word,) for own, word in self.first.items() if ids[: len(own)] == own
        }
        for place in range(last):
            if place in said:
                for own, word in self.later.items():
                    if ids[place : place + len(own)] == own:
                        said.setdefault(place + len(own), (*said[place], word))
        return self.before + " ".join(said[last]) if last in said else None


def _filling(first: Iterable[Ids], later: Iterable[Ids], end_id: int) -> Filling:
    """The beginning of a slot whose words have these tokens."""
    ends: list[Filling] = []

    def grow(words: Iterable[Ids], depth: int = 0) -> Filling:
        longer: dict[int, list[Ids]] = {}
        over = False
        for ids in words:
            if len(ids) == depth:
                over = True
            else:
                longer.setdefault(ids[depth], []).append(ids)
        moves = tuple((token, grow(group, depth + 1)) for token, group in longer.items())
        found = Filling(1 if over else 1 + min(then.rest for _, then in moves), moves)
        if over:
            ends.append(found)
        return found

    begin, again = grow(first), grow(later)
    for each in ends:
        each.moves = (*each.moves, (end_id, Filling()), *again.moves)
    return begin


SLOT = re.compile(r"<[^<>]+>")
"""Stands in a choice where words do (as `agents.action_parser.PLACE`)."""
REMEMBERED = 50_000
"""Most choices, and lists of them, whose tokens are held in memory."""
WORD_LISTS = 2_000
"""The same of lists of slot words, whose tokens take more memory."""


class ChoiceTokens:
    """Tokens of choices by a tokenizer, each worked out once.

    Args:
        tokenizer: Writes texts as tokens.
        end_id: Follows a complete choice.
    """

    def __init__(self, tokenizer: Any, end_id: int) -> None:
        self._tokenizer, self.end_id = tokenizer, end_id
        self._fixed: Callable[[str], Ids] = lru_cache(REMEMBERED)(lambda text: (*encode_plain(tokenizer, text), end_id))
        self._of = lru_cache(REMEMBERED)(self._choices)
        self._slot = lru_cache(WORD_LISTS)(self._word_slot)

    def start(self, choices: tuple[str, ...], slot_words: tuple[str, ...] = ()) -> Walk:
        """Begin to write one of the choices, with these words alone in its slot.

        Raises:
            ConfigError: a choice has a slot, and no words are given for it.
            ModelError: the tokenizer can write none of them.
        """
        fixed, opened = self._of(choices)
        if opened and not slot_words:
            raise ConfigError(
                f"agent.structured_actions cannot restrict an action with a place for any words, such as {opened[0]!r:.80}. Use "
                "agent.observations with a form that lists the words (webshop), or agent.structured_actions=false."
            )
        slots = [slot for text in opened if (slot := self._slot(text, slot_words)) is not None]
        if not (fixed or slots):
            raise ModelError(
                f"The model's tokenizer has no tokens for any of the {len(slot_words)} words that may stand in {opened[0]!r:.80}, "
                "and there is no other choice."
            )
        return Walk(tuple(fixed), tuple(slot.begin for slot in slots))

    def text(self, choices: tuple[str, ...], slot_words: tuple[str, ...], ids: Ids) -> str | None:
        """The choice that was written; None where it is none. Where several have the same tokens, the first.

        A tokenizer may not give it back: one with few words has the same token for all others.
        """
        fixed, opened = self._of(choices)
        found = fixed.get(ids)
        if found is not None or not opened:
            return found
        slots = (self._slot(text, slot_words) for text in opened)
        return next((said for slot in slots if slot is not None and (said := slot.text(ids)) is not None), None)

    def _word_slot(self, text: str, slot_words: tuple[str, ...]) -> WordSlot | None:
        """The slot of a choice for these words; None where no word has tokens."""
        before, *after = SLOT.split(text)
        if after != [""]:
            raise ValueError(f"Words of a slot are given, and {text!r} continues after its slot.")
        encode = partial(encode_plain, self._tokenizer)
        bare = encode(before.rstrip())
        first = {ids: word for word in reversed(slot_words) if (ids := encode(before + word)) != bare}
        if not first:
            return None
        one, later = next(reversed(first)), {}
        for word in reversed(slot_words):
            both = encode(f"{before}{first[one]} {word}")
            ids = both[len(one) :] if both[: len(one)] == one else encode(f" {word}")
            if ids:
                later[ids] = word
        return WordSlot(before, first, later, _filling(first, later, self.end_id), self.end_id)

    def _choices(self, choices: tuple[str, ...]) -> tuple[dict[Ids, str], list[str]]:
        """The choices without a slot by their tokens, the end token included, and those with one."""
        slots = [text for text in choices if SLOT.search(text)]
        return {self._fixed(text): text for text in reversed(choices) if text not in slots}, slots


class Walk:
    """One sample on its way through its choices. Those that are left share all that is written."""

    __slots__ = ("_depth", "_fixed", "_open")

    def __init__(self, fixed: tuple[Ids, ...], opened: tuple[Filling, ...]) -> None:
        self._fixed, self._open = fixed, opened
        self._depth = 0

    def allowed(self, room: int) -> tuple[int, ...]:
        """Ids that may come next, ascending, where the completion has room for so many tokens."""
        depth = self._depth
        ids = {choice[depth] for choice in self._fixed}
        if not self._open:
            return tuple(sorted(ids))
        moves = [move for each in self._open for move in each.moves]
        # Words are left out where they would leave no room for the text after them.
        most = max(room - 1, min(then.rest for _, then in moves))
        return tuple(sorted(ids.union(token for token, then in moves if then.rest <= most)))

    def take(self, token: int) -> None:
        """Advance by an allowed token."""
        depth = self._depth
        self._fixed = tuple([choice for choice in self._fixed if choice[depth] == token])
        if self._open:
            moves = (move for each in self._open for move in each.moves)
            self._open = tuple(dict.fromkeys(then for own, then in moves if own == token))
        self._depth = depth + 1


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
