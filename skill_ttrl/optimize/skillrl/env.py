"""The task of a text optimization as its user writes it: items by split, and one scored rollout (`skillrl`'s interface)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from skill_ttrl.optimize.skillrl.clients import BaseLLMClient
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
