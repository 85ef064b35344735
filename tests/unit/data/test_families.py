"""Generated families: right, disjoint, the same for every run; noise of the stated size."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.data.families import FAMILIES, LARGEST_SLIP, Family
from skill_ttrl.errors import ConfigError, DataError

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
    family = numbers("multiply")
    drawn = family.demonstrations(seed, noise, split="test")
    assert all(RESPONSE.fullmatch(response) for _, response, *_ in drawn)
    assert drawn == family.demonstrations(seed, noise, split="test")


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"Unknown family 'ad'\. Did you mean 'add'\?"):
        numbers("ad")
    with pytest.raises(DataError, match=r"'add' has no split 'tset'\. Did you mean 'test'\?"):
        numbers("add").problems("tset", "E")
