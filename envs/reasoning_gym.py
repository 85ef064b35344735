"""`reasoning_gym:NAME[,NAME…]`: generated puzzles of the package reasoning-gym, scored by the package.

A split is a data set of the package with its own seed: `create_dataset(NAME, seed=…, size=…)` gives the same tasks. Item `i` of seed `s` is
mostly made from the number `s + i`, so the seeds of two splits stand a million apart.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import gymnasium

from skill_ttrl.answers import find_answer
from skill_ttrl.envs.lookup import SEEDS_PER_SPLIT, SPLIT_BLOCKS
from skill_ttrl.envs.text_env import TextEnv, check_action, check_choice, check_whole, reset_options
from skill_ttrl.errors import EnvError, MissingDependencyError, did_you_mean
from skill_ttrl.signals import FAILURES
from skill_ttrl.types import Task

ENV_ID = "SkillTTRL/ReasoningGym-v0"
SEVERAL_ANSWERS = frozenset(
    "boxnet countdown graph_color jugs knight_swap n_queens palindrome_generation propositional_logic puzzle24 rubiks_cube rush_hour "
    "shortest_path sokoban tower_of_hanoi word_ladder".split()
)
"""Data sets whose tasks have many right answers, so that two right ones need not agree: their answers do not vote."""
MAX_ANSWER = 20_000
"""Longest answer that is scored, in characters."""
_RUNS_LITERALS = frozenset("binary_matrix n_queens spiral_matrix string_insertion".split())
_RUNS_FORMULAS = frozenset(
    "countdown intermediate_integration polynomial_multiplication puzzle24 simple_integration".split()
)
"""Data sets that give answers to Python's `eval`, and to SymPy's `parse_expr`, which calls it."""
_FORMULA = re.compile(
    r"(?:(?<!\w)(?:[A-Za-z]|a?(?:sin|cos|tan)h?|Integral|exp|log|sqrt)(?![A-Za-z_])|(?<!\w)[A-Za-z]{2,30}(?!\w|\s*\()"
    r"|\d{1,12}(?:\.\d{1,12})?(?![\d.])|\)(?!\s*\()|[-+*/(=,\s])*"
)
"""Numbers, words and operators; no word but a usual function is called."""
_POWER = re.compile(r"\*\*\s*(?:-?\d{1,2}|\(-?\d{1,2}(?:/\d{1,2})?\))(?![\d.]|\s*\*\*)")
_NO_FORMULA = ")"


class ReasoningGymEnv(TextEnv):
    """Generated puzzles of reasoning-gym, scored by it.

    The answer is the text in `<answer>` tags, as the package reads it, or else in a box. The reward and `score` are the package's; `won`
    is a score of 1. `info["answer"]` votes, except for data sets whose tasks have several right answers.

    Args:
        names: data sets of the package, separated by commas.
        seed: of the training tasks; those of the other splits have seeds far from it.
        size: tasks of each data set in a split.
        config: settings of the data sets, by name: `{"leg_counting": {"max_animals": 3}}`.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
        EnvError: it has no such data set, or a data set does not take its settings.
    """

    config_defaults: ClassVar[Mapping[str, Any]] = {"rl.reward": "env"}
    splits = tuple(SPLIT_BLOCKS)

    def __init__(
        self, names: str, seed: int = 0, size: int = 500, config: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        super().__init__()
        self._names = [name.strip() for name in names.split(",")]
        known = _library().factory.DATASETS.keys() - {"composite"}
        for name in self._names:
            if name not in known:
                raise EnvError(f"reasoning-gym has no data set {name[:60]!r}.{did_you_mean(name[:60], known)}")
        settings = config or {}
        for name in settings:
            check_choice("data set with settings of its own", name, self._names)
        self._seed, self._size = seed, check_whole("size", size, 1, SEEDS_PER_SPLIT)
        self._settings = {name: json.dumps(settings.get(name, {}), sort_keys=True) for name in self._names}
        for name in self._names:
            self._dataset(name, "train")
        self._played: tuple[str, Any, Mapping[str, Any]] | None = None

    def tasks(self, split: str | None = None) -> list[Task]:
        """`size` tasks of each data set."""
        split = split or "train"
        check_choice("split", split, SPLIT_BLOCKS)
        return [
            Task(
                f"{name}/{split}/{index}",
                ENV_ID,
                {"dataset": name, "split": split, "index": index},
                split=split,
                task_type=name,
            )
            for name in self._names
            for index in range(self._size)
        ]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Show a puzzle: the one in `options`, or a training task drawn with `seed`."""
        super().reset(seed=seed)
        asked = reset_options(ENV_ID, options, ("dataset", "split", "index"))
        name = asked.get("dataset", self._names[int(self.np_random.integers(len(self._names)))])
        check_choice("data set here", name, self._names)
        split, index = asked.get("split", "train"), asked.get("index", int(self.np_random.integers(self._size)))
        check_choice("split", split, SPLIT_BLOCKS)
        index = check_whole("The option index", index, 0, self._size - 1)
        dataset = self._dataset(name, split)
        self._played = name, dataset, dataset[index]
        return self._played[2]["question"], {"source": f"reasoning-gym {name} seed {dataset.seed}", "task_type": name}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the answer in `action`; any text is accepted."""
        if self._played is None:
            raise gymnasium.error.ResetNeeded("Cannot call ReasoningGymEnv.step before ReasoningGymEnv.reset.")
        check_action(ENV_ID, action)
        name, dataset, entry = self._played
        answer = _library().utils.extract_answer(action)
        if answer is None and (found := find_answer(action)) is not None and found.rule == "boxed":
            answer = found.answer
        score = score_answer(name, dataset, answer, entry)
        vote = None if name in SEVERAL_ANSWERS else answer
        return "", score, True, False, {"answer": vote, "won": score >= 1, "score": min(max(score, 0.0), 1.0)}

    def _dataset(self, name: str, split: str) -> Any:
        return _dataset(name, self._seed + SPLIT_BLOCKS[split] * SEEDS_PER_SPLIT, self._size, self._settings[name])


def score_answer(name: str, dataset: Any, answer: str | None, entry: Mapping[str, Any]) -> float:
    """The package's score of an answer; 0 where it raises.

    Some scorers run the answer as Python, and a model wrote it: these get literals and plain formulas only, and for all else the score
    of a text that is neither.
    """
    if answer is not None and len(answer) > MAX_ANSWER:
        answer = None
    elif answer is not None and name in _RUNS_FORMULAS and not _is_formula(answer):
        answer = _NO_FORMULA
    try:
        return float(dataset.score_answer(answer, entry))
    except FAILURES:
        return 0.0


def _is_formula(text: str) -> bool:
    """True for a short formula that is computed at once (no tower of powers) and calls usual functions only."""
    powers = text.count("**")
    small = powers == len(_POWER.findall(text)) and len(re.findall(r"[\d)]\s*\*\*", text)) <= 2
    return len(text) <= 500 and small and _FORMULA.fullmatch(text) is not None


@lru_cache(maxsize=64)
def _dataset(name: str, seed: int, size: int, settings: str) -> Any:
    try:
        dataset = _library().create_dataset(name, **json.loads(settings), seed=seed, size=size)
    except FAILURES as error:
        raise EnvError(
            f"reasoning-gym cannot make {name} with {settings}: {type(error).__name__}: {error!s:.300}"
        ) from None
    if name in _RUNS_LITERALS:  # found before the built-in one
        vars(sys.modules[type(dataset).__module__])["eval"] = ast.literal_eval
    return dataset


def _library() -> Any:
    try:
        import reasoning_gym
        import reasoning_gym.utils
    except ImportError:
        raise MissingDependencyError.for_extra("env.id: reasoning_gym:NAME", "reasoning-gym") from None
    return reasoning_gym
