"""Parses the operations on the skill bank in a model's text. Total: any text gives a result, and errors are listed.

    <skill_ops>
      <generate title="Parity">Check the parity first.</generate>     a new skill
      <retrieve query="modular arithmetic"></retrieve>                a question to the bank; `<retrieve query="…"/>` too
      <evolve base="#12">Holds for composites as well.</evolve>       a better text for skill 12
    </skill_ops>
    <solution>…</solution>
    <answer>2</answer>

Case does not matter. An operation counts only inside a block and only once it is closed. As in XML, what looks like a tag
ends an attribute's value, so a forgotten quote cannot swallow what follows; `x < 3` may stand in one. A block that is
never closed reaches to the end. One pass finds the tags, so the work is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from skill_ttrl.answers import find_answer
from skill_ttrl.answers.extract import ExtractionRule, last_tagged
from skill_ttrl.types import Evolution, SkillOps, split_thought

BLOCK = "skill_ops"
OPERATIONS = ("generate", "retrieve", "evolve")
RETRIEVE_END = "</retrieve>"
RETRIEVE_MARKS = (RETRIEVE_END, "/>")
"""Stop markers at which generation pauses for retrieval. Another tag that ends in `/>` retrieves nothing."""
MAX_OPERATIONS = 64
"""Most operations that are read from one text; those after them are left out, with one error."""
MAX_ERRORS = 20
"""Most errors that are listed; the last one says how many more there were."""
MAX_QUERY = 1000
"""Longest query in characters: it is embedded, so its cost is bounded here."""
MAX_TITLE = 80
"""Longest title in characters; a longer one is cut."""

_VALUE = r"""(?:"(?:[^"<]|<(?![a-zA-Z/]))*+"|'(?:[^'<]|<(?![a-zA-Z/]))*+')"""
_START = re.compile(rf"<(/?)({BLOCK}|{'|'.join(OPERATIONS)})(?![\w-])", re.IGNORECASE | re.ASCII)
_REST = re.compile(rf"((?:\s++[a-zA-Z_-]++\s*+=\s*+{_VALUE})*+)\s*+(/?)>")
_ATTRIBUTE = re.compile(rf"([a-zA-Z_-]++)\s*+=\s*+({_VALUE})")
_BASE = re.compile(r"(?:skill\s*+(?=#)|skill\s++)?+#?+\s*+(\S.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """The parts of a model's text."""

    text: str
    """What was written, without thoughts."""
    answer: str | None
    """The final answer as `answers.extract` finds it outside of `<skill_ops>` blocks; None where there is none."""
    solution: str | None
    """Content of the last `<solution>` that is closed, outside of `<skill_ops>` blocks."""
    skill_ops: SkillOps
    answer_rule: ExtractionRule | None = None
    """Rule that found the answer (`answers.find_answer`)."""


class OutputParser:
    r"""Reads `<skill_ops>`, `<solution>` and `<answer>`, `\boxed{}` included. It keeps no state and never raises.

    Args:
        last_number: take the last number where there is no other answer.
    """

    def __init__(self, *, last_number: bool = False) -> None:
        self._last_number = last_number

    def parse(self, text: str) -> ParsedOutput:
        """Take a whole text apart. Write it without what was inserted (`Completion.model_text`).

        Thoughts hold nothing but questions to the bank, which were answered as they were written.
        """
        thought, said = split_thought(text)
        reader = _Reader(said).read()
        if BLOCK in thought.lower():
            reader.retrieve = _Reader(text).read().retrieve
        outside = reader.outside()
        solution = last_tagged(outside, "solution")
        found = find_answer(outside, last_number=self._last_number)
        return ParsedOutput(
            said,
            found.answer if found else None,
            solution.strip() if solution else None,
            reader.ops(),
            found.rule if found else None,
        )


def last_open_query(written: str) -> str | None:
    """The query that waits for its answer: of the retrieval that is the last thing in `written` to be closed.

    Args:
        written: what the model has written so far, up to `</retrieve>` (or `<retrieve query="…"/>`) and perhaps a little
            more text, which may come in the same token.

    Returns:
        The query as `OutputParser` reads it, or None where the last tag closes no retrieval inside a `<skill_ops>` block,
        or the retrieval is malformed or blank. Every query that `parse` gives is given here once the text ends behind it.
    """
    reader = _Reader(written)
    closed = None
    for tag in _tags(written):
        before = len(reader.retrieve)
        reader.take(tag)
        closed = reader.retrieve[-1] if len(reader.retrieve) > before else None
    return closed


@dataclass(frozen=True, slots=True)
class _Tag:
    name: str
    start: int
    end: int
    closing: bool = False
    empty: bool = False  # `<name …/>`
    whole: bool = True  # False where its attributes or its `>` cannot be read
    attributes: dict[str, str] = field(default_factory=dict)


def _tags(text: str) -> Iterator[_Tag]:
    for start in _START.finditer(text):
        name, closing = start[2].lower(), bool(start[1])
        rest = _REST.match(text, start.end())
        if rest is None:
            yield _Tag(name, start.start(), start.end(), closing, whole=False)
            continue
        found = reversed(_ATTRIBUTE.findall(rest[1]))  # of two with the same name the first counts
        attributes = {key.lower(): " ".join(value[1:-1].split()) for key, value in found}
        yield _Tag(name, start.start(), rest.end(), closing, bool(rest[2]) and not closing, True, attributes)


class _Reader:
    """Takes the tags of one text in order and keeps what they amount to."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.generate: list[str] = []
        self.titles: list[str] = []
        self.retrieve: list[str] = []
        self.evolve: list[Evolution] = []
        self.errors: list[str] = []
        self.block: int | None = None  # where the open block began
        self.blocks: list[tuple[int, int]] = []
        self.open: _Tag | None = None  # the operation that is not closed yet
        self.count = 0

    def take(self, tag: _Tag) -> None:
        """The next tag of the text."""
        if self.open is not None:
            opened, self.open = self.open, None
            if tag.whole and tag.closing and tag.name == opened.name:
                self._operation(opened, self.text[opened.end : tag.start].strip())
                return
            self._error(opened.start, f"<{opened.name}> is not closed before the next tag")
        if not tag.whole:
            self._error(tag.start, f"<{'/' if tag.closing else ''}{tag.name}> is not a complete tag")
        elif tag.name == BLOCK and tag.closing and self.block is not None:
            self.blocks.append((self.block, tag.end))
            self.block = None
        elif tag.closing:
            self._error(tag.start, f"</{tag.name}> closes nothing")
        elif tag.name == BLOCK and self.block is not None:
            self._error(tag.start, f"<{BLOCK}> is inside another")
        elif tag.name == BLOCK and tag.empty:
            self.blocks.append((tag.start, tag.end))
        elif tag.name == BLOCK:
            self.block = tag.start
        elif self.block is None:
            self._error(tag.start, f"<{tag.name}> is outside of <{BLOCK}>")
        elif tag.empty:
            self._operation(tag, "")
        else:
            self.open = tag

    def read(self) -> _Reader:
        """Take all tags, and the end of the text; gives the reader itself."""
        for tag in _tags(self.text):
            self.take(tag)
        if self.open is not None:
            self._error(self.open.start, f"<{self.open.name}> is never closed")
        if self.block is not None:
            self._error(self.block, f"<{BLOCK}> is never closed")
            self.blocks.append((self.block, len(self.text)))
        return self

    def outside(self) -> str:
        """The text without its blocks, a line break for each: what stood on both sides of one does not grow together."""
        edges = [0, *(edge for block in self.blocks for edge in block), len(self.text)]
        return "\n".join(self.text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))

    def ops(self) -> SkillOps:
        """All that was asked."""
        more = [f"and {len(self.errors) - MAX_ERRORS} more errors"] if len(self.errors) > MAX_ERRORS else []
        return SkillOps(
            generate=tuple(self.generate),
            retrieve=tuple(self.retrieve),
            evolve=tuple(self.evolve),
            errors=(*self.errors[:MAX_ERRORS], *more),
            titles=tuple(self.titles),
        )

    def _operation(self, tag: _Tag, content: str) -> None:
        self.count += 1
        if self.count > MAX_OPERATIONS:
            self._error(tag.start, f"more than {MAX_OPERATIONS} operations: this one is left out")
            return
        problem = ""
        if tag.name == "retrieve":
            query = tag.attributes.get("query")
            if not query:
                problem = 'has no query: write <retrieve query="...">' if query is None else "has an empty query"
            elif len(query) > MAX_QUERY:
                problem = f"has a query of {len(query)} characters, the most is {MAX_QUERY}"
            else:
                self.retrieve.append(query)
        elif tag.name == "evolve" and (base := _BASE.fullmatch(tag.attributes.get("base", ""))) is None:
            problem = 'names no skill: write <evolve base="#id">'
        elif not content:
            problem = "has no text"
        elif tag.name == "evolve":
            self.evolve.append(Evolution(base[1], content))  # type: ignore[index]  # matched above
        else:
            self.generate.append(content)
            self.titles.append(tag.attributes.get("title", "")[:MAX_TITLE])
        if problem:
            self._error(tag.start, f"<{tag.name}> {problem}")

    def _error(self, position: int, reason: str) -> None:
        self.errors.append(f"character {position}: {reason}")
