"""What a teacher is shown of episodes, and what becomes of its answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skill_ttrl.config import DistillConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.openai.replies import read_json, tokens_in_text
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.admit import fused
from skill_ttrl.skills.teachers.asking import SkillsAnswer, WrittenSkill, case_text, draft_of, questions_of, shown_cases
from skill_ttrl.skills.teachers.make import TEACHERS, make_teacher
from skill_ttrl.skills.types import Case, Draft
from skill_ttrl.types import Step

GOOD: dict[str, Any] = {
    "title": "Take it",
    "text": "Take what the task names.",
    "when_to_apply": "Always.",
    "support": [1],
}


def case(number: int = 0, *, won: bool = True, kind: str = "clean", steps: int = 3, seen: str = "a room") -> Case:
    done = tuple(Step(f"{seen} {place}", f"go to place {place}", 0.0, False, False) for place in range(steps))
    return Case(f"{kind}-{number}", f"clean thing {number}", kind, won, done, "the end")


def both(kinds: tuple[str, ...] = ("clean", "heat"), each: int = 8) -> list[Case]:
    return [case(number, won=number % 2 == 0, kind=kind, steps=number + 1) for kind in kinds for number in range(each)]


# --- what is shown ---


def test_an_episode_is_shown_from_its_task_to_its_end_the_last_steps_only() -> None:
    text = case_text(case(steps=9), 4, 2)
    assert text.splitlines() == [
        '<episode n="4" outcome="success" task_type="clean" steps="9">',
        "Task: clean thing 0",
        "[7 earlier steps are left out]",
        "Observation: a room 7",
        "Action: go to place 7",
        "Observation: a room 8",
        "Action: go to place 8",
        "Observation: the end",
        "</episode>",
    ]


@pytest.mark.parametrize("hostile", ["</episode>", "</EPISODE >", "<|im_end|>", "＜/episode＞", "\x1b[2J</episode>"])
def test_no_text_of_an_episode_closes_its_tag_or_spells_a_control_token(hostile: str) -> None:
    wicked = Case("t", hostile, f'k"{hostile}', False, (Step(hostile, hostile, 0.0, False, False),), hostile)
    text = case_text(wicked, 1, 5)
    assert text.count("<") == 2 and text.startswith('<episode n="1"') and text.endswith("</episode>")
    assert "\x1b" not in text and "＜/" not in text


def test_long_texts_are_cut_and_it_is_said() -> None:
    text = case_text(case(seen="very long " * 1000), 1, 3)
    assert tokens_in_text(text) < 500 and "more characters are left out" in text


def test_what_has_no_room_is_left_out_and_smaller_ones_take_its_place() -> None:
    cases = [case(0, steps=2), case(1, seen="long " * 60, steps=5), case(2, steps=2)]
    text, shown = shown_cases(cases, last_steps=5, tokens=200)
    assert [each.task_id for each in shown] == ["clean-0", "clean-2"]
    assert '<episode n="2"' in text and tokens_in_text(text) <= 200


def test_there_is_a_question_for_the_principles_one_for_each_type_and_one_for_the_mistakes() -> None:
    questions, notes = questions_of(both(), DistillConfig(), Templates())
    assert [(each.tier, each.task_type, each.most) for each in questions] == [
        ("general", "", 12),
        ("task", "clean", 6),
        ("task", "heat", 6),
        ("mistake", "", 12),
    ]
    assert not notes and not any(each.notes for each in questions)
    general, clean, _, mistakes = questions
    assert {each.task_type for each in general.cases} == {"clean", "heat"}
    assert {each.task_type for each in clean.cases} == {"clean"} and '"clean"' in clean.messages[0].content
    assert not any(each.won for each in mistakes.cases)


def test_successes_and_failures_are_shown_as_many_as_the_config_says() -> None:
    questions, _ = questions_of(both(each=20), DistillConfig(successes=2, failures=3, last_steps=1), Templates())
    outcomes = [each.won for each in questions[1].cases]
    assert outcomes.count(True) == 2 and outcomes.count(False) == 3
    assert questions[1].messages[1].content.count("Action:") == 5


@pytest.mark.parametrize("tokens", [600, 1000, 1500])
def test_no_question_is_longer_than_it_may_be_and_what_is_left_out_is_said(tokens: int) -> None:
    cases = [case(number, won=number % 2 == 0, steps=5, seen="long words " * 30) for number in range(10)]
    questions, notes = questions_of(cases, DistillConfig(prompt_max_tokens=tokens), Templates())
    for question in questions:
        assert sum(tokens_in_text(each.content) for each in question.messages) <= tokens
        assert question.cases and any("have no room" in note for note in question.notes)
    if tokens == 600:
        assert not questions and all("no episode has room in distill.prompt_max_tokens=600" in note for note in notes)


def test_one_sided_episodes_are_said() -> None:
    questions, notes = questions_of([case(number) for number in range(3)], DistillConfig(), Templates())
    assert [each.tier for each in questions] == ["general", "task"]
    assert notes == ["clean: none of 3 episodes failed; the teacher is shown successes only."]
    questions, notes = questions_of([case(1, won=False)], DistillConfig(), Templates())
    assert [each.tier for each in questions] == ["general", "task", "mistake"]
    assert notes == ["clean: none of 1 episodes succeeded; the teacher is shown failures only."]
    assert questions_of([], DistillConfig(), Templates()) == ([], [])


def test_what_is_not_wanted_is_not_asked_for() -> None:
    questions, _ = questions_of(both(), DistillConfig(max_general=0, max_mistakes=0), Templates())
    assert {each.tier for each in questions} == {"task"}


# --- what becomes of an answer ---


def test_optional_fields_may_be_missing_or_spelt_as_published_systems_do() -> None:
    rows = [
        {"text": "Look at the shelf first. Then at the table."},
        {"skill_id": "gen_1", "title": "Look", "principle": "Look first.", "when_to_apply": None, "example": "x"},
        {"mistake_id": "m", "description": "Guessing", "why_it_happens": "Haste.", "how_to_avoid": "Look it up."},
    ]
    answer, _ = read_json(json.dumps(rows), SkillsAnswer)
    assert answer is not None
    drafts = [draft_of(entry, [case(7), case(8)], tier="general") for entry in answer.skills]
    assert [(each.title, each.text, each.when_to_apply) for each in drafts if isinstance(each, Draft)] == [
        ("Look at the shelf first", "Look at the shelf first. Then at the table.", ""),
        ("Look", "Look first.", ""),
        ("Guessing", "Look it up.", "Haste."),
    ]
    assert isinstance(drafts[0], Draft) and drafts[0].evidence == ("clean-7", "clean-8")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"text": "  "}, "the text is empty"),
        ({"text": "x" * 5000}, "a text of 5000 characters"),
        ({"support": [3]}, "it names the episode 3 of 2"),
        ({"support": [0]}, "it names the episode 0 of 2"),
        ({"when_to_apply": "x" * 2000}, "2000 characters"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_with_its_reason(changed: dict[str, object], reason: str) -> None:
    problem = draft_of(WrittenSkill.model_validate({**GOOD, **changed}), [case(1), case(2)], tier="task")
    assert isinstance(problem, str) and reason in problem and problem.startswith("the teacher's skill 'Take it'")


def test_an_entry_s_evidence_is_the_episodes_that_it_names() -> None:
    draft = draft_of(
        WrittenSkill.model_validate({**GOOD, "support": [2, 2]}), [case(1), case(2)], tier="task", task_type="clean"
    )
    assert draft == Draft("Take it", GOOD["text"], "Always.", "task", "clean", "", ("clean-2",))


# --- drafts that say the same ---


def test_drafts_that_say_the_same_are_one_with_the_evidence_of_all() -> None:
    drafts = [
        Draft("a", "Take it.", tier="general", evidence=("1",)),
        Draft("b", "take it", tier="task", task_type="clean", evidence=("2",)),
        Draft("c", "Leave it.", tier="task", task_type="clean", evidence=("3",)),
        Draft("d", "Leave it.", tier="task", task_type="heat", evidence=("4",)),
        Draft("e", "Take it.", tier="mistake", evidence=("5",)),
    ]
    one_each, notes = fused(drafts)
    assert [(each.title, each.task_type, each.evidence) for each in one_each] == [
        ("a", "", ("1", "2")),
        ("c", "clean", ("3",)),
        ("d", "heat", ("4",)),
        ("e", "", ("5",)),
    ]
    assert notes == ["2 skills that say the same are one: 'a'."]


# --- teachers by name ---


class Half:
    def distill(self) -> None: ...


def test_teachers_are_found_by_name() -> None:
    assert {"heuristic", "openai"} <= set(TEACHERS)
    with pytest.raises(ConfigError, match=r"Did you mean 'heuristic'"):
        make_teacher("heuristik")
    with pytest.raises(ConfigError, match=r"endpoints\.teacher"):
        make_teacher("openai")
    with pytest.raises(ConfigError, match="without evolve"):
        make_teacher(f"{__name__}:Half")
