"""Shapes of trees of `grammar`: names and symbols."""

from __future__ import annotations

from typing import Any

Tree = tuple[Any, ...]

_FUNCTIONS = frozenset("fghFGHPQ")
"""Letters that stand for a function before a number in parentheses, and before `^{-1}`; others are factors."""
_INVERSE: Tree = ("neg", ("num", "1"))


def has_symbols(tree: Tree) -> bool:
    """True if the value depends on a letter."""
    return tree[0] in ("sym", "name") or any(has_symbols(part) for part in tree[1:] if isinstance(part, tuple))


def is_name(tree: Tree) -> bool:
    r"""`x`, `f(x)` or a quantity such as `\det A`."""
    return tree[0] in ("sym", "name") or is_called(tree)


def is_called(tree: Tree) -> bool:
    """True for `f(x)`, `P(A)`, `f(2)`, `f^{-1}(x)`: a symbol before one item in parentheses, which `fx` is not."""
    if tree[0] != "mul" or len(tree) != 3:
        return False
    function, inside = tree[1:]
    if not isinstance(function, tuple) or not isinstance(inside, tuple) or len(inside) != 2 or inside[0] != "add":
        return False
    inverse = function[0] == "pow" and function[2] == _INVERSE
    name = function[1] if inverse else function
    if name[0] != "sym":
        return False
    return name[1] in _FUNCTIONS if inverse or inside[1][0] == "num" else inside[1][0] == "sym"
