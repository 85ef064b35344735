"""The class of one answer, decided from its text: by words, fractions, or a tree that is left for SymPy to judge."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from skill_ttrl.answers.grammar import Refused, Tree, parse
from skill_ttrl.answers.keys import Hard, Rationals, Undecided, key_of, number_key
from skill_ttrl.answers.normalise import MAX_LENGTH, clean, plain, plain_long
from skill_ttrl.answers.pool import Judged
from skill_ttrl.answers.units import read_number, unit_with_currency, without_unit

Rule = Literal["text", "number", "symbolic"]
LONGEST_KEY = 500
UNIT = " in the unit "
"""Between the key of a value and its unit."""
_LETTER = re.compile(r"\(?([a-z])\)?[.)]*")
_LETTERS = re.compile(r"[a-z][a-z ]+")
_NAMED = ("pi", "infinity", "inf", "oo")
_INTEGER = re.compile(r"-?[1-9]\d{0,17}|0", re.ASCII)


@dataclass(frozen=True, slots=True)
class EquivalenceResult:
    """The class of one answer."""

    key: str
    """Two answers are the same exactly when their keys are."""
    rule: Rule
    """Basis of the decision: its text, an exact number (or several: a tuple, a set), SymPy."""
    gave_up: str | None = None
    """Why it is only compared as a text although it looks like mathematics: `timeout`, `memory`, `crashed`, `undecided`, `too_long`."""


def decide(answer: str) -> EquivalenceResult | Tree:
    """The result for one answer, or the tree that SymPy has to judge. Nothing is evaluated; only answers up to `MAX_LENGTH` are parsed."""
    stripped = answer.strip()
    if _INTEGER.fullmatch(stripped):
        return EquivalenceResult(f"number {stripped}", "number")
    if len(answer) > MAX_LENGTH:
        text = plain_long(answer)
        return (
            EquivalenceResult(_shortened(f"text {text}"), "text", "too_long") if text else EquivalenceResult("", "text")
        )
    cleaned = clean(answer)
    text = plain(cleaned)
    if not text:
        return EquivalenceResult("", "text")
    letter = _LETTER.fullmatch(text)
    if letter and cleaned not in ("e", "i"):
        return EquivalenceResult(f"text {letter[1]}", "text")
    if _LETTERS.fullmatch(text) and text not in _NAMED:
        return EquivalenceResult(f"text {text}", "text")
    bare, scale, unit = without_unit(cleaned)
    unit = unit_with_currency(unit, answer)
    number = read_number(bare)
    if number is not None:
        return EquivalenceResult(with_unit(number_key(number * scale), unit), "number")
    try:
        tree = _scaled(parse(bare), scale)
        try:
            return EquivalenceResult(with_unit(key_of(tree, Rationals()), unit), "number")
        except Hard:
            return tree
    except Refused:
        return EquivalenceResult(f"text {text}", "text")
    except Undecided:
        return EquivalenceResult(f"text {text}", "text", "undecided")


def judged_result(answer: str, judged: Judged) -> EquivalenceResult:
    """The result for an answer that the worker judged."""
    if "key" in judged:
        return EquivalenceResult(
            with_unit(_shortened(judged["key"]), unit_with_currency(without_unit(clean(answer))[2], answer)), "symbolic"
        )
    return EquivalenceResult(f"text {plain(clean(answer))}", "text", judged["gave_up"])


def with_unit(key: str, unit: str) -> str:
    """The key of a value with a unit."""
    return f"{key}{UNIT}{unit}" if unit else key


def bare_key(key: str | None) -> str | None:
    """A key without its unit, to compare answers of different votes on one question."""
    return key if key is None or key.startswith("text ") else key.rpartition(UNIT)[0] or key


def without_units(keys: Sequence[str | None]) -> list[str | None]:
    """The keys of answers to one question, where a missing unit is the one that others state.

    The unit of a value that is given with one unit, or none, is dropped. A value that is given with several units keeps all of
    them, and the answer without one is a class of its own. So it is an equivalence on the answers of one question, whatever
    their order.
    """
    stated: dict[str, set[str]] = {}
    for key in keys:
        bare = bare_key(key)
        if key is not None and bare is not None and bare != key:
            stated.setdefault(bare, set()).add(key)
    clear = {bare for bare, units in stated.items() if len(units) == 1}
    return [bare if (bare := bare_key(key)) in clear else key for key in keys]


def _scaled(tree: Tree, scale: Fraction) -> Tree:
    r"""Scale a tree by a trailing `million` or percent sign; of an equation such as `x = 50\%` only the last side."""
    if scale == 1:
        return tree
    if tree[0] == "rel" and set(tree[1].split()) == {"="}:
        return (*tree[:-1], ("mul", ("num", str(scale)), tree[-1]))
    if tree[0] in ("rel", "list", "set", "union", "tuple", "matrix", "based"):
        raise Undecided("a scale without a clear quantity")
    return ("mul", ("num", str(scale)), tree)


def _shortened(key: str) -> str:
    """A long key by its digest: keys are compared and stored, never read back."""
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key.split()[0]} digest {hashlib.blake2b(key.encode(errors='surrogatepass'), digest_size=20).hexdigest()}"
