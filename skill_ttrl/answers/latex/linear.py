"""Linear steps on trees, exactly: an inequality solved for its one symbol, sums and products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from skill_ttrl.answers.latex.tree import Tree

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
