"""Words of a WebShop instruction as pointers: `word 1` is its first word, and stands wherever a page has that word.

What an instruction asks for differs from episode to episode, what to do with it does not. So a policy that reads and writes pointers needs no
vocabulary of things: it learns to search for what stands after "find me", and to choose the value that has the words it was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from skill_ttrl.agents.scripted.webshop_reading import read_ceiling, stem

POINTERS = 64
"""Different words of an instruction that have a pointer; the others are left out."""
CEILING = "ceiling"
"""Stands at the end of an instruction that names a price."""
STRUCTURE: Mapping[str, str] = {",": "comma", ":": "is", "with": "with", "for": "for", "and": "and"}
"""Signs and words of an instruction that are no pointers, as they are written."""
_ASKING = "find me "
_AROUND = '(["'
_BEHIND = ',:;.!?)"'
_PART = re.compile(r"[a-z0-9]+(?:[.'][a-z0-9]+)*")
_BRACKETS = re.compile(r"[\[\]<>]")
_KEPT_TEXTS = 16_384


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction as a policy reads it."""

    written: str
    """Its words as pointers, with the `STRUCTURE` between them."""
    words: tuple[str, ...]
    """The word of each pointer, from `word 1` on, as it is searched for."""
    pointers: Mapping[str, str]
    """Word without its ending (`stem`) → pointer."""
    below: float | None
    """US dollars that the price must not exceed; None: not said."""

    def find(self, text: str) -> list[str]:
        """Pointers of the words of a text, in its order, each once."""
        known = self.pointers
        return list(dict.fromkeys([known[word] for word in _stems(text) if word in known]))

    def value(self, text: str) -> str:
        """Value of an option as pointers; `other` at its end for all words that the instruction has not."""
        words = _words_and_signs(text)
        found = [self.pointers.get(stem(word)) for word in words if word not in ",:"]
        known = [pointer for pointer in found if pointer is not None]
        return " ".join(known if known and len(known) == len(found) else [*known, "other"])

    def query(self, text: str) -> str:
        """The words of a text that the instruction has, as it has them."""
        known = dict(zip(pointer_names(len(self.words)), self.words, strict=True))
        found = [self.pointers.get(stem(word)) for word in _words_and_signs(text)]
        return " ".join(known[pointer] for pointer in found if pointer is not None)


@lru_cache(maxsize=2048)
def read_instruction(task: str) -> Instruction:
    """An instruction, with a pointer for each different word."""
    text, below = read_ceiling(task)
    pointers, words, written = dict[str, str](), list[str](), list[str]()
    for word in _words_and_signs(text.removeprefix(_ASKING)):
        if word in STRUCTURE:
            written.append(STRUCTURE[word])
            continue
        root = stem(word)
        if root not in pointers:
            if len(words) == POINTERS:
                continue
            words.append(_BRACKETS.sub("", word) or "a")  # brackets would end the search
            pointers[root] = f"word {len(words)}"
        written.append(pointers[root])
    return Instruction(" ".join([*written, *([CEILING] if below is not None else [])]), tuple(words), pointers, below)


def pointer_names(count: int) -> list[str]:
    """Names of the first pointers."""
    return [f"word {number}" for number in range(1, count + 1)]


@lru_cache(maxsize=_KEPT_TEXTS)
def _words_and_signs(text: str) -> tuple[str, ...]:
    """Words between white space in small letters, without the signs around them; a comma and a colon are words too."""
    found = []
    for word in text.lower().split():
        bare = word.rstrip(_BEHIND)
        if bare.lstrip(_AROUND):
            found.append(bare.lstrip(_AROUND))
        found += [sign for sign in word[len(bare) :] if sign in ",:"]
    return tuple(found)


@lru_cache(maxsize=_KEPT_TEXTS)
def _stems(text: str) -> tuple[str, ...]:
    """Words of a text without their endings, each followed by its parts where signs divide it."""
    found = []
    for word in _words_and_signs(text):
        found.append(stem(word))
        if not word.isalnum():
            found += [stem(part) for part in _PART.findall(word)]
    return tuple(found)
