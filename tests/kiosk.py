"""A small shop whose policy writes a form of its own: results by number, queries in the words of the task. For tests only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import gymnasium

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.agents.observations import WORDS, Form, FormActions, Slot
from skill_ttrl.envs import TextEnv
from skill_ttrl.types import Task

KIOSK = "tests.kiosk:Kiosk-v0"
WANTED = list(itertools.product(("red", "blue", "green"), ("mug", "lamp", "vase", "bowl")))
ITEMS = {f"click[b{number:02}]": " ".join(words) for number, words in enumerate(WANTED)}
SEARCH = "search[<your query>]"
MAX_STEPS = 4


class Kiosk(TextEnv):
    """Find what is asked for by its words, and buy it."""

    def tasks(self, split: str | None = None) -> list[Task]:
        found = [
            Task(f"{name}/{number}", KIOSK, {"want": " ".join(words)}, split=name, task_type=words[1])
            for number, words in enumerate(WANTED)
            for name in ["test" if number % 4 == 0 else "train"]
        ]
        return [each for each in found if split in (None, each.split)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._want, self._steps, self._found = str((options or {"want": "red mug"})["want"]), 0, list[str]()
        return f"Welcome! Buy a {self._want} please.", self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        query = re.fullmatch(r"search\[(.+)\]", action)
        won = action in self._found and ITEMS[action] == self._want
        if query is not None:
            words = set(query[1].split())
            self._found = sorted(ITEMS, key=lambda item: (-len(words & set(ITEMS[item].split())), item))[:3]
            said = " [SEP] ".join(f"{item[6:-1]} {ITEMS[item]}" for item in self._found)
        else:
            said = "Sold." if action in self._found else "Nothing happens."
        over = action in self._found
        return said, float(won), over, not over and self._steps >= MAX_STEPS, self._info()

    def _info(self) -> dict[str, Any]:
        return {"admissible_commands": [*self._found, "click[help]", SEARCH]}


class Buyer:
    """Searches for what is wanted with a word more than the task has, and buys it."""

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        self._want = " ".join(words(observation))

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        wanted = (item for item in info["admissible_commands"] if ITEMS.get(item) == self._want)
        return next(wanted, f"search[{self._want} cheap]")

    def overruled(self, action: str) -> None:
        """It goes by what it sees alone."""


def words(welcome: str) -> list[str]:
    """The words of a task."""
    asked = re.search(r"Buy a (\w+) (\w+)", welcome)
    return [] if asked is None else [*asked.groups()]


def observe(scene: AgentInput) -> str:
    first = scene.steps[0].observation if scene.steps else scene.observation
    own = {word: f"word {place}" for place, word in enumerate(words(first), start=1)}
    if not scene.steps:
        return f"<task> {' '.join(own.values())}"
    found = scene.observation.split(" [SEP] ")
    told = [[own[word] for word in item.split() if word in own] for item in found]
    return " ".join(text for place, said in enumerate(told, start=1) for text in (f"result {place}", *said))


def actions(scene: AgentInput) -> FormActions:
    """Results by number, and a query in the task's words; help cannot be asked for."""
    first = scene.steps[0].observation if scene.steps else scene.observation
    own = {f"word {place}": word for place, word in enumerate(words(first), start=1)}
    found = [action for action in scene.admissible_actions if action in ITEMS]
    slot = Slot(f"search {WORDS}", f"search[{WORDS}]", own) if SEARCH in scene.admissible_actions else None
    return FormActions({f"result {place}": action for place, action in enumerate(found, start=1)}, slot)


FORM = Form(observe, actions, ("search word 1 word 2 result 1 result 3",))
gymnasium.register("Kiosk-v0", entry_point="tests.kiosk:Kiosk")
