"""A place in the tokens of an answer: what `grammar` reads by, with the literals that no other rule is in."""

from __future__ import annotations

from typing import NoReturn

from skill_ttrl.answers.latex.tokens import Refused
from skill_ttrl.answers.latex.tree import Tree

MAX_DEPTH = 40
"""Most brackets, functions and exponents inside of one another."""
MAX_CHAIN = 40
"""Most signs, slashes, powers and postfixes of an answer that put what stands before them one level deeper."""
_INDEX_TOKENS = ("num", "sym", "+", "-", ",")
_LONGEST_INDEX = 9


class Cursor:
    """Looks at the next token, takes it, and counts how deep the reader is."""

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
            raise Refused("it ends too early")
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
                raise Refused("a subscript that is no index")
            return index
        parts: list[str] = []
        while not self.skip("}"):
            kind, value = self.take()
            if kind not in _INDEX_TOKENS or len(parts) == _LONGEST_INDEX:
                raise Refused("a subscript that is no index")
            parts.append(value or kind)
        if not parts:
            raise Refused("an empty subscript")
        return "".join(parts)

    def _based(self, digits: str) -> Tree:
        braced = self.skip("{")
        kind, base = self.take()
        if kind != "num" or not (base + digits).isdigit() or (braced and not self.skip("}")):
            raise Refused("a subscript that is no base")
        return ("based", digits, base)

    def _link(self) -> None:
        self._chain += 1
        if self._chain > MAX_CHAIN:
            _too_deep()

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _too_deep()


def _too_deep() -> NoReturn:
    raise Refused("nested too deep")
