"""Skills that prompts merely show are credited by the outcome of the episode, whoever changes the bank."""

from __future__ import annotations

from typing import Literal

import pytest

from skill_ttrl.config import SkillsConfig
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.types import Group, Skill, Step, Task, Trajectory

TASK = Task("train/1", "shop", task_type="fashion")


def bought(score: float, *skills: str, error: str | None = None, asked: tuple[str, ...] = ()) -> Trajectory:
    """A purchase that the shop rewards by how right it is; only a wholly right one is won."""
    step = Step("a page", "click[buy now]", score, True, False, info={"won": score == 1.0})
    return Trajectory(
        TASK, (step,), None, "terminated", reward=score, error=error, skills_in_prompt=skills, retrieved=asked
    )


GROUP = Group(
    TASK,
    (
        bought(1.0, "shown", "both"),
        bought(0.6, "shown", asked=("both", "both")),
        bought(0.6, "shown"),
        bought(1.0, "shown", error="broken"),
        bought(0.0, "gone"),
    ),
)


@pytest.mark.parametrize("update", ["merge", "none"])
def test_uses_and_successes_are_those_of_the_environment(update: Literal["merge", "none"]) -> None:
    """What is bought right in part is no success, what broke counts for nothing, and one try uses a skill once."""
    with SkillBank(index="memory") as bank:
        bank.import_skills([Skill(name, name, f"advice {name}") for name in ("shown", "both", "unseen")])
        run = RunBank(SkillsConfig(update=update, extract_from_solutions=False, embedder="hash"), bank)
        figures = run.learn([GROUP], 3, evolves=True)
        stats = {skill.id: (skill.stats.uses, skill.stats.successes, skill.stats.last_used_step) for skill in bank}
        assert stats == {"shown": (3, 1, 3), "both": (2, 1, 3), "unseen": (0, 0, None)}
        assert bank.history()[-1].evidence == ("train/1",) and figures["bank_version"] == 2


def test_without_evolution_a_bank_that_is_not_to_change_counts_nothing() -> None:
    with SkillBank(index="memory") as bank:
        bank.import_skills([Skill("shown", "t", "advice")])
        RunBank(SkillsConfig(update="none"), bank).learn([GROUP], 3)
        assert bank.version == 1


def test_skills_of_a_bank_that_calls_types_by_other_names_are_said() -> None:
    """They would be left out of every prompt without a word."""
    tasks = [Task(f"train/{kind}", "shop", task_type=kind) for kind in ("pick_heat_then_place", "look")]
    skills = [Skill("g", "t", "a", tier="general", task_type="x"), Skill("h", "t", "b", task_type="heat")]
    with SkillBank(index="memory") as bank:
        bank.import_skills([*skills, Skill("l", "t", "c", task_type="look"), Skill("any", "t", "d")])
        said = RunBank(SkillsConfig(), bank).unshown(tasks)
        assert said.startswith("1 of 4 skills in the bank are for task types that this run does not have (heat)")
        assert "look, pick_heat_then_place" in said and "skills.type_names" in said
        named = SkillsConfig(type_names={"pick_heat_then_place": "heat"})
        assert RunBank(named, bank).unshown(tasks) == ""
        assert RunBank(SkillsConfig(), bank).unshown([*tasks, Task("any", "shop")]) == ""
