"""Operator problems: their rules stand only in the bank, held-out names nowhere else."""

from __future__ import annotations

import re

import pytest

from skill_ttrl.data.families import Demonstration, Mixture, Operators, bank_family

FAMILY = Operators(curriculum=(Mixture(3000, rule=0.4, stated=0.15, told=0.05), Mixture(500, echo=0.5, recite=0.5)))
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
        tasks = FAMILY.problems(split, "E-v0")
        assert len(tasks) == 400 and len({task.id for task in tasks}) == 400
        for task in tasks:
            _, name, x = task.options["question"].rstrip(".").split(" ")
            assert task.ground_truth == str(value(skills[name], int(x)))
            assert not RULE.search(task.options["question"])


def test_a_series_states_the_rule_once_and_asks_another_digit_then() -> None:
    known = {skill.title for skill in bank_family("operators")}
    for task in FAMILY.problems("series-test", "E-v0"):
        stated, _, first = task.options["question"].partition(". ")
        (then,) = task.options["then"]
        name, x = then.removeprefix("Compute ").rstrip(".").split(" ")
        assert stated.startswith(f"{name} ") and name not in known
        assert first.startswith(f"Compute {name} ") and first != then
        assert task.ground_truth == str(value(stated, int(x)))


@pytest.mark.slow
def test_held_out_names_are_in_no_demonstration_and_no_training_problem() -> None:
    shown = FAMILY.demonstrations(seed=3)
    text = " ".join(str(demonstration) for demonstration in shown if not _is_echo(demonstration))
    text += str(FAMILY.problems("train", "E")) + str(FAMILY.problems("series-train", "E"))
    held_out = FAMILY.names["test"] + FAMILY.names["series-test"]
    assert len(set(held_out)) == 80 and not [name for name in held_out if re.search(rf"\b{name}\b", text)]
    assert not set(FAMILY.names["train"]) & set(FAMILY.names["series-train"])
    assert shown == FAMILY.demonstrations(seed=3) != FAMILY.demonstrations(seed=4)


def _is_echo(shown: Demonstration) -> bool:
    return sorted(shown.prompt) == sorted(shown.response)


def test_demonstrations_follow_what_they_are_shown_or_guess() -> None:
    shown = FAMILY.demonstrations(seed=0)[:3000]
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
