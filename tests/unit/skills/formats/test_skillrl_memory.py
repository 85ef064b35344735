"""SkillRL's memories: guidelines become skills, the file comes back, and episodes of ours can be written as memories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.formats.files import dump_skills, read_file
from skill_ttrl.skills.formats.skillrl_memory import dump_trajectories
from skill_ttrl.types import Completion, Skill, Step, Task, Trajectory

STEP = {"step_index": 1, "action": "go to fridge 1", "critical_observation": "It is closed.", "reasoning": "Look."}


def memory(name: object, pattern: object, mistakes: object, **more: Any) -> dict[str, Any]:
    return {
        "memory_id": name,
        "contextual_description": "Cooling things.",
        "tags": {"environment": "alfworld", "outcome": "success" if pattern else "failure"},
        "content": {
            "task_meta": {"original_goal": "cool some tomato"},
            "refined_trajectory": [STEP],
            "strategic_guidelines": {"planning_pattern": pattern, "mistakes_to_avoid": mistakes},
        },
        **more,
    }


BAD = {"trigger_condition": "the fridge is closed", "bad_action": "putting it in"}
MEMORIES = [
    memory("m 1", "Find, cool, place.", [], extra=1.5),
    memory("m2", None, [BAD, "wandering"]),
    memory("m3", None, None),
]


def through_a_bank(content: Any, folder: Path, name: str = "m.json") -> SkillBank:
    (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    found = read_file(folder / name)
    bank = SkillBank()
    bank.import_skills(found.skills, origin=found.origin)
    return bank


def test_guidelines_become_skills_with_the_memory_as_evidence(tmp_path: Path) -> None:
    bank = through_a_bank(MEMORIES, tmp_path)
    mistake, plain, pattern = bank
    assert pattern == Skill(
        "m_1", "cool some tomato", "Find, cool, place.", "Cooling things.", source="skillrl-memory", evidence=("m 1",)
    )
    assert (mistake.id, mistake.tier, mistake.title) == ("m2_mistake", "mistake", "putting it in")
    assert mistake.text == "Do something else when: the fridge is closed" and mistake.evidence == ("m2",)
    assert (plain.id, plain.title, plain.text) == ("m2_mistake_2", "wandering", "Do something else than: wandering")
    notices = read_file(tmp_path / "m.json").notices
    assert notices == ("1 of 3 memories hold no guidelines and gave no skill",)


def test_memories_come_back_byte_for_byte_and_after_a_change_only_that_differs(tmp_path: Path) -> None:
    bank = through_a_bank(MEMORIES, tmp_path)
    bank.record_usages([("m_1", True)])
    assert dump_skills(bank.snapshot(), "skillrl-memory") == (tmp_path / "m.json").read_text()
    bank.edit("m_1", text="Cool first.", title="cool a tomato")
    bank.edit("m2_mistake", when_to_apply="it is shut")
    bank.remove("m2_mistake_2")
    bank.add(Skill("new", "A goal", "Do it.", "always", "general", "cool"))
    first, second, third, new = json.loads(dump_skills(bank.snapshot(), "skillrl-memory"))
    guidelines = {"planning_pattern": "Cool first.", "mistakes_to_avoid": []}
    assert first["content"]["strategic_guidelines"] == guidelines and first["extra"] == 1.5
    assert first["content"]["task_meta"] == {"original_goal": "cool a tomato"}
    assert first["content"]["refined_trajectory"] == [STEP] and third == MEMORIES[2]
    assert second["content"]["strategic_guidelines"]["mistakes_to_avoid"] == [
        {**BAD, "trigger_condition": "it is shut", "how_to_avoid": "Do something else when: the fridge is closed"}
    ]
    assert new["tags"] == {"environment": "", "outcome": "success", "task_type": "cool", "tier": "general"}


@settings(max_examples=20)
@given(
    st.lists(
        st.builds(
            Skill,
            st.from_regex(r"[a-z_]{1,5}", fullmatch=True),
            st.text(max_size=9),
            st.text("ab\n\x00é", max_size=9).map(lambda text: text + "."),
            st.text(max_size=9),
            st.sampled_from(("general", "task", "mistake")),
            st.text(max_size=5),
        ),
        max_size=4,
        unique_by=lambda skill: skill.id,
    )
)
def test_words_tiers_and_types_of_any_bank_survive(skills: list[Skill]) -> None:
    import tempfile

    bank = SkillBank()
    bank.import_skills(skills)
    with tempfile.TemporaryDirectory() as scratch:
        again = through_a_bank(json.loads(dump_skills(bank.snapshot(), "skillrl-memory")), Path(scratch), "x.json")
    words = ("title", "text", "when_to_apply", "tier", "task_type")

    def said(each: SkillBank) -> list[tuple[str, ...]]:
        return sorted(tuple(getattr(skill, name) for name in words) for skill in each)

    assert said(again) == said(bank)


@pytest.mark.parametrize("meta", [{"original_goal": "cool it"}, {"original_goal": None}, "cool it", None, [1]])
@pytest.mark.parametrize("one_text", [True, False])
def test_memories_of_odd_forms_are_written_with_new_words(meta: object, one_text: bool, tmp_path: Path) -> None:
    odd = memory("m1", "Find, cool, place.", [])
    odd["content"]["task_meta"] = meta
    if one_text:
        odd["content"]["strategic_guidelines"] = "Find, cool, place."
    (tmp_path / "m.json").write_text(json.dumps([odd]))
    bank = SkillBank()
    bank.load(tmp_path / "m.json")
    assert json.loads(dump_skills(bank.snapshot(), "skillrl-memory")) == [odd]
    bank.edit("m1", title="Cool", text="Cool first.", when_to_apply="hot")
    (tmp_path / "again.json").write_text(dump_skills(bank.snapshot(), "skillrl-memory"))
    (again,) = read_file(tmp_path / "again.json").skills
    assert (again.title, again.text, again.when_to_apply) == ("Cool", "Cool first.", "hot")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([memory("a", 7, [])], r"\[0\]: 'strategic_guidelines' holds a 'planning_pattern'"),
        ([memory("a", None, "x")], r"'mistakes_to_avoid' \(a list\)"),
        ([memory("a", "p", []), 7], r"\[1\]: a memory is an object with 'content', found 7"),
        ([memory("a", None, [{}])], r"neither 'trigger_condition' nor 'bad_action'"),
        ([memory("a", None, [{"bad_action": 7}])], r"a mistake is an object with"),
        ([memory("a", "p", [], contextual_description=7)], r"when_to_apply is a text, found 7"),
    ],
)
def test_what_is_no_memory_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SkillBankError, match=message):
        through_a_bank(content, tmp_path)
    (tmp_path / "o.json").write_text("{}")
    with pytest.raises(SkillBankError, match=r"is a list of memories, found \{\}"):
        read_file(tmp_path / "o.json", "skillrl-memory")


def test_ids_that_are_missing_or_the_same_are_told_apart(tmp_path: Path) -> None:
    bank = through_a_bank([memory("a", "p", []), memory("a", "q", []), memory(None, "r", [])], tmp_path)
    assert [skill.id for skill in bank] == ["a", "a_2", "memory_3"] and bank.snapshot().skills[
        "memory_3"
    ].evidence == ()


def test_an_episode_is_written_as_it_was_played() -> None:
    told = Completion("<think> Look. </think><action>go</action>", (), (), "stop")
    steps = (Step("A room.", "go", 0.0, False, False, completion=told), Step("A fridge.", "open", 1.0, True, False))
    task = Task("t", "SkillTTRL/ALFWorld-v0", task_type="cool")
    won = Trajectory(task, steps, None, "terminated", goal="cool it")
    lost = Trajectory(task, steps[:1], None, "max_turns", goal="cool it")
    text, silent = dump_trajectories([won, lost, Trajectory(task, (), None, "error", error="x")])
    first, second = json.loads(text)
    assert (silent, first["memory_id"], second["memory_id"]) == (1, "t/1", "t/2")
    assert first["tags"] == {"environment": "SkillTTRL/ALFWorld-v0", "outcome": "success", "task_type": "cool"}
    assert second["tags"]["outcome"] == "failure"
    assert first["content"]["refined_trajectory"] == [
        {"step_index": 1, "action": "go", "critical_observation": "A room.", "reasoning": "Look."},
        {"step_index": 2, "action": "open", "critical_observation": "A fridge.", "reasoning": ""},
    ]
    assert first["content"]["strategic_guidelines"] == {"planning_pattern": None, "mistakes_to_avoid": []}
