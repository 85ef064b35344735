"""The texts of a game's grammar (`.twl2`): commands, answers and the task, as far as another wording may differ.

The structure, which symbol stands where and under which condition, is that of the engine in `engine.py`; a grammar of another
structure is refused. The words between are the game's own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skill_ttrl.errors import EnvError

_TASK = re.compile(r'("task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*)"((?:[^"\\]|\\.)*)"')
_RULES = re.compile(r'grammar\s*::\s*"""(.*?)"""\s*;', re.DOTALL)
_ACTION = re.compile(r'action\s+(\w+)\s*\{\s*template\s*::\s*"([^"]*)"\s*;\s*feedback\s*::\s*"([^"]*)"\s*;')
_SLOT = re.compile(r"\[\{.*?\}\]|\{.*?\}|#.*?#")
_PREDICATE = re.compile(r"(\w+)\(")
_SHORT = (
    (re.compile(r"\[\{\s*(\w+)\.name\s*\|\s*receptacleatlocation\(.*?\}\]"), r"{\1}"),  # in "go to": a list of one
    (re.compile(r"\[\{.*?\}\]"), "{list}"),
    (re.compile(r"\{\w+\.indefinite\}"), "a"),  # the engine knows no other article
    (re.compile(r"\{(\w+)\.name(?: or \1\.id)?\}"), r"{\1}"),
)
STRUCTURE = "23d2ff0978ddf369"


@dataclass(frozen=True, slots=True)
class Texts:
    """Words of a grammar, with the slots `{o}`, `{r}`, `{co}`, `{ko}` for names and `{list}` for a list of things."""

    commands: Mapping[str, str]
    """Action → template of its command: "take {o} from {r}"."""
    answers: Mapping[str, tuple[str, ...]]
    """Symbol → its texts, in the order of their conditions."""
    conditions: Mapping[str, tuple[tuple[str, ...], ...]]
    """Symbol → for each of its texts the predicates that must hold; none for the last."""
    help: str

    def command(self, action: str, /, **names: str) -> str:
        """The command of an action on the things named."""
        return fill(self.commands[action], **names)

    def answer(self, symbol: str, number: int = 0, /, **names: str) -> str:
        """A symbol's text under its `number`-th condition."""
        return fill(self.answers[symbol][number], **names)

    def listing(self, items: Sequence[str]) -> str:
        """Things in a row: "a, b, and c"; as the grammar has it, "a, and b" for two."""
        if not items:
            return self.answers["list_empty"][0]
        row = self.answers["list_separator"][0].join(items[:-1])
        return f"{row}{self.answers['list_last_separator'][0]}{items[-1]}" if row else items[0]


def fill(text: str, /, **names: str) -> str:
    """`text` with names in its slots; what stands in a name is left alone."""
    for slot, name in names.items():
        text = text.replace(f"{{{slot}}}", name)
    return text


def is_text(text: str) -> bool:
    """True if a text can be encoded as UTF-8. JSON can contain lone surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_grammar(text: str) -> tuple[Texts, str]:
    """A grammar's texts, and the sentence that states the task ("Your task is to: …").

    Raises:
        EnvError: it is no grammar, or one of another structure.
    """
    task = _TASK.search(text)
    if task is None:
        raise EnvError("its grammar has no task")
    try:
        sentence = json.loads(f'"{task[2]}"')
    except json.JSONDecodeError as error:
        raise EnvError(f"the task in its grammar is no text: {error}") from None
    if not is_text(sentence):
        raise EnvError("the task in its grammar is no Unicode text")
    return _texts(text[: task.start()] + task[1] + '""' + text[task.end() :]), sentence


@functools.lru_cache(maxsize=8)
def _texts(text: str) -> Texts:
    rules = _rules(text)
    help_text = rules.pop("help.feedback", [{"rhs": "#help.feedback#"}])[0]["rhs"]  # a symbol in the package's own file
    actions = [
        (name, template, feedback.replace("#help.feedback#", help_text))
        for name, template, feedback in _ACTION.findall(text)
    ]
    found = structure(rules, actions)
    if found != STRUCTURE:
        raise EnvError(f"the structure of its grammar differs from ALFWorld's ({found}, not {STRUCTURE})")
    return Texts(
        commands={name: _slots(template) for name, template, _ in actions},
        answers={name: tuple(_slots(rule["rhs"]) for rule in own) for name, own in rules.items()},
        conditions={
            name: tuple(tuple(_PREDICATE.findall(rule.get("condition", ""))) for rule in own)
            for name, own in rules.items()
        },
        help=next(feedback for name, _, feedback in actions if name == "help").lstrip(),
    )


def _rules(text: str) -> dict[str, list[dict[str, str]]]:
    """Symbol → its texts with their conditions."""
    rules: dict[str, Any] = {}
    try:
        for block in _RULES.findall(text):
            rules.update(json.loads("\n".join(line for line in block.split("\n") if not line.lstrip().startswith("#"))))
    except (ValueError, TypeError, RecursionError) as error:
        raise EnvError(f"its grammar cannot be read: {error}") from None
    for name, own in rules.items():
        if not (isinstance(own, list) and own and all(map(_is_rule, own))):
            raise EnvError(f"{name!r} of its grammar is not a list of texts")
    return rules


def _is_rule(rule: Any) -> bool:
    return (
        isinstance(rule, dict)
        and isinstance(rule.get("rhs"), str)
        and isinstance(rule.get("condition", ""), str)
        and is_text(rule["rhs"])
    )


def _slots(text: str) -> str:
    """Short names for the slots. White space at the start is dropped, as the official parser does."""
    for pattern, short in _SHORT:
        text = pattern.sub(short, text)
    return text.lstrip()


def structure(rules: Mapping[str, list[dict[str, str]]], actions: Sequence[tuple[str, str, str]]) -> str:
    """A hash of everything but the words: symbols, conditions, slots, and the actions with theirs."""
    shape = [
        sorted(
            (name, [(rule.get("condition", ""), _SLOT.findall(rule["rhs"])) for rule in own])
            for name, own in rules.items()
        ),
        sorted(
            (name, sorted(_SLOT.findall(template)), _SLOT.findall(feedback)) for name, template, feedback in actions
        ),
    ]
    return hashlib.blake2b(json.dumps(shape).encode(), digest_size=8).hexdigest()
