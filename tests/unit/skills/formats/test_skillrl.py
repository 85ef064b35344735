"""SkillRL's files are read and written: texts, tiers, types, and keys that mean nothing to us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.formats.files import dump_skills, read_file
from skill_ttrl.skills.formats.records import SPELLINGS

TEXTS = st.text(max_size=12)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
WORDS = st.builds("{}{}".format, st.sampled_from("ab<é😀"), st.text("ab<#\n é😀\x00", max_size=7))
MAYBE = st.none() | TEXTS
ORDINARY = st.fixed_dictionaries(
    {"principle": WORDS},
    optional={
        "skill_id": st.from_regex(r"[a-z_]{1,5}", fullmatch=True) | st.integers(0, 99),
        "title": MAYBE,
        "when_to_apply": MAYBE,
        "example": ANYTHING,
        "content": WORDS,
        "tier": st.sampled_from(("general", "task", "mistake")),
        "task_type": TEXTS,
        "version": st.integers(1, 9),
        "evidence": st.lists(TEXTS, max_size=2),
        "stats": st.fixed_dictionaries({"uses": st.integers(0, 9)}),
    },
)
MISTAKE = st.fixed_dictionaries(
    {"how_to_avoid": WORDS},
    optional={
        "mistake_id": st.from_regex(r"[a-z_]{1,5}", fullmatch=True),
        "description": MAYBE,
        "why_it_happens": MAYBE,
        "title": MAYBE,
        "severity": ANYTHING,
    },
)
UNKNOWN = st.dictionaries(TEXTS.filter(lambda key: key not in {*sum(SPELLINGS.values(), ())}), ANYTHING, max_size=2)
LISTS: Any = st.lists(st.tuples(ORDINARY, UNKNOWN).map(lambda parts: {**parts[0], **parts[1]}), max_size=3)
FILES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": ANYTHING,
        "general_skills": LISTS,
        "more": ANYTHING,
        "task_specific_skills": st.dictionaries(TEXTS, LISTS, max_size=3),
        "common_mistakes": st.lists(MISTAKE, max_size=3),
    },
)


@given(content=FILES)
def test_any_file_says_the_same_after_a_way_through_a_bank(
    content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-skillrl.json"
    try:
        path.write_bytes(json.dumps(content, ensure_ascii=False).encode())
        skills = read_file(path, "skillrl").skills
    except (UnicodeEncodeError, SkillBankError):
        assume(False)
    assume(len({skill.id for skill in skills}) == len(skills))
    bank = SkillBank(max_skills=1000)
    bank.import_skills(skills)
    path.write_bytes(dump_skills(bank.snapshot(), "skillrl").encode())
    names = ("id", "title", "text", "when_to_apply", "tier", "task_type", "extra")
    again = {skill.id: skill for skill in read_file(path, "skillrl").skills}
    assert len(again) == len(skills)
    for skill in bank.snapshot():
        back = again[skill.id]
        assert [getattr(back, name) for name in names] == [getattr(skill, name) for name in names]


@pytest.mark.parametrize("name", ["alfworld", "webshop"])
def test_published_banks_hold_the_same_records_after_a_way_through_a_bank(skillrl_banks: Path, name: str) -> None:
    path = skillrl_banks / f"{name}_skills.json"
    found = read_file(path)
    bank = SkillBank()
    bank.import_skills(found.skills)
    before, after = json.loads(path.read_text(encoding="utf-8")), json.loads(dump_skills(bank.snapshot(), "skillrl"))
    for section, key in (("general_skills", "skill_id"), ("common_mistakes", "mistake_id")):
        assert after[section] == sorted(before[section], key=lambda record: str(record[key]))
    assert {kind: {each["skill_id"] for each in items} for kind, items in after["task_specific_skills"].items()} == {
        kind: {each["skill_id"] for each in items} for kind, items in before["task_specific_skills"].items()
    }
    counts = [sum(skill.tier == tier for skill in found.skills) for tier in ("general", "task", "mistake")]
    assert counts == {"alfworld": [12, 32, 11], "webshop": [15, 39, 12]}[name]
    assert "'metadata'" in found.notices[0]


def published(tmp_path: Path) -> Path:
    """A file with all that a published one has, and more."""
    content = {
        "metadata": {"source": "somewhere", "total_memories_analyzed": 7},
        "task_specific_skills": {
            "heat": [
                {"skill_id": "hea_002", "title": "B", "principle": "b", "when_to_apply": "w", "example": {"n": 1.50}},
                {"skill_id": "hea_001", "title": "A", "principle": "a", "when_to_apply": "v"},
            ],
            "cool": [],
        },
        "general_skills": [{"title": "G", "skill_id": 7, "principle": "g"}],
        "common_mistakes": [
            {"mistake_id": "err", "description": "d", "why_it_happens": "y", "how_to_avoid": "h", "seen": 3}
        ],
        "ours": None,
    }
    path = tmp_path / "bank.json"
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")
    return path


def test_a_skill_is_written_into_the_section_that_tells_its_tier(tmp_path: Path) -> None:
    bank = SkillBank()
    bank.import_skills(read_file(published(tmp_path)).skills)
    bank.edit("hea_002", tier="mistake")
    bank.edit("7", tier="task", task_type="cool")
    after = json.loads(dump_skills(bank.snapshot(), "skillrl"))
    moved = after["common_mistakes"][1]
    assert moved["mistake_id"] == "hea_002" and moved["how_to_avoid"] == "b" and moved["example"] == {"n": 1.5}
    assert after["general_skills"] == [] and after["task_specific_skills"]["cool"][0]["skill_id"] == "7"
