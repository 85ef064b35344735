"""`SkillTTRL/QA-v0`: a question is shown, one answer is given, the episode ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium

from skill_ttrl.answers import find_answer
from skill_ttrl.answers.grade import matches, token_f1
from skill_ttrl.config import Source
from skill_ttrl.data.families import QA_ENV_ID, shown_question
from skill_ttrl.data.records import SUFFIXES
from skill_ttrl.data.tasks import as_source, load_tasks
from skill_ttrl.envs.text_env import TextEnv, check_action, check_choice, reset_options
from skill_ttrl.errors import DataError, EnvError
from skill_ttrl.types import Task

OPTIONS = ("question", "answers", "context", "ground_truth")
MARKED = ("tag", "boxed")
"""Rules of `find_answer` by which an answer is set apart from the text around it."""

EVERY = ""
GivenSource = Source | Mapping[str, Any] | str


class QAEnv(TextEnv):
    """Questions with short answers, of which several phrasings may be accepted.

    `reset(options={"question": text, "answers": [text, ...], "context": text})` plays one question; without one the seed draws from the
    environment's own. The prediction is what stands in `<answer>` or a box, else all that was written. It is right if an accepted
    phrasing is part of it, in lower case and with single spaces. The reward is 1 for a right answer, else 0. `info` has `answer` (the
    prediction), `won`, `score` (1, or the best F1 of the words) and `graded`; without accepted phrasings nothing is graded.

    Args:
        family: generated questions of its own (`formats`).
        split: which part of them `reset` draws from.
        data: questions of its own from elsewhere, in place of `family`: a `Source`, its fields as a mapping, its path, a mapping of
            these by split (`{"train": "train.jsonl", "val": ..., "test": ...}`), or a folder with a file for each split.

    Raises:
        ConfigError, DataError: the questions cannot be had; at the first reset without a question, or at `tasks`.
    """

    config_defaults: ClassVar[Mapping[str, Any]] = {"agent.template": "short_answer"}
    question_option = "question"

    def __init__(
        self, family: str = "formats", split: str = "train", data: GivenSource | Mapping[str, GivenSource] | None = None
    ) -> None:
        super().__init__()
        self._split = split
        self._sources = _by_split(f"synthetic:{family}" if data is None else data)
        self.splits = tuple(name for name in self._sources if name)
        self._tasks: Sequence[Task] = ()
        self._question: str | None = None
        self._accepted: list[str] | None = None

    def tasks(self, split: str | None = None) -> Sequence[Task]:
        """The environment's own questions; see `load_tasks`."""
        split = split or self._split
        if self.splits:
            check_choice("split", split, self.splits)
        return load_tasks(self._sources[split if self.splits else EVERY], QA_ENV_ID, split=split)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Show a question: the one in `options`, or one of its own drawn with `seed`."""
        super().reset(seed=seed)
        asked = reset_options(QA_ENV_ID, options, OPTIONS)
        if "question" not in asked:
            self._tasks = self._tasks or self.tasks()
            asked = {**self._tasks[int(self.np_random.integers(len(self._tasks)))].options}
        question, context = asked["question"], asked.get("context") or ""
        if not isinstance(question, str) or not isinstance(context, str):
            raise EnvError(
                f"{QA_ENV_ID} needs a str as question and as context, found {question!r:.60}, {context!r:.60}."
            )
        self._question = shown_question(question, context)
        self._accepted = _accepted(asked)
        return self._question, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the answer in `action`; any text is accepted. The observation after it is empty."""
        if self._question is None:
            raise gymnasium.error.ResetNeeded("Cannot call QAEnv.step before QAEnv.reset.")
        check_action(QA_ENV_ID, action)
        found = find_answer(action)
        answer = (found.answer if found and found.rule in MARKED else action.strip()) or None
        info: dict[str, Any] = {"answer": answer, "graded": self._accepted is not None}
        if self._accepted is None:
            return "", 0.0, True, False, info
        prediction = answer or ""
        right = matches(prediction, self._accepted)
        score = 1.0 if right else round(token_f1(prediction, self._accepted), 4)
        return "", float(right), True, False, {**info, "won": right, "score": score}


def _accepted(options: Mapping[str, Any]) -> list[str] | None:
    """The accepted phrasings: `answers`, else `ground_truth` alone; None where there are none."""
    answers, truth = options.get("answers"), options.get("ground_truth")
    listed = [truth] if answers is None and truth is not None else answers
    if isinstance(listed, str):
        listed = [listed]
    if listed is not None and not (isinstance(listed, list | tuple) and all(isinstance(each, str) for each in listed)):
        raise EnvError(f"{QA_ENV_ID} needs a list of str as answers, found {listed!r:.60}.")
    return list(listed) if listed else None


def _by_split(data: GivenSource | Mapping[str, GivenSource]) -> dict[str, Source]:
    """The sources by split; one source for all of them stands under `EVERY`."""
    if isinstance(data, Mapping) and "path" not in data:
        return {str(name): as_source(each) for name, each in data.items()}
    if isinstance(data, str) and Path(data).is_dir():
        files = {file.stem: str(file) for file in sorted(Path(data).iterdir()) if file.suffix.lower() in SUFFIXES}
        if not files:
            raise DataError(f"{data} holds no question files, such as train.jsonl, val.jsonl and test.jsonl.")
        return {name: as_source(file) for name, file in files.items()}
    return {EVERY: as_source(data)}
