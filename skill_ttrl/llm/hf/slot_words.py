"""Choices that end with a slot for some words alone: the tokens that may come next, and the words that were written.

The words' tokens are trees: one of the first word, with the text before the slot, and one of those that follow. Where a word ends, the
completion may, or another word begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

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
