"""From a tree to the key of its class: what is a set, a tuple, an interval, an equation, an assignment; values are asked for.

`Algebra` says what one value is. `Rationals` does it with exact fractions and no library; what it cannot do (`Hard`) goes to
SymPy in the worker (`symbolic.Expressions`), which gives the same keys for what both can do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Protocol

from skill_ttrl.answers.grammar import Tree, has_symbols, is_called, is_name

MAX_BITS = 4000
"""Largest numerator or denominator of exact arithmetic."""
MAX_SIGNS = 3
"""Most ± of one value: each doubles what it stands for."""

INFINITY: Tree = ("const", "oo")


class Hard(Exception):
    """This algebra cannot decide it."""


class Undecided(Exception):
    """No algebra can, or may: it is too large, undefined, or has no place in an answer."""


class Algebra(Protocol):
    """Arithmetic on the values of an answer."""

    def value(self, tree: Tree) -> str:
        """The key of a value."""

    def equation(self, left: Tree, right: Tree, *, signed: bool) -> str:
        """The key of `left - right` up to a constant factor; up to a positive one where `signed`."""


class Rationals:
    """Values that are fractions; everything else is `Hard`."""

    def value(self, tree: Tree) -> str:
        """Return the key of a value that exact fractions can compute."""
        return number_key(fold(tree))

    def equation(self, left: Tree, right: Tree, *, signed: bool) -> str:
        """Raise `Hard`: fractions cannot decide an equation."""
        raise Hard


def number_key(value: Fraction) -> str:
    """The key of an exact number."""
    return f"number {value}"


def key_of(tree: Tree, algebra: Algebra) -> str:
    """The key of a whole answer.

    Raises:
        Hard, Undecided: the algebra's.
    """
    tree = multiplied_out(tree)
    kind = tree[0]
    if kind == "list":
        return _list(tree[1:], algebra)
    if kind == "set":
        return _set(_elements(tree, algebra))
    if kind == "union":
        return _union(tree[1:], algebra)
    if kind == "tuple":
        _, opened, closed, *items = tree
        return f"tuple {opened} {'; '.join(key_of(item, algebra) for item in items)} {closed}"
    if kind == "matrix":
        rows = ["; ".join(_value(entry, algebra) for entry in row) for row in tree[1:]]
        return f"matrix {' | '.join(rows)}"
    if kind == "rel":
        return _relation(str(tree[1]), tree[2:], algebra)
    if kind == "based":
        return f"based {tree[1]} {tree[2]}"
    return _set(_members(tree, algebra))


def fold(tree: Tree) -> Fraction:
    """The exact value of a tree of rational arithmetic.

    Raises:
        Hard: it is not one, or too large.
    """
    kind = tree[0]
    if kind == "num":
        return Fraction(str(tree[1]))
    if kind not in ("add", "mul", "neg", "div", "pow", "deg"):
        raise Hard
    parts = [fold(part) for part in tree[1:]]
    result = parts[0]
    if kind == "neg":
        result = -result
    elif kind == "div":
        if not parts[1]:
            raise Undecided("a division by zero")
        result = parts[0] / parts[1]
    elif kind == "pow":
        result = _power(parts[0], parts[1])
    elif kind in ("add", "mul"):
        for part in parts[1:]:
            result = result + part if kind == "add" else result * part
    if max(result.numerator.bit_length(), result.denominator.bit_length()) > MAX_BITS:
        raise Hard
    return result


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or abs(exponent) * size > MAX_BITS:
        raise Hard
    if not base and exponent <= 0:
        raise Undecided("zero to a power that is not positive")
    return base ** int(exponent)


def _members(tree: Tree, algebra: Algebra) -> list[str]:
    """Keys of all that one item stands for: two values for ±, else itself."""
    if tree[0] in ("set", "union", "list", "tuple", "matrix", "rel", "based"):
        return [key_of(tree, algebra)]
    return sorted({_value(chosen, algebra) for chosen in _without_signs(tree)})  # ±0 is one value


def _value(tree: Tree, algebra: Algebra) -> str:
    if tree == INFINITY:
        return "infinity"
    return "-infinity" if tree == ("neg", INFINITY) else algebra.value(tree)


def _without_signs(tree: Tree) -> Iterator[Tree]:
    """The value with every ± decided: each by itself, unless a ∓ says that they go together."""
    signs = list(_signs(tree))
    if not signs:
        yield tree
        return
    if len(signs) > MAX_SIGNS:
        raise Undecided("too many ±")
    if "mp" in signs:
        for upper in (True, False):
            yield _decided(tree, iter([upper] * len(signs)))
    else:
        for choice in itertools.product((True, False), repeat=len(signs)):
            yield _decided(tree, iter(choice))


def _signs(tree: Tree) -> Iterator[str]:
    if tree[0] in ("pm", "mp"):
        yield str(tree[0])
    for part in tree[1:]:
        if isinstance(part, tuple):
            yield from _signs(part)


def _decided(tree: Tree, choices: Iterator[bool]) -> Tree:
    upper = next(choices) if tree[0] in ("pm", "mp") else True
    parts = [_decided(part, choices) if isinstance(part, tuple) else part for part in tree[1:]]
    if tree[0] in ("pm", "mp"):
        plus = upper if tree[0] == "pm" else not upper
        return ("add", parts[0], parts[1] if plus else ("neg", parts[1]))
    return (tree[0], *parts)


def _set(keys: Sequence[str]) -> str:
    r"""No order, but each as often as it is named: `5, 5, 8` is not `5, 8`. A set of one value is that value; `\{\emptyset\}` is none."""
    if len(keys) == 1 and not keys[0].startswith("set "):
        return keys[0]
    return _braced(keys)


def _elements(tree: Tree, algebra: Algebra) -> list[str]:
    """Of a set in braces. A set among them stays one: `{{1}, {2}}` is not `{1, 2}`."""
    found = []
    for item in tree[1:]:
        inner = item[0] == "set"
        found += [_braced(_elements(item, algebra))] if inner else _members(item, algebra)
    return found


def _braced(keys: Sequence[str]) -> str:
    return f"set {{{'; '.join(sorted(keys))}}}"


def _union(parts: Sequence[Tree], algebra: Algebra) -> str:
    """The parts without order or repetition; those of a union of sets are their elements."""
    if all(part[0] == "set" for part in parts):
        parts = [item for part in parts for item in part[1:]]
    elif any(part[0] == "set" for part in parts):
        return f"union {_braced(sorted({key_of(part, algebra) for part in parts}))}"
    return _set(sorted({key for part in parts for key in _members(part, algebra)}))


def _list(items: Sequence[Tree], algebra: Algebra) -> str:
    """`1, 2` is a set, but letters are listed in an order. `x=1, y=2` says which is which; `x=1, x=2` and `x=1, 2` are both values."""
    if all(item[0] == "sym" or item in (("const", "e"), ("const", "i")) for item in items):
        return f"list {'; '.join(str(item[1]) for item in items)}"
    names = [_assigned(item) for item in items]
    if len({name for name in names if name}) > 1:
        if None in names or len(set(names)) != len(names):
            raise Undecided("only some of these values are named")
        return "where " + "; ".join(
            sorted(f"{name} = {key_of(item[3], algebra)}" for name, item in zip(names, items, strict=True))
        )
    return _set([key for item in items for key in _members(item, algebra)])


def _assigned(tree: Tree) -> str | None:
    """The one symbol that `x = …` is about, or None."""
    if tree[0] == "rel" and tree[1] == "=" and len(tree) == 4 and tree[2][0] in ("sym", "name"):
        return str(tree[2][1])
    return None


def _relation(signs: str, sides: Sequence[Tree], algebra: Algebra) -> str:
    if signs == "in" and is_name(sides[0]):
        return key_of(sides[1], algebra)
    if set(signs.split()) == {"="} and (len(sides) > 2 or not any(map(has_symbols, sides))):
        return _computed(sides, algebra)
    if signs == "=":
        left, right = sides
        if is_called(left) or (is_name(left) and not has_symbols(right)):
            return key_of(right, algebra)
        if is_name(right) and not has_symbols(left):
            return key_of(left, algebra)
        if "tuple" in (left[0], right[0]):
            return key_of(right if has_symbols(left) else left, algebra) if _is_named_tuple(left, right) else _refuse()
        return f"equation {algebra.equation(left, right, signed=False)}"
    if set(signs.split()) <= {"<", "<="} or set(signs.split()) <= {">", ">="}:
        return _inequality(signs.split(), sides, algebra)
    if signs == "!=":
        return f"unequal {algebra.equation(sides[0], sides[1], signed=False)}"
    return _refuse()


def _computed(sides: Sequence[Tree], algebra: Algebra) -> str:
    r"""The value of `x = 2 + 3 = 5`, of which each side has to have it. Behind a name a formula says nothing: `A = \pi r^2 = 9\pi`."""
    named = is_name(sides[0])
    if has_symbols(sides[-1]) or any(has_symbols(side) and not (named or side[0] == "name") for side in sides):
        return _refuse()
    found = {key_of(side, algebra) for side in sides if not has_symbols(side)}
    return found.pop() if len(found) == 1 else _refuse()


def _inequality(signs: list[str], sides: Sequence[Tree], algebra: Algebra) -> str:
    """One symbol between bounds is an interval; anything else is kept as `left - right < 0`."""
    if signs[0].startswith(">"):
        signs, sides = [sign.replace(">", "<") for sign in reversed(signs)], list(reversed(sides))
    signs, sides = solved(signs, sides)
    if len(sides) == 2 and is_name(sides[0]) and not has_symbols(sides[1]):
        sides, signs = [("neg", INFINITY), *sides], ["<", *signs]
    elif len(sides) == 2 and is_name(sides[1]) and not has_symbols(sides[0]):
        sides, signs = [*sides, INFINITY], [*signs, "<"]
    if len(sides) == 3 and is_name(sides[1]) and not has_symbols(sides[0]) and not has_symbols(sides[2]):
        if _is_empty(signs, sides[0], sides[2]):
            return _set(())
        opened, closed = "[" if signs[0] == "<=" else "(", "]" if signs[1] == "<=" else ")"
        return key_of(("tuple", opened, closed, sides[0], sides[2]), algebra)
    if len(sides) == 2:
        return f"inequality {signs[0]} {algebra.equation(sides[0], sides[1], signed=True)}"
    return _refuse()


def _is_empty(signs: Sequence[str], low: Tree, high: Tree) -> bool:
    """True if nothing lies between two fractions."""
    try:
        below, above = fold(low), fold(high)
    except Hard:
        return False
    return below > above or (below == above and "<" in signs)


def _is_named_tuple(left: Tree, right: Tree) -> bool:
    """`(x, y) = (1, 2)`."""
    names, values = (left, right) if has_symbols(left) else (right, left)
    if names[0] != "tuple" or values[0] != "tuple" or len(names) != len(values) or has_symbols(values):
        return False
    return all(item[0] == "sym" for item in names[3:])


def _refuse() -> str:
    raise Undecided("a relation that has no normal form here")


_LARGEST_MATRIX = 6
_MOST_BITS = 1000

Form = tuple[Fraction, Fraction, str | None]
"""`a x + b` as (a, b, x)."""


def solved(signs: list[str], sides: Sequence[Tree]) -> tuple[list[str], list[Tree]]:
    """`-x > -1` as `x < 1`, `1 < 2x + 1 < 3` as `0 < x < 1`: rising signs and sides with the symbol alone; others as they are.

    There are two or three sides, and `<` or `<=` between each two.
    """
    forms = [_linear(side) for side in sides]
    names = {form[2] for form in forms if form is not None} - {None}
    if None in forms or len(names) != 1 or len(sides) > 3:
        return signs, list(sides)
    known = [form for form in forms if form is not None]
    name: Tree = ("sym", names.pop())
    if len(known) == 2:
        factor, rest = known[0][0] - known[1][0], known[1][1] - known[0][1]
        if not factor:
            return signs, list(sides)
        bound = _number(rest / factor)
        return signs, [name, bound] if factor > 0 else [bound, name]
    factor, rest, inner = known[1]
    if inner is None or known[0][2] or known[2][2] or not factor:
        return signs, list(sides)
    low, high = (_number((known[place][1] - rest) / factor) for place in (0, 2))
    return (signs, [low, name, high]) if factor > 0 else (signs[::-1], [high, name, low])


def _linear(tree: Tree) -> Form | None:
    kind = tree[0]
    if kind == "num":
        return Fraction(0), Fraction(str(tree[1])), None
    if kind == "sym":
        return Fraction(1), Fraction(0), str(tree[1])
    if kind not in ("neg", "add", "mul", "div"):
        return None
    parts = [_linear(part) for part in tree[1:]]
    found = parts[0]
    if kind == "neg":
        return None if found is None else (-found[0], -found[1], found[2])
    for part in parts[1:]:
        found = None if found is None or part is None else _combined(kind, found, part)
    return found


def _combined(kind: str, one: Form, other: Form) -> Form | None:
    if one[2] and other[2] and one[2] != other[2]:
        return None
    name = one[2] or other[2]
    if kind == "add":
        form: Form = (one[0] + other[0], one[1] + other[1], name)
    elif kind == "mul" and not (one[2] and other[2]):
        form = (one[0] * other[1] + one[1] * other[0], one[1] * other[1], name)
    elif kind == "div" and not other[2] and other[1]:
        form = (one[0] / other[1], one[1] / other[1], name)
    else:
        return None
    bits = max(part.numerator.bit_length() + part.denominator.bit_length() for part in form[:2])
    return form if bits <= _MOST_BITS else None


def _number(value: Fraction) -> Tree:
    return ("num", str(value))


def multiplied_out(tree: Tree) -> Tree:
    """A sum, a product or a multiple of matrices as the one matrix that it is; anything else as it is."""
    if tree[0] not in ("add", "mul", "neg") or not any(
        isinstance(part, tuple) and _has_matrix(part) for part in tree[1:]
    ):
        return tree
    parts = [multiplied_out(part) for part in tree[1:]]
    found = parts[0]
    if tree[0] == "neg":
        return _times(("num", "-1"), found) or tree
    for part in parts[1:]:
        joined = _plus(found, part) if tree[0] == "add" else _times(found, part)
        if joined is None:
            return tree
        found = joined
    return found


def _has_matrix(tree: Tree) -> bool:
    return tree[0] == "matrix" or (tree[0] in ("add", "mul", "neg") and any(map(_has_matrix, tree[1:])))


def _plus(one: Tree, other: Tree) -> Tree | None:
    if one[0] != "matrix" or other[0] != "matrix" or _shape(one) != _shape(other):
        return None
    rows = zip(one[1:], other[1:], strict=True)
    return ("matrix", *(tuple(("add", a, b) for a, b in zip(*pair, strict=True)) for pair in rows))


def _times(one: Tree, other: Tree) -> Tree | None:
    if other[0] != "matrix":
        one, other = other, one
        if other[0] != "matrix":
            return None
    if one[0] != "matrix":
        return ("matrix", *(tuple(("mul", one, entry) for entry in row) for row in other[1:]))
    if _shape(one)[1] != _shape(other)[0] or max(*_shape(one), *_shape(other)) > _LARGEST_MATRIX:
        return None
    columns = list(zip(*other[1:], strict=True))

    def entry(row: Tree, column: Tree) -> Tree:
        return ("add", *(("mul", a, b) for a, b in zip(row, column, strict=True)))

    return ("matrix", *(tuple(entry(row, column) for column in columns) for row in one[1:]))


def _shape(matrix: Tree) -> tuple[int, int]:
    return len(matrix) - 1, len(matrix[1])
