r"""Parser from an answer's text to a tree: the one place where mathematics is read. Only integers are evaluated (`_evaluated`).

A tree is a nested tuple whose first item says what it is: `("num", "3/4")`, `("sym", "x")`, `("const", "pi")`, `("add", a, b, …)`,
`("mul", …)`, `("neg", a)`, `("div", a, b)`, `("pow", a, b)`, `("fn", name, a, …)`, `("deg", a)`, `("pm", a, b)`, `("mp", a, b)`, and, for
what is not one value, `("tuple", "(", ")", a, …)`, `("set", a, …)`, `("matrix", row, …)`, `("rel", "<=", a, b, …)`, `("based", digits, base)`.

LaTeX and plain notation share one grammar. What is not in it is refused, never guessed at: such an answer is compared as a text.
Letters are single symbols. Words of more than three letters are no mathematics; shorter ones are products only next to
mathematics (`2ab`, `ab + 1`): `{HT, TH}` is a set of words. Time is bounded by the number of tokens, depth by `MAX_DEPTH`
and `MAX_CHAIN`, so that no tree depends on the stack that is left.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 40
"""Most brackets, functions and exponents inside of one another."""
MAX_CHAIN = 40
"""Most signs, slashes, powers and postfixes of an answer that put what stands before them one level deeper."""
_INDEX_TOKENS = ("num", "sym", "+", "-", ",")
_LONGEST_INDEX = 9
_RELATIONS = ("=", "<", ">", "<=", ">=", "!=", "in")
_BRACKETS = ("(", ")", "[", "]", "{", "}")
_OPENERS = ("(", "[", "{", "\\{", "<<", "floor(", "ceil(", "begin")
_CLOSERS = (")", "]", "}", "\\}", ">>", ")floor", ")ceil", "end")
_CALLED = frozenset("EPNQnfghFGH")
"""Letters before a condition or several things in brackets, which make no product there: `P(X = 2)`."""
_CONDITIONS = frozenset([*_RELATIONS, "|", "mark", "quantity", ",", "cup"])
_MATRICES = ("pmatrix", "bmatrix", "matrix", "smallmatrix", "Bmatrix")
_TRIGONOMETRIC = frozenset("sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan exp ln log".split())
_INVERSES = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")
_NO_FACTORS = (("num", "0"), ("num", "1"))


def parse(text: str) -> Tree:
    """The tree of a cleaned answer.

    Raises:
        Refused: it is no mathematics that this grammar has.
    """
    parser = _Parser(tokens(text))
    tree = parser.answer()
    if not parser.at("end of text"):
        raise Refused("unparsed text remains")
    return tree


class _Parser:
    """Recursive descent over tokens, one method a level of precedence: alternatives, unions, relations, sums, products, powers, atoms.

    The first methods look at the next token, take it, and count how deep the reader is.
    """

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0
        self._chain = 0
        self._bars = 0

    def at(self, *kinds: str) -> bool:
        """Say whether the next token is of one of these kinds."""
        return self._tokens[self._place][0] in kinds

    def take(self) -> tuple[str, str]:
        """The next token, which is passed."""
        token = self._tokens[self._place]
        if token[0] == "end of text":
            raise Refused("it ends unexpectedly")
        self._place += 1
        return token

    def skip(self, kind: str) -> bool:
        """Pass the next token if it is of this kind."""
        if self.at(kind):
            self._place += 1
            return True
        return False

    def expect(self, *kinds: str) -> str:
        """Pass the next token, which has to be of one of these kinds; gives its kind."""
        if not self.at(*kinds):
            raise Refused(f"expected {' or '.join(kinds)}")
        return self.take()[0]

    def _index(self) -> str:
        """A subscript, as it is written: one number or letter, or in braces a few of them with signs."""
        if not self.skip("{"):
            kind, index = self.take()
            if kind not in ("num", "sym"):
                raise Refused("a subscript that is not an index")
            return index
        parts: list[str] = []
        while not self.skip("}"):
            kind, value = self.take()
            if kind not in _INDEX_TOKENS or len(parts) == _LONGEST_INDEX:
                raise Refused("a subscript that is not an index")
            parts.append(value or kind)
        if not parts:
            raise Refused("an empty subscript")
        return "".join(parts)

    def _based(self, digits: str) -> Tree:
        braced = self.skip("{")
        kind, base = self.take()
        if kind != "num" or not (base + digits).isdigit() or (braced and not self.skip("}")):
            raise Refused("a subscript that is not a base")
        return ("based", digits, base)

    def _link(self) -> None:
        self._chain += 1
        if self._chain > MAX_CHAIN:
            raise Refused("nested too deep")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Refused("nested too deep")

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
            return _evaluated(quantity) or ("name", quantity)
        tree = self.sum()
        names = [value for kind, value in self._tokens[begin : self._place] if kind == "sym"]
        segment = len(names) == self._place - begin > 1 and all(len(name) == 1 and name.isupper() for name in names)
        if segment and (self.at(*_RELATIONS) or self._tokens[begin - 1][0] in _RELATIONS):
            return ("sym", "".join(names))  # `AB` next to a relation is one name, of a segment or an area
        return tree

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

    def sum(self) -> Tree:
        """Read terms joined by signs."""
        self._enter()
        signs = {"+": None, "-": "neg", "pm": "pm", "mp": "mp"}
        if self.at(*signs):
            sign = self.take()[0]
            first = self.product()
            tree: Tree = {"+": first, "-": ("neg", first)}.get(sign, (sign, ("num", "0"), first))
        else:
            tree = self.product()
        while self.at(*signs):
            sign = self.take()[0]
            right = self.product()
            if sign in ("pm", "mp"):
                self._link()
                tree = (sign, tree, right)
            else:
                term = ("neg", right) if sign == "-" else right
                tree = (*tree, term) if tree[0] == "add" else ("add", tree, term)
        self._depth -= 1
        return tree

    def product(self) -> Tree:
        """Read factors with signs between them, or side by side."""
        tree = self.factor()
        while True:
            if self.skip("*"):
                right = self.signed()
                tree = (*tree, right) if tree[0] == "mul" else ("mul", tree, right)
            elif self.skip("/"):
                self._link()
                tree = ("div", tree, self.signed())
            elif self._begins_factor():
                tree = self._beside(tree)
            else:
                return tree

    def _beside(self, left: Tree) -> Tree:
        """Two factors side by side; two bare numbers only as a mixed number."""
        fraction = self.at("frac")
        number = self.at("num")
        right = self.factor()
        if left[0] == "num" and fraction and right[0] == "div" and right[1][0] == right[2][0] == "num":
            if "/" in str(left[1]) or "." in str(left[1]):
                raise Refused("a number before a fraction")
            return ("add", left, right)
        if left in _NO_FACTORS and right[0] == "sym" and "_" in str(right[1]):
            raise Refused("a digit before a letter with a subscript: perhaps a literal in a base")
        if number or (left[0] == "add" and fraction):
            raise Refused("a number right behind a factor")
        return (*left, right) if left[0] == "mul" else ("mul", left, right)

    def signed(self) -> Tree:
        """Read a factor with the signs before it."""
        negative = False
        while self.at("-", "+"):
            self._link()
            negative ^= self.take()[0] == "-"
        tree = self.factor()
        return ("neg", tree) if negative else tree

    def factor(self) -> Tree:
        """A power, with its postfix signs."""
        tree = self.postfix(self.atom())
        if self.at("_") and tree[0] == "num":
            self.take()
            return self._based(str(tree[1]))
        while self.skip("^"):
            self._link()
            if self._degrees():
                tree = ("deg", tree)
                continue
            tree = self.postfix(("pow", tree, self.exponent()))
        return tree

    def postfix(self, tree: Tree) -> Tree:
        """Apply the factorials and percent signs that follow."""
        while True:
            if self.skip("!"):
                if self.at("!"):
                    raise Refused("a double factorial")
                tree = ("fn", "factorial", tree)
            elif self.skip("%"):
                tree = ("div", tree, ("num", "100"))
            else:
                return tree
            self._link()

    def exponent(self) -> Tree:
        """Read what stands behind `^`."""
        self._enter()
        if self.skip("{"):
            tree = self.sum()
            self.expect("}")
        elif self.at("-", "+"):
            tree = self.signed()
        else:
            tree = self.atom()
            if self.skip("^"):
                tree = ("pow", tree, self.exponent())
        self._depth -= 1
        return tree

    def atom(self) -> Tree:
        """Read one number, name, function or pair of brackets."""
        kind, value = self.take()
        if kind == "num":
            return ("num", value)
        if kind == "sym":
            if value in ("e", "i"):
                return ("const", value)
            return ("sym", f"{value}_{self._index()}" if self.skip("_") else value)
        if kind == "const":
            return ("const", value)
        if kind == "fn":
            self._enter()
            tree = self._applied(value)
            self._depth -= 1
            return tree
        if kind == "based":
            return ("based", *value.split())
        if kind == "frac":
            begin, above, below = self._place, self.argument(), self._place
            tree = ("div", above, self.argument())
            if self._differential(begin) and self._differential(below):
                raise Refused("a derivative")
            return tree
        if kind in ("emptyset", "varnothing"):
            return ("set",)
        if kind == "reals":
            return ("tuple", "(", ")", ("neg", ("const", "oo")), ("const", "oo"))
        if kind in ("(", "[", "{", "\\{", "<<"):
            return self.brackets(kind)
        if kind == "|":
            self._bars += 1
            inside = self.sum()
            self.expect("|")
            self._bars -= 1
            return ("fn", "abs", inside)
        if kind in ("floor(", "ceil("):
            inside = self.sum()
            self.expect(")" + kind[:-1])
            return ("fn", kind[:-1], inside)
        if kind == "begin":
            return self.matrix(value)
        raise Refused(f"{kind} in place of a value")

    # Parts of an atom.

    def _differential(self, place: int) -> bool:
        """True if `d` or `{d` stands there."""
        return ("sym", "d") in self._tokens[place : place + (2 if self._tokens[place][0] == "{" else 1)]

    def argument(self) -> Tree:
        r"""One argument of a LaTeX command: a group, or one token; `\frac43` takes one digit at a time."""
        if self.skip("{"):
            tree = self.sum()
            self.expect("}")
            return tree
        kind, value = self._tokens[self._place]
        if kind == "num" and len(value) > 1:
            if "." in value or len(value) > 2:
                raise Refused("digits that could belong to either side")
            self._tokens[self._place] = ("num", value[1:])
            return ("num", value[0])
        self._enter()
        tree = self.atom()
        self._depth -= 1
        return tree

    def _sum(self, name: str) -> Tree:
        r"""Read `\sum_{k=0}^{n} …`; the summand ends at the next sign."""
        self.expect("_")
        self.expect("{")
        kind, index = self.take()
        if kind != "sym":
            raise Refused("a sum over something other than a letter")
        self.expect("=")
        low = self.sum()
        self.expect("}")
        self.expect("^")
        return ("fn", name, ("sym", index), low, self.exponent(), self.product())

    def _applied(self, name: str) -> Tree:
        if name in ("sum", "prod"):
            return self._sum(name)
        if name == "binom":
            return self._called(name) if self.at("(") else ("fn", name, self.argument(), self.argument())
        if name == "sqrt":
            index = None
            if self.skip("["):
                index = self.sum()
                self.expect("]")
            inside = self._group() if self.at("{", "(") else self.atom()
            return ("fn", "sqrt", inside) if index is None else ("fn", "root", inside, index)
        base = None
        if name == "log" and self.skip("_"):
            base = self._group() if self.at("{") else self.argument()
        power = self.exponent() if name in _TRIGONOMETRIC and self.skip("^") else None
        if self.at("(", "{"):
            tree = self._called(name)
        elif name in _TRIGONOMETRIC:
            inside = self.factor()  # without parentheses: adjacent factors, up to the next sign or function
            while self._begins_factor() and not self.at("fn", "("):
                inside = self._beside(inside)
            tree = ("fn", name, inside)
        else:
            raise Refused(f"{name} without an argument")
        if base is not None:
            tree = (*tree, base)
        if power == ("neg", ("num", "1")):
            if name not in _INVERSES:
                raise Refused(f"either the inverse or the reciprocal of {name}")
            return ("fn", f"arc{name}", *tree[2:])
        return tree if power is None else ("pow", tree, power)

    def _called(self, name: str) -> Tree:
        close = {"(": ")", "{": "}"}[self.expect("(", "{")]
        arguments = [self.sum()]
        while self.skip(","):
            arguments.append(self.sum())
        self.expect(close)
        if len(arguments) > 2:
            raise Refused("too many arguments")
        return ("fn", name, *arguments)

    def _group(self) -> Tree:
        close = {"(": ")", "{": "}"}[self.expect("(", "{")]
        tree = self.sum()
        self.expect(close)
        return tree

    def _degrees(self) -> bool:
        if self.skip("circ"):
            return True
        if self.at("{") and self._tokens[self._place + 1][0] == "circ":
            self.take()
            self.take()
            self.expect("}")
            return True
        return False

    def _begins_factor(self) -> bool:
        if self.at("|"):
            return self._bars == 0
        return self.at("num", "sym", "const", "fn", "frac", "begin", "(", "[", "{", "\\{", "floor(", "ceil(")


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


_WHOLE: dict[str, Callable[..., int]] = {"gcd": math.gcd, "lcm": math.lcm, "max": max, "min": min, "mod": operator.mod}
_OF_WHOLE = re.compile(
    r"(?P<name>gcd|lcm|max|min) [({\\]+(?P<given>(?: \d{1,40} ,)+ \d{1,40}) [)}\\]+|(?P<whole>\d{1,40}) b?mod (?P<by>0*[1-9]\d{0,39})"
)


def _evaluated(quantity: str) -> Tree | None:
    r"""`\gcd(12, 18)` and `17 \bmod 5` as the number that they are, or None."""
    found = _OF_WHOLE.fullmatch(quantity)
    if found is None:
        return None
    given = found["given"].split(" , ") if found["name"] else (found["whole"], found["by"])
    return ("num", str(_WHOLE[found["name"] or "mod"](*map(int, given))))


def _closes_last(kinds: list[str]) -> bool:
    """True if the first bracket is closed by the last token."""
    depth = 0
    for place, kind in enumerate(kinds):
        depth += (kind in _OPENERS) - (kind in _CLOSERS)
        if not depth:
            return place == len(kinds) - 1
    return False


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


# From the text to tokens. A character or a word that mathematics does not have is refused.

MAX_TOKENS = 400
MAX_LETTERS = 3
"""Longer runs of letters are words."""
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh arcsinh arccosh arctanh exp ln log sqrt root "
    "abs floor ceil factorial binom sum prod".split()
)
_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "binomial": "binom", "cosec": "csc"}
_CONSTANTS = {"pi": "pi", "infty": "oo", "inf": "oo", "infinity": "oo", "oo": "oo"}
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma tau phi varphi chi psi "
    "omega Gamma Delta Theta Lambda Sigma Phi Psi Omega ell".split()
)
_OPERATORS = {
    "cdot": "*", "times": "*", "ast": "*", "div": "/", "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=",
    "geqslant": ">=", "ne": "!=", "neq": "!=", "lt": "<", "gt": ">", "in": "in", "cup": "cup", "pm": "pm", "mp": "mp",
    "{": "\\{", "}": "\\}", "lbrace": "\\{", "rbrace": "\\}", "langle": "<<", "rangle": ">>", "lvert": "|", "rvert": "|",
    "vert": "|", "mid": "|", "lfloor": "floor(", "rfloor": ")floor", "lceil": "ceil(", "rceil": ")ceil", "%": "%",
    "\\": "row", "cr": "row", "or": "or", "and": "and",
    **dict.fromkeys("to rightarrow prime".split(), "mark"),
    **dict.fromkeys(
        "cap setminus perp partial arg bmod mod Re Im det dim ker deg gcd max min lim liminf limsup int iint iiint oint Pr angle triangle overline bar vec hat widehat dots ldots "
        "cdots |".split(),
        "quantity",
    ),
}  # fmt: skip
"""A `quantity` is nothing that is computed: it names the value behind an equals sign. A `mark` has its place in one only."""

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?<!_)(?!log|ln|lg)(?=[A-Za-z]{2}|\d+[A-Z]|[A-Z]\d)(?P<digits>[0-9A-Za-z]+)\s?_\s?(?P<based>\d+|\{\s?\d+\s?\})"
    r"|(?P<dots>\.{3})|(?P<repeating>\d*\.\d*\(\d+\))|(?P<num>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3}(?!\d))?)|\\(?P<env>begin|end)\s?\{(?P<envname>[a-z]+\*?)\}"
    r"|\\operatorname\s?\{(?P<operator>[a-zA-Z]+)\}|\\mathbb\s?\{(?P<measure>[EP])\}"
    r"|\\(?:text(?:rm|bf|it)?|mathrm|mbox|operatorname|mathbf|boldsymbol|mathit)\s?\{(?P<text>[^{}]*)\}"
    r"|\\(?:mathbb|mathbf)\s?(?:\{R\}|R(?![a-zA-Z]))(?P<reals>)"
    r"|\\(?P<command>[a-zA-Z]+|[{}%\\|])|(?P<word>[a-zA-Z]+)|(?P<op>\*\*|<=|>=|!=|==|[-+*/^_=<>()\[\]{},;|!%&'])",
    re.ASCII,
)
_EXPONENT = re.compile(r"[eE][-+]?\d")
"""Texts behind a number that would be read as `e` times something, and mean something else."""
_DIFFERENTIAL = re.compile(r"d[a-z]|\wd[t-z]")
_NO_PRODUCT = re.compile(
    r"l[ng]\w|(?i:no|on|is|it|of|to|th|nd|rd|yes|all|any|the|not|but|for|has|was|are|one|two|six|ten|odd)"
)
"""Short runs of letters that are a function without its backslash or an English word."""
_NO_NAME = re.compile(
    r"if|when|where|only|except|unless|neither|never|none|false|true|about|approx\w*|over|under|than|less|more",
    re.IGNORECASE,
)
"""Words that say something about the value before or behind them."""


class Refused(ValueError):
    """The text is not in the grammar, or too large for it."""


def tokens(text: str) -> list[tuple[str, str]]:
    """(kind, value): kinds are `num`, `sym`, `const`, `fn`, `based`, `frac`, `begin`, `end`, or the operator itself."""
    found: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or len(found) > MAX_TOKENS:
            raise Refused("a character that is not in the grammar" if match is None else "too many tokens")
        place = match.end()
        kind = match.lastgroup
        if kind == "num":
            if _EXPONENT.match(text, place):
                raise Refused("an exponent that is too long")
            found.append(("num", match["num"]))
        elif kind == "repeating":
            found.append(("num", _repeating(match["repeating"])))
        elif kind == "dots":
            found.append(("quantity", "dots"))
        elif kind == "based":
            found.append(("based", f"{match['digits']} {match['based'].strip('{} ')}"))
        elif kind == "envname":
            found.append((match["env"], match["envname"]))
        elif kind == "reals":
            found.append(("reals", ""))
        elif kind == "text":
            words = match["text"].split()
            found += [("mark", "d")] if words == ["d"] else [_word(word, alone=len(words) == 1) for word in words]
        elif kind in ("operator", "measure"):
            word = match[kind]
            found.append(("fn", word) if word in FUNCTIONS else ("quantity", word))
        elif kind == "word":
            found += _letters(match["word"])
        elif kind == "command":
            found.append(_command(match["command"]))
        elif kind == "op":
            found.append(({"**": "^", "==": "=", ";": ",", "'": "mark"}.get(match["op"], match["op"]), ""))
    found.append(("end of text", ""))
    return found


def _command(name: str) -> tuple[str, str]:
    if name in _OPERATORS:
        return _OPERATORS[name], name if _OPERATORS[name] == "quantity" else ""
    if name in _CONSTANTS:
        return "const", _CONSTANTS[name]
    if name in _GREEK:
        return "sym", name
    name = _NAMES.get(name, name)
    if name in FUNCTIONS:
        return "fn", name
    if name in ("frac", "circ", "emptyset", "varnothing", "over", "choose"):
        return name, ""
    raise Refused(f"the command {name!r}")


def _repeating(decimal: str) -> str:
    """`0.1(6)` as the fraction that it is."""
    whole, _, rest = decimal.rstrip(")").partition(".")
    fixed, _, period = rest.partition("(")
    nines = (10 ** len(period) - 1) * 10 ** len(fixed)
    return f"{int(whole + fixed + period) - int(whole + fixed or '0')}/{nines}"


def _letters(word: str) -> list[tuple[str, str]]:
    """A run of letters: a name that means something, or single symbols side by side."""
    if _DIFFERENTIAL.fullmatch(word):
        return [("mark", word)]
    try:
        return [_word(word, alone=len(word) > MAX_LETTERS)]
    except Refused:
        if len(word) > MAX_LETTERS or _NO_PRODUCT.fullmatch(word):
            raise
        return [("sym", letter) for letter in word]


def _word(word: str, *, alone: bool) -> tuple[str, str]:
    """A word of mathematics, or, where it stands `alone`, one that may name a value."""
    lower = _NAMES.get(word.lower(), word.lower())
    if lower in ("or", "and"):
        return lower, ""
    if lower in _CONSTANTS:
        return "const", _CONSTANTS[lower]
    if lower in FUNCTIONS:
        return "fn", lower
    if len(word) == 1 and word.isalpha() and word.isascii():
        return "sym", word
    if alone and word.isalpha() and not _NO_NAME.fullmatch(word) and not _NO_PRODUCT.fullmatch(word):
        return "name", word
    raise Refused(f"the word {word!r}")
