r"""Parser from an answer's text to a tree: the one place where mathematics is read. Nothing is evaluated.

A tree is a nested tuple whose first item says what it is: `("num", "3/4")`, `("sym", "x")`, `("const", "pi")`, `("add", a, b, …)`,
`("mul", …)`, `("neg", a)`, `("div", a, b)`, `("pow", a, b)`, `("fn", name, a, …)`, `("deg", a)`, `("pm", a, b)`, `("mp", a, b)`, and, for
what is not one value, `("tuple", "(", ")", a, …)`, `("set", a, …)`, `("matrix", row, …)`, `("rel", "<=", a, b, …)`, `("based", digits, base)`.

LaTeX and plain notation share one grammar. What is not in it is refused, never guessed at: such an answer is compared as a text.
Letters are single symbols. Words of more than three letters are no mathematics; shorter ones are products only next to
mathematics (`2ab`, `ab + 1`): `{HT, TH}` is a set of words. Time is bounded by the number of tokens, depth by `MAX_DEPTH`
and `MAX_CHAIN`, so that no tree depends on the stack that is left.
"""

from __future__ import annotations

from skill_ttrl.answers.latex.cursor import MAX_CHAIN, MAX_DEPTH
from skill_ttrl.answers.latex.tokens import Refused, tokens
from skill_ttrl.answers.latex.tree import Tree, is_called
from skill_ttrl.answers.latex.values import ValueParser

__all__ = ["MAX_CHAIN", "MAX_DEPTH", "Tree", "parse"]

_RELATIONS = ("=", "<", ">", "<=", ">=", "!=", "in")
_BRACKETS = ("(", ")", "[", "]", "{", "}")
_OPENERS = ("(", "[", "{", "\\{", "<<", "floor(", "ceil(", "begin")
_CLOSERS = (")", "]", "}", "\\}", ">>", ")floor", ")ceil", "end")
_CALLED = frozenset("EPNQfghFGH")
"""Letters before a condition or several things in brackets, which make no product there: `P(X = 2)`."""
_CONDITIONS = frozenset([*_RELATIONS, "|", "mark", "quantity", ",", "cup"])
_MATRICES = ("pmatrix", "bmatrix", "matrix", "smallmatrix", "Bmatrix")


def parse(text: str) -> Tree:
    """The tree of a cleaned answer.

    Raises:
        Refused: it is no mathematics that this grammar has.
    """
    parser = _Parser(tokens(text))
    tree = parser.answer()
    if not parser.at("end of text"):
        raise Refused("something is left over")
    return tree


class _Parser(ValueParser):
    """The whole answer: alternatives, unions, relations, and what brackets hold."""

    def answer(self) -> Tree:
        """`a`, or several things separated by commas, "or" and "and"."""
        items, joints = [self.item()], set()
        while self.at(",", "or", "and"):
            joint = self.take()[0]
            while joint == "," and self.at("or", "and"):
                joint = self.take()[0]
            joints.add(joint)
            items.append(self.item())
        if len(items) == 1:
            return items[0]
        bounds = [item for item in items if item[0] == "rel" and item[1] != "="]
        if bounds and joints != {"or"}:
            raise Refused("inequalities that may all hold at once")
        return ("list", *items)

    def item(self) -> Tree:
        """Read one item by itself: nothing but adjacent letters is a word there."""
        begin = self._place
        tree = self.union()
        self._refuse_words(begin)
        return tree

    def union(self) -> Tree:
        parts = [self.relation()]
        while self.skip("cup"):
            parts.append(self.relation())
        return parts[0] if len(parts) == 1 else ("union", *parts)

    def relation(self) -> Tree:
        first = self._side()
        if not self.at(*_RELATIONS):
            if is_called(first):
                raise Refused("a function of something, or a product")
            return first
        signs, sides = [], [first]
        while self.at(*_RELATIONS):
            signs.append(self.take()[0])
            sides.append(self._side())
        return ("rel", " ".join(signs), *sides)

    def _side(self) -> Tree:
        begin = self._place
        quantity = self._quantity()
        if quantity:
            return ("name", quantity)
        tree = self.sum()
        return ((self.at(*_RELATIONS) or self._tokens[begin - 1][0] in _RELATIONS) and self._segment(begin)) or tree

    def _quantity(self) -> str | None:
        r"""Pass a side that only names the value behind its equals sign, and give it as a text: `\det A`, `P(A \mid B)`, `1+2+\dots+5`."""
        depth, end = 0, self._place
        while depth or self._tokens[end][0] not in (*_RELATIONS, ",", "or", "and"):
            kind = self._tokens[end][0]
            depth += (kind in _OPENERS) - (kind in _CLOSERS)
            if depth < 0 or kind == "end of text":
                return None
            end += 1
        side = self._tokens[self._place : end]
        if self._tokens[end][0] != "=" or not _is_quantity(side):
            return None
        self._place = end
        return " ".join(value or kind for kind, value in side)

    def _segment(self, begin: int) -> Tree | None:
        """Read `AB` next to a relation as one name, of a segment or an area."""
        names = [value for kind, value in self._tokens[begin : self._place] if kind == "sym"]
        whole = len(names) == self._place - begin > 1
        return ("sym", "".join(names)) if whole and all(len(name) == 1 and name.isupper() for name in names) else None

    def _refuse_words(self, begin: int) -> None:
        """Letters side by side, `(no)` and `f(x)`, are no product; `(x)(x)` is one."""
        letters, alone = 0, True
        for place in range(begin, self._place):
            kind, value = self._tokens[place]
            if kind == "sym" and len(value) == 1:
                letters += 1
                alone &= place > begin and self._tokens[place - 1][0] == "(" and self._tokens[place + 1][0] == ")"
            elif kind not in _BRACKETS:
                return
        if letters > 1 and not alone:
            raise Refused("a word, or a product of nothing but letters")

    def brackets(self, kind: str) -> Tree:
        self._enter()
        bars, self._bars = self._bars, 0
        closers = {"{": ("}",), "\\{": ("\\}",), "<<": (">>",)}.get(kind, (")", "]"))
        items = []
        if not self.at(*closers):
            begin = self._place
            items.append(self.union() if kind != "{" else self._over(self.relation()))
            if kind == "\\{" or self.at(","):
                self._refuse_words(begin)
            while self.skip(","):
                items.append(self.item())
        close = self.expect(*closers)
        self._depth -= 1
        self._bars = bars
        if kind in ("{", "\\{") and (kind == "\\{" or len(items) != 1):
            return ("set", *items)
        if not items:
            raise Refused("empty brackets")
        if len(items) == 1:
            if (kind, close) in (("(", "]"), ("[", ")")) or items[0][0] == "rel":
                raise Refused("brackets that do not match")
            # A sum of one: otherwise `(3)(4)` would be a mixed number, and `f(x)` the same as `fx`.
            return ("add", items[0]) if items[0][0] in ("num", "sym") else items[0]
        return ("tuple", "(" if kind == "<<" else kind, ")" if close == ">>" else close, *items)

    def _over(self, above: Tree) -> Tree:
        r"""`{1 \over 2}` and `{5 \choose 2}`."""
        if self.skip("over"):
            return ("div", above, self.sum())
        return ("fn", "binom", above, self.sum()) if self.skip("choose") else above

    def matrix(self, name: str) -> Tree:
        if name not in _MATRICES:
            raise Refused(f"the environment {name!r}")
        rows: list[Tree] = []
        row: list[Tree] = []
        while True:
            begin = self._place
            row.append(self.sum())
            self._refuse_words(begin)
            if self.skip("&"):
                continue
            rows.append(tuple(row))
            row = []
            if not self.skip("row") or self.at("end"):
                break
        if self.expect("end") and self._tokens[self._place - 1][1] != name:
            raise Refused("an environment that is not closed")
        if len({len(entries) for entries in rows}) != 1:
            raise Refused("rows of different lengths")
        return ("matrix", *rows)


def _is_quantity(side: list[tuple[str, str]]) -> bool:
    kinds = [kind for kind, _ in side]
    if (
        not side
        or "quantity" in kinds
        or ("begin", "vmatrix") in side
        or ("fn", "sum") in side
        or ("fn", "prod") in side
    ):
        return bool(side)
    if kinds[0] == "name":
        return kinds[1:2] in ([], ["("], ["_"])
    capitals = [value for kind, value in side if kind not in ("mark", "cup", "|")]
    if len(capitals) < len(side) and all(len(value) == 1 and value.isupper() for value in capitals):
        return True  # A ∪ B, |A|: of a capital letter it is no equation
    begin = next((place for place, kind in enumerate(kinds) if place and kind != "mark"), 0)
    if kinds[0] != "sym" or kinds[begin] not in ("(", "[") or not _closes_last(kinds[begin:]):
        return False
    inside, letter = kinds[begin + 1 : -1], side[0][1]
    return (
        begin > 1 or (letter in _CALLED and not _CONDITIONS.isdisjoint(inside)) or (letter in "EP" and len(inside) > 1)
    )


def _closes_last(kinds: list[str]) -> bool:
    """True if the first bracket is closed by the last token."""
    depth = 0
    for place, kind in enumerate(kinds):
        depth += (kind in _OPENERS) - (kind in _CLOSERS)
        if not depth:
            return place == len(kinds) - 1
    return False
