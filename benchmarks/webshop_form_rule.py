"""A rule over WebShop's form for small policies: what shopping is worth to who reads and writes the very texts of such a policy, and learns nothing.

    skillttrl evaluate webshop_form_rule:FormRule --env webshop --split test     # with benchmarks/ on PYTHONPATH
    python benchmarks/webshop_agents.py scores                                           # beside the other agents

It reads `agent.observations: webshop` and nothing else, and writes that form's actions. The likeliest result by the expert's published weights is
opened, one that has just the wanted values is bought, and when the steps run out the best that was seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.agents.observations import WEBSHOP
from skill_ttrl.envs.webshop.expert import STEPS, WEIGHTS, read_task
from skill_ttrl.types import Step

CEILINGS = {"price 4": 1.0, "price 3": 2 / 3, "price 2": 1 / 3, "unpriced": 1.0}
"""Price → how well it goes with a ceiling that was drawn as published (`expert.in_window`)."""
_UNIT = re.compile(r"(?:word|result|price) \d+|\S+")
_RESULT = re.compile(r"((?:(?!result ).)*?)(result \d+)")


@dataclass(frozen=True)
class Wish:
    """An instruction, in the form's words."""

    kind: tuple[str, ...]
    """Words of what is wanted, without the attributes before it."""
    attributes: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]
    """Words of each wanted value."""


@dataclass
class Result:
    """A result of the search."""

    name: str
    odds: float
    """Logarithm, by title, price and place."""
    priced: bool
    values: tuple[str, ...] = ()
    """To be chosen, as they are written."""
    part: float = 0.5
    """Of the wanted values that they fulfil."""
    fits: bool = False
    """It has exactly the options that are wanted."""
    opened: bool = False


def units(text: str) -> tuple[str, ...]:
    """The words of the form; `word 3` is one."""
    return tuple(_UNIT.findall(text))


def read_wish(text: str) -> Wish:
    """The instruction, from the first observation."""
    said = units(text.removeprefix("<task>"))
    said = said[:-1] if said[-1:] == ("ceiling",) else said
    options: list[tuple[str, ...]] = []
    if "is" in said:
        first = said.index("is")
        start = max((at for at in range(first) if said[at] == "with"), default=first)
        said, tail = said[:start], said[start:]
        starts = [at for at, unit in enumerate(tail) if unit == "is"]
        for place, at in enumerate(starts):
            rest = tail[at + 1 : starts[place + 1] if place + 1 < len(starts) else None]
            ends = [end for end in range(len(rest) - 1) if rest[end : end + 2] == ("comma", "and")]
            value = rest[: ends[-1]] if place + 1 < len(starts) and ends else rest
            options.append(tuple(unit for unit in value if unit.startswith("word")))
    end = min((at for at, unit in enumerate(said) if unit in ("with", "for")), default=len(said))
    thing, after = said[:end], tuple(unit for unit in said[end:] if unit.startswith("word"))
    last = max((at for at, unit in enumerate(thing) if unit == "comma"), default=-1) + 1
    head = [unit for unit in thing[last:] if unit.startswith("word")]
    skipped = 2 if len(head) > 2 else 0
    before = tuple(unit for unit in thing[:last] if unit.startswith("word"))
    return Wish(tuple(head[skipped:]), (*before, *head[:skipped], *after), tuple(options))


def read_results(text: str, wish: Wish) -> list[Result]:
    """The results of a page, with their odds."""
    found = []
    for shown, name in _RESULT.findall(text.removeprefix("results")):
        said, price = (
            set(units(shown)),
            [CEILINGS.get(unit, 0.0) for unit in units(shown) if not unit.startswith("word") and unit != "to"],
        )
        fit = sum(price) / len(price)
        place = int(name.removeprefix("result "))
        odds = WEIGHTS.place * math.log(place) + WEIGHTS.price * math.log(fit + 0.01)
        odds += WEIGHTS.thing * _share(wish.kind, said) + WEIGHTS.attributes * _share(wish.attributes, said)
        found.append(Result(name, odds, fit > 0))
    return found


def choose(text: str, wish: Wish, result: Result) -> None:
    """Choose values on the page of a result, and note how well they fit."""
    options = [
        [value.strip() for value in option.partition(" is ")[2].split("comma")] for option in text.split("option ")[1:]
    ]
    offered = [[value for value in option if value] for option in options]
    chosen: list[str] = []
    exact, used = 0, set[int]()
    for wanted in wish.options:
        rated = [
            (units(value) == wanted, _share(wanted, set(units(value))), -len(units(value)), number, value)
            for number, values in enumerate(offered)
            if number not in used
            for value in values
            if value != "other"
        ]
        best = max(rated, default=None)
        if best is not None and (best[0] or best[1] >= 0.5):
            exact += best[0]
            used.add(best[3])
            chosen.append(best[4])
    result.values, result.opened = tuple(chosen), True
    result.part = len(chosen) / len(wish.options) if wish.options else 1.0
    result.fits = exact == len(wish.options) == len(offered)


def _share(wanted: Sequence[str], said: set[str]) -> float:
    return sum(unit in said for unit in wanted) / len(wanted) if wanted else 0.0


class FormRule:
    """Shops by the form's texts alone, the same with every seed."""

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `ScriptedAgent.start`."""
        self._steps: list[Step] = []
        self._wish: Wish | None = None
        self._results: list[Result] = []
        self._at: Result | None = None
        self._plan: list[str] = []

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """See `ScriptedAgent.act`."""
        admissible = tuple(info["admissible_commands"])
        scene = AgentInput(observation, tuple(self._steps), read_task(info), admissible)
        possible = WEBSHOP.actions(scene) if WEBSHOP.actions is not None else None
        assert possible is not None
        written = self._write(WEBSHOP.observe(scene), possible.choices)
        action = possible.read(written) or ""
        self._steps.append(Step(observation, action, 0.0, False, False, admissible_actions=admissible))
        return action

    def _write(self, text: str, choices: Sequence[str]) -> str:
        if self._wish is None:
            self._wish = read_wish(text)
            wanted = [*self._wish.kind, *(unit for value in self._wish.options for unit in value)]
            return f"search {' '.join(wanted or self._wish.attributes)}"
        if self._plan:
            return self._plan.pop(0)
        if text.startswith("results"):
            self._results = read_results(text, self._wish)
        if "buy" in choices and self._at is not None:
            return self._judge(text, self._at)
        return self._open()

    def _open(self) -> str:
        """Open the likeliest result that was not opened, if the best one can be bought after it; else that."""
        looks = [each for each in self._results if not each.opened and each.priced]
        best = self._best()
        may = looks and self._left() >= 2 + self._cost(best)
        self._at = max(looks, key=lambda each: each.odds) if may else best
        return self._at.name

    def _judge(self, text: str, at: Result) -> str:
        """On a result's page: buy it, or go back to look at another."""
        assert self._wish is not None
        if not at.opened:
            choose(text, self._wish, at)
            best = self._best()
            if not (at.fits and at.priced) and self._left() >= 1 + self._cost(best) + 2 * (best is at):
                return "previous"
        self._plan = [*at.values, "buy"]
        return self._plan.pop(0)

    def _left(self) -> int:
        return STEPS - len(self._steps)

    def _best(self) -> Result:
        return max(
            self._results,
            key=lambda each: each.part + 0.5 * (each.fits and each.priced) - 0.1 * (not each.opened) + 0.05 * each.odds,
        )

    def _cost(self, result: Result) -> int:
        assert self._wish is not None
        return 2 + len(result.values if result.opened else self._wish.options)
