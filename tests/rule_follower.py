"""A scripted world in which the best document is known. For tests and benchmarks only.

The task: fill in a form. Every item needs one or two of ten house rules ("dates", "units", ...), and a rule is one line of the
document, `- dates: write YYYY-MM-DD`. There is one right value a rule, and a few wrong ones that an optimizer may believe in.

`ScriptedTarget` plays the frozen model. It obeys what the document says, wherever it says so:

- a needed rule that the document lacks is guessed right with probability .15;
- a right line is followed; a wrong line is followed too, so it never succeeds: worse than no line;
- a right and a wrong line for one rule contradict each other: it takes the right one half of the time; where the guidance block says
  that it holds, its lines hold;
- a distraction (`- style: answer in rhyme`) spoils every item with probability .15;
- each line of the document beyond the fourteenth costs 2 % of the successes: long documents are read badly;
- on top of that one item in ten fails by a slip.

All draws are a function of (document, item id, seed, replicate): the same rollout has the same result, and a document that
differs in one character has fresh slips, as a sampled model would have. With all ten lines and nothing else the expected score
is .9, with an empty document .08. A failure names the rules that were not followed; a slip looks the same as a missing rule,
so a reader of failures cannot tell them apart.

The numbers were fixed before the first optimizer ran on it; that guidance holds was added when the prompt of the slow update, which
asks for it, had been written. tests/rule_optimizer.py is the scripted optimizer.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skill_ttrl.optimize.types import RolloutResult

RULES: dict[str, tuple[str, ...]] = {
    "dates": ("write YYYY-MM-DD", "write DD/MM/YYYY", "write the month in words", "write MM-DD-YY"),
    "currency": ("amount first, then the code", "symbol first", "code first", "leave the currency out"),
    "units": ("SI units with a space", "imperial units", "SI units without a space", "spell units out"),
    "names": ("family name first", "given name first", "initials only", "family name only"),
    "rounding": ("two decimals", "no decimals", "three significant digits", "round up"),
    "casing": ("lower case", "upper case", "title case", "as in the question"),
    "lists": ("separate by semicolons", "separate by commas", "one per line", "separate by slashes"),
    "empty": ("write n/a", "leave blank", "write none", "write a dash"),
    "ranges": ("use two dots", "use a dash", "use the word to", "give the middle"),
    "times": ("24-hour clock with a colon", "12-hour clock", "24-hour clock without a colon", "minutes since midnight"),
}
"""Rule name → its right value, then the wrong ones."""
SUBTLE = ("ranges", "times")
"""Rules that a single batch of failures suggests wrongly more often than not (see the optimizer)."""
DISTRACTIONS = ("- style: answer in rhyme", "- tone: apologise first", "- length: repeat the question")
GUESS, SLIP, DISTRACTED, ROOM, CROWDING = 0.15, 0.1, 0.15, 14, 0.98

HOLDS = "Where this block and the rest differ, this block holds."

_LINE = re.compile(r"^\s*- ([a-z]+): (.+?)\s*$", re.MULTILINE)
_BLOCK = re.compile(r"<!-- SLOW_UPDATE_START -->(.*?)<!-- SLOW_UPDATE_END -->", re.DOTALL)


def line(name: str, value: str | None = None) -> str:
    """The document's line for a rule; the right one without a value."""
    return f"- {name}: {RULES[name][0] if value is None else value}"


@dataclass(frozen=True)
class Reading:
    """What the target takes from a document."""

    values: Mapping[str, frozenset[str]]
    """Rule name → the values that the document gives it."""
    distractions: int
    crowding: float
    """Share of the successes that the document's length leaves."""

    @classmethod
    def of(cls, document: str) -> Reading:
        values: dict[str, set[str]] = {}
        distractions = 0
        for match in _LINE.finditer(document):
            name, value = match.groups()
            if name in RULES:
                values.setdefault(name, set()).add(value)
            else:
                distractions += f"- {name}: {value}" in DISTRACTIONS
        block = _BLOCK.search(document)
        if block and HOLDS in block[1]:
            values |= {name: {value} for name, value in _LINE.findall(block[1]) if name in RULES}
        lines = [each for each in document.splitlines() if each.strip() and not each.startswith(("<!--", "#"))]
        return cls(
            {name: frozenset(found) for name, found in values.items()},
            distractions,
            CROWDING ** max(0, len(lines) - ROOM),
        )

    def follows(self, name: str) -> float:
        """Probability that an item's need of this rule is met."""
        found = self.values.get(name)
        if found is None:
            return GUESS
        if RULES[name][0] not in found:
            return 0.0
        return 1.0 if len(found) == 1 else 0.5

    def solves(self, item: Mapping[str, Any]) -> float:
        """Probability that the item succeeds."""
        chance = self.crowding * (1 - SLIP) * (1 - DISTRACTED) ** self.distractions
        for name in item["needs"]:
            chance *= self.follows(name)
        return chance


def expected_score(document: str, items: Sequence[Mapping[str, Any]]) -> float:
    """The document's true score on these items: no slips, no luck."""
    reading = Reading.of(document)
    return sum(map(reading.solves, items)) / len(items)


def is_optimal(document: str) -> bool:
    """Is every rule there with its right value alone, and nothing that distracts or crowds?"""
    reading = Reading.of(document)
    return (
        all(reading.values.get(name) == frozenset({right}) for name, (right, *_) in RULES.items())
        and reading.distractions == 0
        and reading.crowding == 1.0
    )


def make_items(n: int, split: str, *, seed: int = 0) -> list[dict[str, Any]]:
    """Items of one split: half of them need one rule, half two."""
    names = list(RULES)
    items = []
    for index in range(n):
        draws = uniforms("item", seed, split, index)
        first = int(next(draws) * len(names))
        needs = [names[first]]
        if index % 2:
            needs.append(names[(first + 1 + int(next(draws) * (len(names) - 1))) % len(names)])
        items.append({
            "id": f"{split}-{index}", "question": f"Fill in form {split}-{index}: {', '.join(needs)}.",
            "needs": needs, "task_type": needs[0],
        })  # fmt: skip
    return items


def uniforms(*key: object) -> Iterator[float]:
    """Numbers in [0, 1) that are a function of the key alone, in every process."""
    block = 0
    while True:
        digest = hashlib.sha256(repr((*key, block)).encode("utf-8", "backslashreplace")).digest()
        for start in range(0, len(digest), 4):
            yield int.from_bytes(digest[start : start + 4], "big") / 2**32
        block += 1


def roll_out_one(document: str, item: Mapping[str, Any], *, seed: int, reading: Reading | None = None) -> RolloutResult:
    """One rollout; the same arguments give the same result."""
    reading = reading or Reading.of(document)
    draws = uniforms("rollout", document, item["id"], seed)
    missed = [name for name in item["needs"] if next(draws) >= reading.follows(name)]
    spoilt = [next(draws) < DISTRACTED for _ in range(reading.distractions)]
    slipped = next(draws) >= (1 - SLIP) * reading.crowding
    if slipped and not missed:
        missed = [item["needs"][int(next(draws) * len(item["needs"]))]]
    hard = int(not missed and not any(spoilt))
    reason = "" if hard else f"not as asked: {', '.join(missed)}" if missed else "not as asked: distracted"
    return RolloutResult(
        id=str(item["id"]), hard=hard, soft=1.0 if hard else 1 - len(missed) / len(item["needs"]) if missed else 0.0,
        n_turns=1, fail_reason=reason, task_type=item["task_type"], question=item["question"],
        predicted_answer="as asked" if hard else "otherwise",
    )  # fmt: skip


@dataclass
class ScriptedTarget:
    """The frozen model as a batch of rollouts, with a count.

    Args:
        seed: added to the seed of a batch: another model.
        before: called with the number of the rollout before each one; may raise.
    """

    seed: int = 0
    before: Callable[[int], None] | None = None
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    """(document, item id, seed) of each rollout in the order they were asked for."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(
        self,
        document: str,
        items: Sequence[Mapping[str, Any]],
        *,
        seed: int,
        on_result: Callable[[int, RolloutResult], None],
    ) -> list[RolloutResult]:
        reading = Reading.of(document)
        results = []
        for index, item in enumerate(items):
            with self._lock:
                if self.before is not None:
                    self.before(len(self.calls))
                self.calls.append((document, str(item["id"]), seed))
            results.append(roll_out_one(document, item, seed=self.seed + seed, reading=reading))
            on_result(index, results[-1])
        return results
