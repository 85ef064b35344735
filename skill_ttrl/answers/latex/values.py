"""One value: sums, products, powers, functions. Recursive descent over tokens; one method a level of precedence."""

from __future__ import annotations

from abc import ABC, abstractmethod

from skill_ttrl.answers.latex.cursor import Cursor
from skill_ttrl.answers.latex.tokens import Refused
from skill_ttrl.answers.latex.tree import Tree

_TRIGONOMETRIC = frozenset("sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan exp ln log".split())
_INVERSES = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")
_NO_FACTORS = (("num", "0"), ("num", "1"))


class ValueParser(Cursor, ABC):
    """Reads one value at the cursor; what brackets hold may be more than one value."""

    @abstractmethod
    def brackets(self, kind: str) -> Tree:
        """Read what stands in brackets that are open already."""

    @abstractmethod
    def matrix(self, name: str) -> Tree:
        """Read a matrix whose environment is open already."""

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
            return self._symbol(value)
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
            return self._fraction()
        if kind in ("emptyset", "varnothing"):
            return ("set",)
        if kind == "reals":
            return ("tuple", "(", ")", ("neg", ("const", "oo")), ("const", "oo"))
        if kind in ("(", "[", "{", "\\{", "<<"):
            return self.brackets(kind)
        if kind == "|":
            return self._absolute()
        if kind in ("floor(", "ceil("):
            inside = self.sum()
            self.expect(")" + kind[:-1])
            return ("fn", kind[:-1], inside)
        if kind == "begin":
            return self.matrix(value)
        raise Refused(f"{kind} where a value should stand")

    # Parts of an atom.

    def _fraction(self) -> Tree:
        begin = self._place
        above = self.argument()
        below = self._place
        tree = ("div", above, self.argument())
        if self._differential(begin) and self._differential(below):
            raise Refused("a derivative")
        return tree

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
                raise Refused("digits of which it is not clear what they belong to")
            self._tokens[self._place] = ("num", value[1:])
            return ("num", value[0])
        self._enter()
        tree = self.atom()
        self._depth -= 1
        return tree

    def _symbol(self, name: str) -> Tree:
        if name in ("e", "i"):
            return ("const", name)
        if self.at("_"):
            self.take()
            return ("sym", f"{name}_{self._index()}")
        return ("sym", name)

    def _sum(self, name: str) -> Tree:
        r"""Read `\sum_{k=0}^{n} …`; the summand ends at the next sign."""
        self.expect("_")
        self.expect("{")
        kind, index = self.take()
        if kind != "sym":
            raise Refused("a sum over something else than a letter")
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
            tree = ("fn", name, self._run_on())
        else:
            raise Refused(f"{name} of what?")
        if base is not None:
            tree = (*tree, base)
        if power == ("neg", ("num", "1")):
            if name not in _INVERSES:
                raise Refused(f"the inverse of {name}, or one divided by it")
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

    def _run_on(self) -> Tree:
        """Read the argument of a function without parentheses: adjacent factors, up to the next sign or function."""
        tree = self.factor()
        while self._begins_factor() and not self.at("fn", "("):
            tree = self._beside(tree)
        return tree

    def _group(self) -> Tree:
        close = {"(": ")", "{": "}"}[self.expect("(", "{")]
        tree = self.sum()
        self.expect(close)
        return tree

    def _absolute(self) -> Tree:
        self._bars += 1
        inside = self.sum()
        self.expect("|")
        self._bars -= 1
        return ("fn", "abs", inside)

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
