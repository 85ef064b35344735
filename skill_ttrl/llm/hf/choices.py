"""Completions that are one of some given texts: the tokens that may come next, token by token.

A text with a slot, `search[<your query>]`, stands for all that have words in its place. The model writes them as it likes, on one line; they
end where the text after the slot has been written and the model ends the completion, or where there is room for no more. Where a request
names the words of its slot (`Request.slot_words`), only they can be written there (`slot_words`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from skill_ttrl.errors import ModelError
from skill_ttrl.llm.chat import encode_plain

Ids = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Filling:
    """How far a choice with a slot for given words has been written."""

    rest: int = 0
    """Tokens that it needs at least from here on, the end token included."""
    moves: tuple[tuple[frozenset[int], Filling], ...] = ()
    """Sets of tokens that may come next, each with the state it leads to."""


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


def word_slot(before: str, words: tuple[str, ...], encode: Callable[[str], Ids], end_id: int) -> WordSlot | None:
    """The slot behind a text for these words; None where no word has tokens."""
    bare = encode(before.rstrip())
    first = {ids: word for word in reversed(words) if (ids := encode(before + word)) != bare}
    if not first:
        return None
    one, later = next(reversed(first)), {}
    for word in reversed(words):
        both = encode(f"{before}{first[one]} {word}")
        ids = both[len(one) :] if both[: len(one)] == one else encode(f" {word}")
        if ids:
            later[ids] = word
    return WordSlot(before, first, later, _filling(first, later, end_id), end_id)


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
        moves = tuple((frozenset({token}), grow(group, depth + 1)) for token, group in longer.items())
        found = Filling(1 if over else 1 + min(then.rest for _, then in moves), moves)
        if over:
            ends.append(found)
        return found

    begin, again = grow(first), grow(later)
    for each in ends:
        each.moves = (*each.moves, (frozenset({end_id}), Filling()), *again.moves)
    return begin


SLOT = re.compile(r"<[^<>]+>")
"""Stands in a choice where the model's own words do (as `agents.action_list.PLACE`)."""
REMEMBERED = 50_000
"""Most choices, and lists of them, whose tokens are held in memory."""
WORD_LISTS = 2_000
"""The same of lists of slot words, whose tokens take more memory."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A choice with slots, and how far it has been written."""

    parts: tuple[tuple[int, ...], ...]
    """Tokens of the fixed texts around the slots; the last one ends with the end token."""
    part: int = 0
    place: int = 0
    """Token of that part which is next."""
    filled: bool = False
    """True if the slot before this part has words."""

    @property
    def in_slot(self) -> bool:
        """True where words may come next."""
        return self.part > 0 and self.place == 0

    @property
    def rest(self) -> int:
        """Tokens that it needs at least from here on, the end token included."""
        slots = len(self.parts) - 1 - self.part + (self.in_slot and not self.filled)
        return sum(map(len, self.parts[self.part :])) - self.place + slots

    def at(self, place: int) -> _Open:
        """The same choice further on in its present part, in the next slot where the part is over."""
        last = self.part == len(self.parts) - 1
        if place < len(self.parts[self.part]) or last:
            return replace(self, place=place, filled=False)
        return replace(self, part=self.part + 1, place=0, filled=False)


_Moves = tuple[tuple[frozenset[int], "_Open | Filling"], ...]
"""Tokens, and how far the choice has been written after one of them."""


class ChoiceTokens:
    """Tokens of choices by a tokenizer, each worked out once.

    Args:
        tokenizer: Writes texts as tokens.
        end_id: Follows a complete choice.
    """

    def __init__(self, tokenizer: Any, end_id: int) -> None:
        self._tokenizer, self.end_id = tokenizer, end_id
        self._fixed: Callable[[str], tuple[int, ...]] = lru_cache(REMEMBERED)(
            lambda text: (*encode_plain(tokenizer, text), end_id)
        )
        self._of = lru_cache(REMEMBERED)(self._choices)
        self._slot = lru_cache(WORD_LISTS)(self._word_slot)
        self._moves_of: Callable[[_Open], _Moves] = lru_cache(REMEMBERED)(self._moves)
        self._texts = cache(self._slot_texts)
        self._words = cache(self._slot_words)
        self._merged = cache(self._merged_tokens)

    def start(self, choices: tuple[str, ...], slot_words: tuple[str, ...] = ()) -> Walk:
        """Begin to write one of the choices, with these words alone in its slot; none: any words.

        Raises:
            ModelError: the tokenizer can write none of them.
        """
        fixed, opened = self._of(choices)
        if not (opened and slot_words):
            return Walk(self, tuple(fixed), tuple(opened.values()))
        slots = [slot for text in opened if (slot := self._slot(text, slot_words)) is not None]
        if not (fixed or slots):
            raise ModelError(
                f"The model's tokenizer has no tokens for any of the {len(slot_words)} words that may stand in {next(iter(opened))!r:.80}, "
                "and there is no other choice."
            )
        return Walk(self, tuple(fixed), tuple(slot.begin for slot in slots))

    def moves(self, now: _Open | Filling) -> _Moves:
        """Everything that may come next."""
        return now.moves if isinstance(now, Filling) else self._moves_of(now)

    def text(self, choices: tuple[str, ...], ids: tuple[int, ...], slot_words: tuple[str, ...] = ()) -> str | None:
        """The choice that was written; None where it is none, or has a slot for any words. Where several have the same tokens, the first.

        A tokenizer may not give it back: one with few words has the same token for all others.
        """
        fixed, opened = self._of(choices)
        found = fixed.get(ids)
        if found is not None or not slot_words:
            return found
        slots = (self._slot(text, slot_words) for text in opened)
        return next((said for slot in slots if slot is not None and (said := slot.text(ids)) is not None), None)

    def _word_slot(self, text: str, slot_words: tuple[str, ...]) -> WordSlot | None:
        before, *after = SLOT.split(text)
        if after != [""]:
            raise ValueError(f"Words of a slot are given, and {text!r} goes on behind its slot.")
        return word_slot(before, slot_words, lambda said: encode_plain(self._tokenizer, said), self.end_id)

    def _choices(self, choices: tuple[str, ...]) -> tuple[dict[tuple[int, ...], str], dict[str, _Open]]:
        """The choices without a slot by their tokens, the end token included, and the beginnings of those with one by their texts."""
        slots = {text for text in choices if "<" in text and SLOT.search(text)}
        closed = {self._fixed(text): text for text in reversed(choices) if text not in slots}
        return closed, {text: self._opened(text) for text in choices if text in slots}

    def _opened(self, text: str) -> _Open:
        before, *inner, after = SLOT.split(text)
        texts = [before, *filter(None, inner), after]  # two slots side by side are one
        ids = [encode_plain(self._tokenizer, each) if each else () for each in texts]
        parts = (*ids[:-1], (*ids[-1], self.end_id))
        return _Open(parts, part=0 if before else 1)

    def _moves(self, now: _Open) -> _Moves:
        """Everything that may come next. Tokenizers merge across the edges of a slot: a token may be a word and the text next to it."""
        part, last = now.parts[now.part], now.part == len(now.parts) - 1
        fixed = part[now.place :]
        moves: list[tuple[frozenset[int], _Open | Filling]] = []
        if not now.in_slot or now.filled:
            moves.append((frozenset(fixed[:1]), now.at(now.place + 1)))
            if not last:
                in_next = replace(now, part=now.part + 1, place=0, filled=True)
                moves.append((self._merged(fixed, opens=True), in_next))
        if now.in_slot:
            moves.append((self._words(now.filled), replace(now, filled=True)))
            whole = len(part) - last
            moves.append((self._merged(part[:whole], opens=False), now.at(whole)))
        return tuple((ids, then) for ids, then in moves if ids)

    def _slot_texts(self) -> dict[int, str]:
        """Texts of the tokens that may stand in a slot: no control tokens, no line breaks."""
        closed = {int(token) for token in self._tokenizer.all_special_ids} | {self.end_id}
        texts = self._tokenizer.batch_decode([[token] for token in range(len(self._tokenizer))])
        return {
            token: text
            for token, text in enumerate(texts)
            if token not in closed and text and not set(text) & set("\n\r")
        }

    def _slot_words(self, filled: bool) -> frozenset[int]:
        """Tokens that may stand in a slot; `filled`: also those of white space alone."""
        return frozenset(token for token, text in self._texts().items() if filled or text.strip())

    def _merged_tokens(self, fixed: tuple[int, ...], *, opens: bool) -> frozenset[int]:
        """Tokens that are a fixed text and the beginning of the words after it (`opens`), or the end of the words before it."""
        text = str(self._tokenizer.decode(list(fixed))) if fixed else ""
        if not text:
            return frozenset()
        size = len(text)
        if opens:
            return frozenset(
                token for token, each in self._texts().items() if each.startswith(text) and each[size:].strip()
            )
        return frozenset(token for token, each in self._texts().items() if each.endswith(text) and each[:-size].strip())


class Walk:
    """One sample on its way through its choices. Those that are left share all that is written."""

    __slots__ = ("_depth", "_fixed", "_open", "_tokens")

    def __init__(
        self, tokens: ChoiceTokens, fixed: tuple[tuple[int, ...], ...], opened: tuple[_Open | Filling, ...]
    ) -> None:
        self._tokens, self._fixed, self._open = tokens, fixed, opened
        self._depth = 0

    def allowed(self, room: int) -> tuple[int, ...]:
        """Ids that may come next, ascending, where the completion has room for so many tokens."""
        depth = self._depth
        ids = {choice[depth] for choice in self._fixed}
        if not self._open:
            return tuple(sorted(ids))
        moves = [move for each in self._open for move in self._tokens.moves(each)]
        # Words are left out where they would leave no room for the text after them.
        most = max(room - 1, min(then.rest for _, then in moves))
        return _ascending(frozenset(ids), *(found for found, then in moves if then.rest <= most))

    def take(self, token: int) -> None:
        """Go on with a token that was allowed."""
        depth = self._depth
        self._fixed = tuple([choice for choice in self._fixed if choice[depth] == token])
        if self._open:
            moves = (move for each in self._open for move in self._tokens.moves(each))
            self._open = tuple(dict.fromkeys(then for ids, then in moves if token in ids))
        self._depth = depth + 1


@lru_cache(1024)
def _ascending(*ids: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted(frozenset().union(*ids)))
