"""Several versions of a bank in one rollout group: shares, versions, and nothing changed where there is one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.retrieval.bank_view import BankView
from skill_ttrl.stages.training.bank_versions import newest_views, with_bank_versions
from skill_ttrl.stages.training.components import OnRolloutEnd, RolloutFn, ignore
from skill_ttrl.stages.training.metrics import group_metrics
from skill_ttrl.types import Group, Skill, Task, Trajectory

TASKS = [Task("a", "E-v0"), Task("b", "E-v0")]


def rollout_fn(n: int) -> RolloutFn:
    """Scripted: rollouts that say which version they saw, and the seed."""

    def roll_out(
        tasks: Sequence[Task], bank: BankView | None, seed: int, on_rollout_end: OnRolloutEnd = ignore
    ) -> list[Group]:
        version = None if bank is None else bank.snapshot.version
        each = Trajectory(TASKS[0], (), str(seed), "terminated", reward=float(version or 0), bank_version=version)
        return [Group(task, (each,) * n) for task in tasks]

    return roll_out


@pytest.fixture
def bank() -> SkillBank:
    bank = SkillBank(embedder="hash", index="memory")
    bank.add(Skill("one", "One", "first"))
    bank.record_usage("one", success=True)
    bank.add(Skill("two", "Two", "second"))
    bank.record_usage("two", success=True)
    return bank


def test_versions_that_differ_in_counts_alone_are_one(bank: SkillBank) -> None:
    assert [len(view.snapshot) for view in newest_views(bank, 5)] == [2, 1]
    assert [view.snapshot.version for view in newest_views(bank, 1)] == [4]


@given(st.integers(1, 9), st.integers(1, 4))
def test_a_group_is_split_evenly_and_whole(n: int, count: int) -> None:
    bank = SkillBank(embedder="hash", index="memory")
    for name in "abcd":
        bank.add(Skill(name, name, f"text {name}"))
    groups = with_bank_versions(rollout_fn, n, lambda _: newest_views(bank, count))(TASKS, view_of(bank), 7)
    for group, task in zip(groups, TASKS, strict=True):
        versions = [each.bank_version for each in group.trajectories]
        counts = [versions.count(version) for version in dict.fromkeys(versions)]
        assert group.task == task and len(versions) == n and max(counts) - min(counts) <= 1
        assert len(counts) == min(n, count) and versions[0] == bank.version


def test_one_version_samples_what_it_always_did(bank: SkillBank) -> None:
    plain = rollout_fn(4)(TASKS, view_of(bank), 7)
    assert with_bank_versions(rollout_fn, 4, lambda _: newest_views(bank, 1))(TASKS, view_of(bank), 7) == plain
    assert with_bank_versions(rollout_fn, 4, lambda _: [])(TASKS, None, 7) == rollout_fn(4)(TASKS, None, 7)


def test_the_step_says_what_the_versions_earned(bank: SkillBank) -> None:
    groups = with_bank_versions(rollout_fn, 4, lambda _: newest_views(bank, 2))(TASKS, view_of(bank), 7)
    metrics = group_metrics(groups)
    assert (metrics["bank_versions/present_reward"], metrics["bank_versions/older_reward"]) == (4.0, 2.0)
    assert "bank_versions/older_reward" not in group_metrics(rollout_fn(4)(TASKS, view_of(bank), 7))


def view_of(bank: SkillBank) -> BankView:
    return BankView(bank.snapshot(), bank.retriever)
