"""Questions with reference answers, one turn each: `skillrl`'s example of a `SkillEnv`, with its prompts and its scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from skill_ttrl.answers.grade import matches, token_f1
from skill_ttrl.compat.clients import BaseLLMClient
from skill_ttrl.errors import SplitError, did_you_mean
from skill_ttrl.optimize.types import RolloutResult


class SkillEnv(ABC):
    """Items in splits, and how one is rolled out under a document.

    An item is a dictionary of JSON values; `id` names it in records, and where it is missing its place does.
    """

    task_types: Sequence[str] = ()
    """Tags by which the test results are reported."""
    name: str = "skill_env"

    @abstractmethod
    def get_items(self, split: str) -> list[dict[str, Any]]:
        """All items of a split: `train`, `val` or `test`, or as the config names them."""

    @abstractmethod
    def rollout_one(self, *, item: dict[str, Any], skill: str, target_client: BaseLLMClient) -> RolloutResult:
        """Roll out one item under the document `skill`. Called from several threads at once.

        Returns:
            The scored rollout: `hard` 1 or 0, `soft` from 0 to 1; without partial credit `soft = float(hard)`.
        """

    def get_initial_skill(self) -> str:
        """The first document."""
        return ""

    def get_task_types(self) -> list[str]:
        """The tags by which the test results are reported."""
        return list(self.task_types)


NO_SKILL = "You are a helpful assistant. Answer the question concisely."
"""Instructions in the place of an empty document."""


class SimpleQAEnv(SkillEnv):
    """Asks each question once, with the document as the system prompt.

    `hard`: a reference answer stands in the prediction, ignoring case and spacing. `soft`: 1 then, else the best token F1.

    Args:
        train_items: items to train on: `question`, `answers`, and perhaps `id`, `context` and `task_type`.
        val_items: items that the gate decides by.
        test_items: items that the result is reported on.
        max_completion_tokens: longest answer.
        initial_skill: the first document.
    """

    name = "simple_qa"

    def __init__(
        self,
        *,
        train_items: Sequence[dict[str, Any]],
        val_items: Sequence[dict[str, Any]],
        test_items: Sequence[dict[str, Any]],
        max_completion_tokens: int = 512,
        initial_skill: str = "",
    ) -> None:
        self._splits = {"train": list(train_items), "val": list(val_items), "test": list(test_items)}
        self.max_completion_tokens = max_completion_tokens
        self._initial_skill = initial_skill
        types = {str(item["task_type"]) for items in self._splits.values() for item in items if item.get("task_type")}
        self.task_types = sorted(types)

    def get_initial_skill(self) -> str:
        """The first document, as it was handed in."""
        return self._initial_skill

    def get_items(self, split: str) -> list[dict[str, Any]]:
        """The items of a split.

        Raises:
            SplitError: there is no such split.
        """
        if split not in self._splits:
            raise SplitError(f"Unknown split {split!r}.{did_you_mean(split, self._splits)}")
        return self._splits[split]

    def rollout_one(self, *, item: dict[str, Any], skill: str, target_client: BaseLLMClient) -> RolloutResult:
        """Ask the question and score the answer.

        Raises:
            EndpointError: the client got no answer.
        """
        question, context = str(item.get("question") or ""), str(item.get("context") or "")
        answers = references(item.get("answers"))
        system = skill or NO_SKILL
        user = "\n\n".join([*([f"Context:\n{context}"] if context else []), f"Question: {question}", "Answer:"])
        text, _ = target_client.chat(
            system=system, user=user, max_completion_tokens=self.max_completion_tokens, stage="rollout", retries=2
        )
        prediction = (text or "").strip()
        hard = int(matches(prediction, answers))
        shown = [answer[:60] for answer in answers[:3]]
        return RolloutResult(
            id=str(item.get("id", "")),
            hard=hard,
            soft=1.0 if hard else round(token_f1(prediction, answers), 4),
            n_turns=1,
            fail_reason=""
            if hard
            else f"prediction does not match any reference answer (pred={prediction[:80]!r}, refs={shown})",
            task_type=str(item.get("task_type") or ""),
            task_description=str(item.get("task_description") or ""),
            predicted_answer=prediction,
            question=question,
            reference_text=" | ".join(answers),
            target_system_prompt=system,
            target_user_prompt=user,
            conversation=[
                {"role": "system", "content": system},
                {"role": "user", "content": user},
                {"role": "assistant", "content": prediction},
            ],
        )


def references(answers: Any) -> list[str]:
    """The reference answers as texts; a single one may stand without a list."""
    if answers is None or answers == "":
        return []
    return [str(each) for each in answers] if isinstance(answers, list | tuple) else [str(answers)]
