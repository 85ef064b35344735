"""`synthetic:formats`: a reader who follows the rules of a document is right where the document states them."""

from __future__ import annotations

import pytest

from skill_ttrl.config import Source
from skill_ttrl.data.families import CONVENTIONS, SIZES, Formats
from skill_ttrl.data.tasks import load_demonstrations, load_tasks
from skill_ttrl.envs import make_env

FAMILY = Formats()


def accuracy(document: str, split: str = "test") -> float:
    env, items = make_env("qa"), FAMILY.items(split)
    rewards = []
    for item, task in zip(items, FAMILY.problems(split, "SkillTTRL/QA-v0"), strict=True):
        assert env.reset(options=dict(task.options))[0] == item.question
        rewards.append(float(env.step(item.answer(document))[1]))
    return sum(rewards) / len(rewards)


def test_each_rule_of_a_document_makes_its_own_questions_right() -> None:
    names = [each.name for each in CONVENTIONS]
    assert accuracy("") == accuracy(FAMILY.document([])) == 0.0
    assert accuracy(FAMILY.document()) == accuracy(FAMILY.document(), "val") == 1.0
    for name in names:
        assert accuracy(FAMILY.document([name])) == pytest.approx(1 / len(names))
    assert [each.name for each in CONVENTIONS if each.stated(FAMILY.document(["date", "list"]))] == ["date", "list"]


def test_splits_share_nothing_and_the_first_tasks_are_of_all_types() -> None:
    items = {split: FAMILY.items(split) for split in SIZES}
    every = [item.id for own in items.values() for item in own]
    questions = [item.question for own in items.values() for item in own]
    assert len(set(every)) == len(set(questions)) == len(every) == len(CONVENTIONS) * sum(SIZES.values())
    source = Source(path="synthetic:formats", limit=len(CONVENTIONS))
    assert {task.task_type for task in load_tasks(source, "SkillTTRL/QA-v0", split="train")} == {
        each.name for each in CONVENTIONS
    }
    assert FAMILY.items("test") == Formats().items("test")
    shown = load_demonstrations(source)[0]
    assert shown.prompt.endswith("open?") and shown.response.count("-") == 2
    first = FAMILY.items("train")[0].drawn
    assert (first.plain, first.formatted) == ("October 12, 1953", "1953-10-12")
