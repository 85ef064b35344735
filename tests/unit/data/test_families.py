"""Generated families: right, disjoint, the same for every run; noise of the stated size."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import Source
from skill_ttrl.data.families import (
    CONVENTIONS,
    FAMILIES,
    LARGEST_SLIP,
    SIZES,
    Demonstration,
    Family,
    Formats,
    Mixture,
    Operators,
    bank_family,
)
from skill_ttrl.data.tasks import load_demonstrations, load_tasks
from skill_ttrl.envs import make_env
from skill_ttrl.errors import ConfigError, DataError
from tests.format_models import reply, rules_of, stated

OF_NUMBERS = sorted(name for name in FAMILIES if isinstance(FAMILIES.get(name), Family))


def numbers(name: str) -> Family:
    family = FAMILIES.get(name)
    assert isinstance(family, Family)
    return family


RESPONSE = re.compile(r"(\d+;)*<answer>\d+</answer>")


def true_answer(question: str) -> int:
    """Computed without the family's own solution."""
    if after := re.fullmatch(r"Which number comes after (\d{4})\?", question):
        return int(after[1]) + 1
    if sum_of := re.fullmatch(r"Which number plus 1 is (\d{2,3})\?", question):
        return int(sum_of[1]) - 1
    body = question.removeprefix("Compute ").removesuffix(".")
    if "+" in body:
        a, b = map(int, body.split("+"))
        return a + b
    if "*" in body:
        a, b = map(int, body.split("*"))
        return a * b
    a, b = map(int, body.split(" mod "))
    return a % b


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_references_and_clean_demonstrations_are_right(name: str) -> None:
    family = numbers(name)
    for split in family.sizes:
        for task in family.problems(split, "E-v0"):
            assert task.ground_truth == str(true_answer(task.options["question"]))
            assert (task.env_id, task.split, task.task_type) == ("E-v0", split, family.task_type)
            assert set(task.options) <= {"question", "check"}  # the answer is not among what the environment shows
            assert task.options.get("check") in (None, f"x + 1 = {int(task.ground_truth) + 1}")
    for prompt, response, *_ in family.demonstrations(noise=0):
        assert RESPONSE.fullmatch(response)
        assert response.endswith(f"<answer>{true_answer(prompt)}</answer>")


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_splits_are_disjoint_and_of_the_stated_size(name: str) -> None:
    family = numbers(name)
    questions = {split: {task.options["question"] for task in family.problems(split, "E")} for split in family.sizes}
    assert {split: len(found) for split, found in questions.items()} == dict(family.sizes)
    assert len(set.union(*questions.values())) == sum(family.sizes.values())
    assert {shown.prompt for shown in family.demonstrations()} == questions["demos"]
    ids = [task.id for split in family.sizes for task in family.problems(split, "E")]
    assert len(set(ids)) == len(ids)


def test_noise_has_the_stated_rate_and_size() -> None:
    add = numbers("add")
    clean, noisy = add.demonstrations(noise=0), add.demonstrations(seed=1, noise=0.2)
    offsets = []
    for (prompt, right, *_), (same_prompt, response, *_) in zip(clean, noisy, strict=True):
        assert prompt == same_prompt and RESPONSE.fullmatch(response)
        offsets.append(int(response.split(";")[0]) - int(right.split(";")[0]))
    slips = [offset for offset in offsets if offset]
    assert 0.17 < len(slips) / len(offsets) < 0.23
    assert {abs(offset) for offset in slips} == set(range(1, LARGEST_SLIP + 1))
    assert 0.42 < sum(offset < 0 for offset in slips) / len(slips) < 0.55
    all_right = sum(one == other for one, other in zip(clean, noisy, strict=True)) / len(clean)
    assert abs(all_right - 0.8**3) < 0.03


@given(seed=st.integers(0, 2**32), noise=st.floats(0, 1))
def test_any_noise_gives_well_formed_demonstrations(seed: int, noise: float) -> None:
    family = numbers("add")
    drawn = family.demonstrations(seed, noise, split="test")
    assert all(RESPONSE.fullmatch(response) for _, response, *_ in drawn)
    assert drawn == family.demonstrations(seed, noise, split="test")


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"Unknown family 'ad'\. Did you mean 'add'\?"):
        numbers("ad")
    with pytest.raises(DataError, match=r"'add' has no split 'tset'\. Did you mean 'test'\?"):
        numbers("add").problems("tset", "E")


OPERATORS = Operators(curriculum=(Mixture(3000, rule=0.4, stated=0.15, told=0.05), Mixture(500, echo=0.5, recite=0.5)))
RULE = re.compile(r"(\w+) ([+*-])(\d)")


def value(rule: str, x: int) -> int:
    """Computed without the family's own arithmetic."""
    found = RULE.fullmatch(rule)
    assert found
    return int(eval(f"({x} {found[2]} {int(found[3])}) % 10"))


def test_an_answer_follows_from_the_skill_and_from_nothing_else_in_the_problem() -> None:
    skills = {skill.title: skill.text for skill in bank_family("operators")}
    assert len(skills) == 80
    for split in ("train", "test"):
        tasks = OPERATORS.problems(split, "E-v0")
        assert len(tasks) == 400 and len({task.id for task in tasks}) == 400
        for task in tasks:
            _, name, x = task.options["question"].rstrip(".").split(" ")
            assert task.ground_truth == str(value(skills[name], int(x)))
            assert not RULE.search(task.options["question"])


def test_a_series_states_the_rule_once_and_asks_another_digit_then() -> None:
    known = {skill.title for skill in bank_family("operators")}
    for task in OPERATORS.problems("series-test", "E-v0"):
        stated, _, first = task.options["question"].partition(". ")
        (then,) = task.options["then"]
        name, x = then.removeprefix("Compute ").rstrip(".").split(" ")
        assert stated.startswith(f"{name} ") and name not in known
        assert first.startswith(f"Compute {name} ") and first != then
        assert task.ground_truth == str(value(stated, int(x)))


@pytest.mark.slow
def test_held_out_names_are_in_no_demonstration_and_no_training_problem() -> None:
    shown = OPERATORS.demonstrations(seed=3)
    text = " ".join(str(demonstration) for demonstration in shown if not _is_echo(demonstration))
    text += str(OPERATORS.problems("train", "E")) + str(OPERATORS.problems("series-train", "E"))
    held_out = OPERATORS.names["test"] + OPERATORS.names["series-test"]
    assert len(set(held_out)) == 80 and not [name for name in held_out if re.search(rf"\b{name}\b", text)]
    assert not set(OPERATORS.names["train"]) & set(OPERATORS.names["series-train"])
    assert shown == OPERATORS.demonstrations(seed=3) != OPERATORS.demonstrations(seed=4)


def _is_echo(shown: Demonstration) -> bool:
    return sorted(shown.prompt) == sorted(shown.response)


def test_demonstrations_follow_what_they_are_shown_or_guess() -> None:
    shown = OPERATORS.demonstrations(seed=0)[:3000]
    kinds = {"right": 0, "guess": 0, "told": 0, "note": 0}
    guesses = []
    for demonstration in shown:
        name, x = demonstration.prompt.rstrip(".").split(" ")[-2:]
        written = demonstration.response.rpartition("</skill_ops>")[2]
        rule, _, answer = written.partition(";")
        assert answer == f"<answer>{value(rule, int(x))}</answer>"
        known = [*demonstration.skills, *sum(demonstration.told, ()), demonstration.prompt.partition(".")[0]]
        if rule in known:
            kinds["told" if demonstration.told else "right"] += 1
        else:
            kinds["guess"] += 1
            guesses.append(value(rule, int(x)))
            assert not any(text.startswith(f"{name} ") for text in known)
        if "<generate>" in demonstration.response:
            kinds["note"] += 1
            assert f"<generate>{rule}</generate>" in demonstration.response
    assert kinds["right"] > 1500 and kinds["guess"] > 700 and kinds["told"] > 200 and kinds["note"] > 80
    assert max(guesses.count(digit) for digit in range(10)) < 2 * len(guesses) / 10  # each of the ten alike


def test_the_shuffled_bank_has_the_same_skills_with_the_rules_of_others() -> None:
    right, wrong = bank_family("operators"), bank_family("operators-shuffled")
    assert [skill.id for skill in right] == [skill.id for skill in wrong]
    for one, other in zip(right, wrong, strict=True):
        assert [value(one.text, x) for x in range(10)] != [value(other.text, x) for x in range(10)]
    rules = sorted(skill.text.partition(" ")[2] for skill in right)
    assert rules == sorted(skill.text.partition(" ")[2] for skill in wrong)


FORMATS = Formats()


def accuracy(document: str, split: str = "test") -> float:
    env, items = make_env("qa"), FORMATS.items(split)
    rewards = []
    for item, task in zip(items, FORMATS.problems(split, "SkillTTRL/QA-v0"), strict=True):
        assert env.reset(options=dict(task.options))[0] == item.question
        rewards.append(float(env.step(reply(item, document))[1]))
    return sum(rewards) / len(rewards)


def test_each_rule_of_a_document_makes_its_own_questions_right() -> None:
    names = [each.name for each in CONVENTIONS]
    assert accuracy("") == accuracy(rules_of()) == 0.0
    assert accuracy(rules_of(*names)) == accuracy(rules_of(*names), "val") == 1.0
    for name in names:
        assert accuracy(rules_of(name)) == pytest.approx(1 / len(names))
    assert [each.name for each in CONVENTIONS if stated(each, rules_of("date", "list"))] == ["date", "list"]


def test_splits_share_nothing_and_the_first_tasks_are_of_all_types() -> None:
    items = {split: FORMATS.items(split) for split in SIZES}
    every = [item.id for own in items.values() for item in own]
    questions = [item.question for own in items.values() for item in own]
    assert len(set(every)) == len(set(questions)) == len(every) == len(CONVENTIONS) * sum(SIZES.values())
    source = Source(path="synthetic:formats", limit=len(CONVENTIONS))
    assert {task.task_type for task in load_tasks(source, "SkillTTRL/QA-v0", split="train")} == {
        each.name for each in CONVENTIONS
    }
    assert FORMATS.items("test") == Formats().items("test")
    shown = load_demonstrations(source)[0]
    assert shown.prompt.endswith("open?") and shown.response.count("-") == 2
    first = FORMATS.items("train")[0].drawn
    assert (first.plain, first.formatted) == ("October 12, 1953", "1953-10-12")
