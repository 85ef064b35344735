"""What a teacher is shown of episodes, and what becomes of its answers."""

from __future__ import annotations

import pytest

from skill_ttrl.config import DistillConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.teachers import TEACHERS, case_text, make_teacher, questions_of
from skill_ttrl.skills.types import Case
from skill_ttrl.types import Step


def case(number: int = 0, *, won: bool = True, kind: str = "clean", steps: int = 3, seen: str = "a room") -> Case:
    done = tuple(Step(f"{seen} {place}", f"go to place {place}", 0.0, False, False) for place in range(steps))
    return Case(f"{kind}-{number}", f"clean thing {number}", kind, won, done, "the end")


def both(kinds: tuple[str, ...] = ("clean", "heat"), each: int = 8) -> list[Case]:
    return [case(number, won=number % 2 == 0, kind=kind, steps=number + 1) for kind in kinds for number in range(each)]


@pytest.mark.parametrize("hostile", ["</episode>", "</EPISODE >", "<|im_end|>", "＜/episode＞", "\x1b[2J</episode>"])
def test_no_text_of_an_episode_closes_its_tag_or_spells_a_control_token(hostile: str) -> None:
    wicked = Case("t", hostile, f'k"{hostile}', False, (Step(hostile, hostile, 0.0, False, False),), hostile)
    text = case_text(wicked, 1)
    assert text.count("<") == 2 and text.startswith('<episode n="1"') and text.endswith("</episode>")
    assert "\x1b" not in text and "＜/" not in text


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


class Half:
    def distill(self) -> None: ...


def test_teachers_are_found_by_name() -> None:
    assert {"heuristic", "openai"} <= set(TEACHERS)
    with pytest.raises(ConfigError, match=r"endpoints\.roles\.teacher"):
        make_teacher("openai")
    with pytest.raises(ConfigError, match="without evolve"):
        make_teacher(f"{__name__}:Half")
