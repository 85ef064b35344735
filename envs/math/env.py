"""`SkillTTRL/Math-v0`: a problem is shown, one answer is given, the episode ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from skill_ttrl.answers import correct, find_answer, stands_in
from skill_ttrl.config import Source
from skill_ttrl.data.tasks import CHECK, MATH_ENV_ID, as_source, load_tasks
from skill_ttrl.envs.text_env import TextEnv, reset_options
from skill_ttrl.errors import ConfigError, EnvError
from skill_ttrl.skills.ops import BLOCK, OutputParser
from skill_ttrl.types import Task, content

_OPTIONS = ("question", "then", "ground_truth", CHECK)


class MathEnv(TextEnv):
    """Math problems, one answer each, or short series of problems.

    `reset(options={"question": text, "ground_truth": answer or None})` plays one problem; without a question the seed draws
    one from the environment's own. `"then": [text, ...]` makes it a series: each step shows the next problem, and the
    answer to the last one is what counts. The reward is 1 when the answer found in the action is graded right (`answers.correct`), else 0; with
    no ground truth nothing is graded and the reward is 0. `check` is for `rl.reward: verify` and never shown. `info` has `answer` (what was found, or None), `answer_rule` (where: see `answers.find_answer`)
    and `graded`.

    Args:
        family: generated problems of its own (`add`, `next`, `plus_one`).
        split: which part of them `reset` draws from.
        source: problems of its own from elsewhere: a `Source`, its fields as a mapping, or its path; takes the place
            of `family`.
        last_number: take the last number of an action that gives no answer in any other way.
        copies: False: an answer that stands in its question (`answers.stands_in`) is none. A weak model repeats the question, and its
            votes then teach it to. Only for problems whose answers do not stand in their questions.

    Raises:
        ConfigError, DataError: the problems cannot be had; at the first reset without a question, or at `tasks`.
    """

    question_option = "question"

    def __init__(
        self,
        family: str = "add",
        split: str = "train",
        source: Source | Mapping[str, Any] | str | None = None,
        last_number: bool = False,
        copies: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("last_number", last_number), ("copies", copies)):
            if not isinstance(value, bool):
                raise ConfigError(f"{MATH_ENV_ID} needs {name} true or false, found {value!r}.")
        self._split = split
        self._last_number = last_number
        self._copies = copies
        self._source = as_source(f"synthetic:{family}" if source is None else source)
        self._tasks: Sequence[Task] = ()
        self._question: str | None = None
        self._ground_truth: str | None = None
        self._then: list[str] = []

    def tasks(self, split: str | None = None) -> Sequence[Task]:
        """The environment's own problems; see `load_tasks`."""
        return load_tasks(self._source, MATH_ENV_ID, split=split or self._split)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Show a problem: the one in `options`, or one of its own drawn with `seed`."""
        super().reset(seed=seed)
        options = reset_options(MATH_ENV_ID, options, _OPTIONS)
        if "question" in options:
            question, truth = options["question"], options.get("ground_truth")
        else:
            self._tasks = self._tasks or self.tasks()
            task = self._tasks[int(self.np_random.integers(len(self._tasks)))]
            question, truth = task.options["question"], task.ground_truth
        if not isinstance(question, str) or not isinstance(truth, str | None):
            raise EnvError(
                f"{MATH_ENV_ID} needs a str as question and a str or None as ground_truth, found "
                f"{type(question).__name__} and {type(truth).__name__}."
            )
        then = options.get("then", [])
        if not isinstance(then, list) or not all(isinstance(text, str) for text in then):
            raise EnvError(f"{MATH_ENV_ID} needs a list of str as then, found {then!r}.")
        self._question, self._ground_truth = question, truth
        self._then = list(then)
        return question, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Grade the answer in `action`; any text is accepted. After the last problem the observation is empty."""
        if self._question is None:
            raise gymnasium.error.ResetNeeded("Cannot call MathEnv.step before MathEnv.reset.")
        if f"<{BLOCK}" in action.lower():  # what stands in operations on the skill bank is no answer
            found = OutputParser(last_number=self._last_number).parse(action)
            answer, rule = found.answer, found.answer_rule
        else:
            stated = find_answer(content(action), last_number=self._last_number)
            answer, rule = (stated.answer, stated.rule) if stated else (None, None)
        if not self._copies and answer is not None and stands_in(answer, self._question):
            answer = None
        info = {"answer": answer, "answer_rule": rule, "graded": self._ground_truth is not None}
        if self._then:
            self._question = self._then.pop(0)
            return self._question, 0.0, False, False, info
        right = correct([(answer, self._ground_truth)])[0]
        return "", float(right), True, False, info
