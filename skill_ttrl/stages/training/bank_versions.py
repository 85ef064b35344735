"""Several versions of the skill bank inside one rollout group (`skills.versions_per_group`; FST, GEPA's authors).

The rollouts of a task are split among the newest versions, and the advantage is computed once over all of them: what a version is worth
shows in the rewards of its rollouts, which carry their `bank_version`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.retrieval.bank_view import BankView
from skill_ttrl.stages.training.components import OnRolloutEnd, RolloutFn, ignore
from skill_ttrl.types import Group, Task, derive_seed

CONTENT = ("add", "edit", "replace", "remove", "evict")
"""Changes that a prompt can show; a count of uses is none."""


def newest_views(bank: SkillBank, count: int) -> list[BankView]:
    """The newest `count` versions that differ in their skills, the present one first; fewer where there are fewer."""
    views = [BankView(bank.snapshot(), bank.retriever)]
    for update in reversed(bank.history() if count > 1 else []):
        if len(views) == count or update.version == 1:  # before the first update there is nothing to show
            break
        if any(change.kind in CONTENT for change in update.changes):
            views.append(BankView(bank.at(update.version - 1), bank.retriever))
    return views


def with_bank_versions(
    rollout_fn: Callable[[int], RolloutFn], n: int, views: Callable[[BankView], list[BankView]]
) -> RolloutFn:
    """Roll out each task `n` times, split as evenly as possible among the versions that `views` gives for the present one.

    Args:
        rollout_fn: makes the function that rolls out a task so many times.
        n: rollouts of a task.
        views: versions, the present one first, which gets what cannot be split evenly.
    """

    def roll_out(
        tasks: Sequence[Task], bank: BankView | None, seed: int, on_rollout_end: OnRolloutEnd = ignore
    ) -> list[Group]:
        versions = [None] if bank is None else views(bank)[:n]
        share, rest = divmod(n, len(versions))
        parts = [
            rollout_fn(share + (place < rest))(
                tasks, version, derive_seed(seed, "version", place) if place else seed, on_rollout_end
            )
            for place, version in enumerate(versions)
        ]
        return [_joined(groups) for groups in zip(*parts, strict=True)]

    return roll_out


def _joined(groups: Sequence[Group]) -> Group:
    return replace(groups[0], trajectories=tuple(each for group in groups for each in group.trajectories))
