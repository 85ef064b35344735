"""Sentences of the generated catalogue: patterns with gaps, and the words that fill them, as `sentences.toml` has them.

A search engine is to find in these texts what it finds in real ones: few words that are everywhere, many that are rare, and with
every thousand products some thousand words that were never seen before (names, models, measures, coined materials).
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PATTERNS: dict[str, str] = _TABLES["patterns"]
CATEGORY_PATTERNS: dict[str, str] = _TABLES["category_patterns"]
WORDS: dict[str, str] = _TABLES["words"]
CATEGORY_WORDS: dict[str, dict[str, str]] = _TABLES["category_words"]

Draw = Callable[[], float]
"""Uniform in [0, 1): the product's own generator. Only sums and products of what it gives are used, and never `log` or `**`, whose
last digit differs from machine to machine."""
Gap = tuple[str, ...] | str | Callable[[Draw], str]
"""Filler of a gap: one of these words, the product's value of this name, or a function that makes up a word."""


class Sentence(NamedTuple):
    """A pattern, ready to be filled."""

    text: str
    """With a %s for every gap."""
    gaps: tuple[Gap, ...]


_GAP = re.compile(r"\{(\w+)\}")
# Two consonants in the middle and one at the end: no short word is the name of a real brand by chance.
_OPENING = tuple(start + vowel for start in "b d f g k l m n p r s t v z".split() for vowel in "a e i o u".split())
_MIDDLE = tuple(
    start + vowel for start in "br zd gr kv pl fn gl sk sm dv tr vr zl lth mb".split() for vowel in "a e i o u".split()
)
_ENDINGS = tuple("n r x l s nt th ck".split())
_BEGINNINGS = tuple(
    _OPENING[place % 70] + _MIDDLE[(place // 70 * 7 + place * 2 + 31) % 75] + _ENDINGS[place // 70 % 8]
    for place in range(8108)
)
_LATER = tuple(
    _OPENING[place % 70] + (_MIDDLE[place * 7 // 70 % 75] if place > 200 else "") + _ENDINGS[place % 8]
    for place in range(300)
)
_FIRST_HALVES, _SECOND_HALVES = (tuple(_TABLES["coined"][name].split()) for name in ("first", "second"))
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_RARE = 300_000
_SPREAD = 2048
"""Places of a pool in which the frequent words stand several times: one draw chooses."""


def choose(pool: Sequence[str], draw: Draw) -> str:
    """One of the words, those in front more often."""
    return pool[int(len(pool) * draw() * draw())]


def fill(sentence: Sentence, own: Mapping[str, str], draw: Draw) -> str:
    """The sentence with its gaps filled, and a capital at its beginning; `own` has what this product's parts are called."""
    text = sentence.text % tuple(
        [
            gap[int(_SPREAD * draw())] if type(gap) is tuple else own[gap] if type(gap) is str else gap(draw)  # type: ignore[operator]
            for gap in sentence.gaps
        ]
    )
    return text[0].upper() + text[1:]


@functools.cache
def sentences(name: str, category: str) -> tuple[Sentence, ...]:
    """The patterns of one set of `PATTERNS`, with the words of a category in their gaps."""
    lines = PATTERNS[name].strip().splitlines()
    if name == "plain":
        lines += CATEGORY_PATTERNS[category].strip().splitlines()
    return tuple(_compile(line, category) for line in lines)


@functools.cache
def words(name: str, category: str) -> tuple[str, ...]:
    """One list: of a category's own words where it has such a list, of all categories' otherwise."""
    text = CATEGORY_WORDS[category].get(name) or WORDS[name]
    return tuple(" ".join(word.split()) for word in text.split(","))


def _compile(pattern: str, category: str) -> Sentence:
    gaps = tuple(_gap(name, category) for name in _GAP.findall(pattern))
    return Sentence(_GAP.sub("%s", pattern.replace("%", "%%")), gaps)


@functools.cache
def _gap(name: str, category: str) -> Gap:
    made = {"coined": _coined, "made": made_up, "code": _code, "small": _small, "measure": _measure}
    if name in made:
        return made[name]
    return name if name in OWN else _spread(words(name, category))


def _spread(pool: tuple[str, ...]) -> tuple[str, ...]:
    """The word at `x` of the way through the pool stands there in proportion to 1 / (x + 0.2): a tail as texts have it."""
    # Whole numbers: no rounding.
    weights = [1_000_000 * len(pool) // (5 * place + len(pool)) for place in range(len(pool))]
    found: list[str] = []
    for place, word in enumerate(pool):
        found += [word] * (_SPREAD * sum(weights[: place + 1]) // sum(weights) - len(found))
    return tuple(found)


def made_up(draw: Draw) -> str:
    """A word that no dictionary has. A few are frequent, as brands are, and there is no end of rare ones."""
    number = int(_RARE * draw() * draw() * draw() * draw() * draw())
    beginning = _BEGINNINGS[number * 8 % 8100 + int(8 * draw())]  # eight words where the same number is drawn again
    if number < 1000:
        return beginning
    return beginning + _LATER[number // 1000]


def _coined(draw: Draw) -> str:
    return choose(_FIRST_HALVES, draw) + choose(_SECOND_HALVES, draw)


def _code(draw: Draw) -> str:
    first, second = _LETTERS[int(24 * draw())], _LETTERS[int(24 * draw())]
    return f"{first}{second}{int(10 + 990 * draw() * draw())}{_LETTERS[int(24 * draw())] if draw() < 0.4 else ''}"


def _small(draw: Draw) -> str:
    return str(2 + int(11 * draw() * draw()))


def _measure(draw: Draw) -> str:
    number = int(20 + 600 * draw() * draw())
    return str(number / 10) if draw() < 0.6 else str(number // 10)


OWN = ("brand", "noun", "phrase", "main")
"""Gaps that every product fills with its own: `phrase` is what an attribute is called in a sentence, `main` its main material."""
