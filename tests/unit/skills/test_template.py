"""Skills chosen by type of task, and how evolved ones come to a place in a prompt, or do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.files import read_file
from skill_ttrl.skills.retrieval import BankView, Query, Retriever, by_template
from skill_ttrl.types import Skill, SkillStats


def general(name: str, uses: int = 0, successes: int = 0, source: str = "import") -> Skill:
    return Skill(name, name, f"advice {name}", tier="general", source=source, stats=SkillStats(uses, successes))


def shown(skills: Sequence[Skill], k: int = 6, kind: str = "clean") -> list[str]:
    access = BankView(Snapshot.of(1, skills), Retriever("template"))
    (found,) = access.select_for_prompts([Query("put a clean mug away", kind)], k)
    return [skill.id for skill in found]


def test_all_of_the_type_some_general_ones_and_five_mistakes_in_the_order_of_the_bank() -> None:
    skills = [general(f"gen_{number:03d}") for number in range(12)]
    skills += [Skill(f"cle_{number:03d}", "t", f"clean {number}", task_type="clean") for number in range(7)]
    skills += [Skill(f"hea_{number:03d}", "t", f"heat {number}", task_type="heat") for number in range(7)]
    skills += [Skill(f"err_{number:03d}", "t", f"avoid {number}", tier="mistake") for number in range(9)]
    columns = by_template(Snapshot.of(1, skills), "clean", 6)
    assert [[skill.id for skill in column] for column in columns] == [
        [f"gen_{number:03d}" for number in range(6)],
        [f"cle_{number:03d}" for number in range(7)],
        [f"err_{number:03d}" for number in range(5)],
    ]
    found = shown(skills)
    assert len(found) == 18 and found[:4] == ["gen_000", "cle_000", "err_000", "gen_001"]
    assert shown(skills, k=0) == []


def test_a_published_bank_s_prompt_is_what_skillrl_s_is(skillrl_banks: Path) -> None:
    skills = read_file(skillrl_banks / "alfworld_skills.json").skills
    columns = by_template(Snapshot.of(1, skills), "clean", 6)
    assert [len(column) for column in columns] == [6, 6, 5]
    assert all(skill.task_type == "clean" for skill in columns[1])


def test_an_evolved_skill_is_tried_once_and_then_stands_by_its_record() -> None:
    statics = [general(f"gen_{number}", 100, 60) for number in range(6)]
    fresh = general("sk-new", source="evolve")
    assert "sk-new" not in shown([*statics, fresh]), "six that help in 60 % of their uses keep their places"
    weak = [*statics[:5], general("gen_5", 100, 20)]
    assert shown([*weak, fresh])[-1] == "sk-new", "it is tried in the place of one that helps less"
    tried = replace(fresh, stats=SkillStats(100, 5))
    assert "sk-new" not in shown([*weak, tried]) and "gen_5" in shown([*weak, tried])
    proven = replace(fresh, stats=SkillStats(100, 90))
    assert shown([*weak, proven])[0] == "sk-new"
