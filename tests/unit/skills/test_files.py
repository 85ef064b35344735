"""Skills as files: what is written is read back exactly, published files are read, folders are valid, and a bad record refuses the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot, normalize_skill
from skill_ttrl.skills.files import dump_skills, parts_of, read_file, write_skills
from skill_ttrl.types import Skill, SkillStats

HOSTILE = st.one_of(
    st.text(max_size=20),
    st.text("-'\":{}[]&*#!|>%@`\n\r\t\x00\x85\u2028\ufeff\ud83d\ude00é ", max_size=20),
    st.sampled_from(
        ("---", "a\n---\nb", "../../etc/passwd", "NULL", "con", "İI", "ß" * 80, "a-" * 60, "<skill>", "..", "/")
    ),
)
SKILLS = st.builds(
    Skill,
    st.from_regex(r"[a-zA-Z`\[\]*_.:-]{1,6}", fullmatch=True),
    HOSTILE, HOSTILE.map(lambda text: text + "."), HOSTILE,
    st.sampled_from(("general", "task", "mistake")),
    HOSTILE, st.integers(1, 9), st.lists(HOSTILE, max_size=2).map(tuple), HOSTILE.filter(bool),
    st.lists(HOSTILE, max_size=2).map(tuple),
    st.builds(SkillStats, *[st.integers(0, 9)] * 3, st.none() | st.integers(0, 9)),
    st.lists(HOSTILE, max_size=2).map(tuple),
)  # fmt: skip


FULL = Skill(
    "sk_1", 'A "title": with\nlines',
    "Text.\n\n```python\nx\n```\n## sk_2\n- tier: general\n\n````\n\r\n<!-- end -->\n",
    " when ", "mistake", "[type]", 3, ("sk_0", "sk_00"), "merge", ("t, 1", '"t2"'), SkillStats(5, 2, 1, 7), ("long",),
)  # fmt: skip


@given(skills=st.lists(SKILLS, max_size=4))
def test_what_is_written_is_read_back(skills: list[Skill], tmp_path_factory: pytest.TempPathFactory) -> None:
    snapshot = Snapshot.of(3, map(normalize_skill, [*skills, FULL]))
    file = tmp_path_factory.getbasetemp() / "skills"
    write_skills(file, snapshot, "json")
    assert read_file(file, "json").skills == list(snapshot)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", '{"skills": [\n{"id": "a" "text"}]}', r"x\.json:2 is not JSON: .*column 12"),
        ("x.json", '{"skills": [{"id": "a", "text": "t"}, 7]}', r"skills\[1\]: a skill is an object, found 7"),
        ("x.json", '{"skills": [{"id": "a b", "text": "t"}]}', r"skills\[0\]: 'a b' cannot be a skill's id"),
        ("x.json", '{"skills": [{"id": "a", "text": "t", "tier": "x"}]}', r"tier 'x'"),
        ("x.json", '{"skills": [{"id": "a", "text": "t", "stats": {"uses": "1"}}]}', r"whole numbers"),
        ("x.json", '{"schema": 2, "skills": []}', r"written under schema 2"),
        ("x.json", '{"what": 1}', r"no skills"),
        ("x.json", "[" * 100_000, r"levels of nesting"),
        ("x.json", '{"task_specific_skills": []}', r"task_specific_skills"),
        ("x.json", '{"common_mistakes": [{"mistake_id": "e"}]}', r"common_mistakes\[0\]: A skill needs 'text'"),
        ("x.txt", "", r"--format"),
    ],
)
def test_a_bad_record_refuses_the_file(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SkillBankError, match=message):
        read_file(tmp_path / name)
    for absent in ("missing.json", "missing/SKILL.md"):
        with pytest.raises(SkillBankError, match=r"directory\. Check .* its permissions\. Nothing was imported\.$"):
            read_file(tmp_path / absent)


SEED: dict[str, Any] = {"skill_id": "sk_1", "title": "Modular", "content": "Use Fermat.", "task_type": "number_theory"}
SEED |= {"source": "evolved", "usage_count": 12, "success_count": 9, "created_at_round": 2, "last_used_round": 17}
FOR_ANY: dict[str, Any] = {
    "skill_id": "sk_2", "title": "Parity", "content": "Check it.", "task_type": "general", "source": "seeded",
}  # fmt: skip
FOR_ANY |= {"usage_count": 0, "success_count": 0, "created_at_round": 0, "last_used_round": 0, "parent_id": None}


def test_a_bank_of_skill_ttrl_keeps_its_statistics_and_parents(tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    skills = [{**SEED, "parent_id": "sk_0"}, FOR_ANY]
    path.write_text(json.dumps({"max_skills": 200, "retrieval_mode": "keyword", "skills": skills}))
    found = read_file(path)
    used, unused = found.skills
    assert used.stats == SkillStats(12, 9, 2, 17) and used.parents == ("sk_0",)
    assert (
        unused.stats == SkillStats() and unused.parents == () and (unused.tier, unused.source) == ("general", "seeded")
    )
    assert "'max_skills', 'retrieval_mode'" in found.notices[0]
    with pytest.raises(SkillBankError, match="statistics must be whole numbers"):
        SkillBank().add_from_dict({**SEED, "usage_count": "many"})


# --- SkillRL ---


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


LISTS: Any = st.lists(ORDINARY, max_size=3)
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
    names = ("id", "title", "text", "when_to_apply", "tier", "task_type")
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


def test_a_skill_is_written_into_the_section_that_tells_its_tier(tmp_path: Path) -> None:
    content = {
        "task_specific_skills": {
            "heat": [{"skill_id": "hea_002", "title": "B", "principle": "b", "example": 1.5}],
            "cool": [],
        },
        "general_skills": [{"title": "G", "skill_id": 7, "principle": "g"}],
        "ours": None,
    }
    (tmp_path / "bank.json").write_text(json.dumps(content))
    found = read_file(tmp_path / "bank.json")
    assert "'ours'" in found.notices[0] and "skills' example" in found.notices[0]
    bank = SkillBank()
    bank.import_skills(found.skills)
    bank.edit("hea_002", tier="mistake")
    bank.edit("7", tier="task", task_type="cool")
    after = json.loads(dump_skills(bank.snapshot(), "skillrl"))
    (moved,) = after["common_mistakes"]
    assert (moved["mistake_id"], moved["how_to_avoid"]) == ("hea_002", "b")
    assert after["general_skills"] == [] and after["task_specific_skills"]["cool"][0]["skill_id"] == "7"


# --- folders ---


def is_valid(folder: Path) -> bool:
    """True if a folder keeps to the standard, as far as what we write can break it."""
    front, _ = parts_of((folder / "SKILL.md").read_text(encoding="utf-8"), "x")
    name, metadata = front["name"], front["metadata"]
    return (
        name == folder.name
        and len(name) <= 64
        and re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name) is not None
        and 0 < len(front["description"].strip()) <= 1024
        and front.keys() == {"name", "description", "metadata"}
        and all(isinstance(each, str) for each in metadata.values())
    )


@given(st.lists(SKILLS, max_size=4, unique_by=lambda skill: skill.id))
def test_every_folder_is_valid_and_read_back_exactly(skills: list[Skill]) -> None:
    import tempfile

    snapshot = Snapshot.of(3, map(normalize_skill, skills))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "out"
        write_skills(folder, snapshot, "agentskills")
        assert all(map(is_valid, folder.iterdir()))
        assert {path.relative_to(folder).parts[-1] for path in folder.glob("*/*")} <= {"SKILL.md"}
        found = read_file(folder, "agentskills")
        assert {skill.id: skill for skill in found.skills} == dict(snapshot.skills)
        assert found.notices == ()


FOREIGN = """---
name: pdf-processing
description: >-
  Extract PDF text, fill forms.
  Use when handling PDFs.
license: Apache-2.0
allowed-tools: [Read, "Bash(git:*)"]
metadata:
  author: example-org
  version: 1.10
stars: 5
---

# PDF processing

Run scripts/extract.py.
"""


def foreign(folder: Path, text: str = FOREIGN) -> Path:
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "extract.py").write_text("raise SystemExit('never run')")
    (folder / "SKILL.md").write_bytes(text.encode())
    return folder


def test_a_folder_by_others_is_read_and_told_what_is_not_taken(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "skills" / "pdf-processing")
    (tmp_path / "skills" / "README.md").write_text("x")
    found = read_file(tmp_path / "skills")
    skill = found.skills[0]
    assert (skill.id, skill.title, skill.source) == ("pdf-processing", "pdf-processing", "agentskills")
    assert skill.when_to_apply == "Extract PDF text, fill forms. Use when handling PDFs."
    assert skill.text == "# PDF processing\n\nRun scripts/extract.py."
    assert "'README.md'" in found.notices[0]
    assert all(
        name in found.notices[1] for name in ("'license'", "'allowed-tools'", "'metadata'", "'stars'", "'scripts/'")
    )
    for path in (folder, folder / "SKILL.md"):
        assert read_file(path).skills == [skill]
    write_skills(tmp_path / "again", Snapshot.of(1, [skill]), "agentskills")
    again, _ = parts_of((tmp_path / "again" / "pdf-processing" / "SKILL.md").read_text(), "x")
    assert again["description"] == skill.when_to_apply and read_file(tmp_path / "again").skills == [skill]


def test_a_text_that_people_change_in_our_folders_counts(tmp_path: Path) -> None:
    write_skills(tmp_path / "out", Snapshot.of(1, [Skill("a", "A", "old")]), "agentskills")
    file = tmp_path / "out" / "a" / "SKILL.md"
    file.write_bytes(file.read_text().replace("\nold\n", "\nnew\n").replace("\n", "\r\n").encode())
    assert read_file(tmp_path / "out").skills == [normalize_skill(Skill("a", "A", "new"))]


BOMB = "---\na: &a [x]\n" + "".join(f"k{n}: &k{n} [*a, *a]\n" for n in range(3)) + "---\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no front matter", "start with YAML between two lines"),
        ("---\nname: [x\n---\n", r"SKILL\.md:\d+ is not valid YAML"),
        ("---\nname: x\ndescription: Use when: it rains\n---\nText.", r"SKILL\.md:3 is not valid YAML: .*in quotes"),
        ("---\nname: \x00\n---\n", "is not valid YAML"),
        (BOMB, "aliases"),
        ("---\nx: " + "[" * 100_000 + "\n---\n", "levels of nesting"),
        ("---\n" + "".join(f"k{n}: v\n" for n in range(100_000)) + "---\n", "keys and values"),
        ("---\nname: x\nmetadata: {skill-ttrl: many}\n---\nt", "metadata, skill-ttrl:1 is not JSON"),
        ("---\nname: x\n---\n", "A skill needs 'text'"),
    ],
)
def test_what_is_no_skill_is_refused_and_the_others_are_read(text: str, message: str, tmp_path: Path) -> None:
    foreign(tmp_path / "all" / "x", text)
    with pytest.raises(SkillBankError, match=message):
        read_file(tmp_path / "all")
    foreign(tmp_path / "all" / "good")
    found = read_file(tmp_path / "all")
    assert [skill.id for skill in found.skills] == ["pdf-processing"]
    assert any(re.search(message, notice) for notice in found.notices)


@pytest.mark.parametrize("opening", ["---", "\ufeff---", "---  ", "--- \t", "\ufeff--- "])
def test_marks_and_blanks_before_the_front_matter_say_nothing(opening: str, tmp_path: Path) -> None:
    folder = foreign(tmp_path / "x", f"{opening}\nname: x\ndescription: d\n--- \nText.")
    assert [skill.text for skill in read_file(folder).skills] == ["Text."]


def test_yaml_makes_no_objects_and_links_are_not_followed(tmp_path: Path) -> None:
    tagged = "---\nname: x\ndescription: !!python/object/apply:os.system [exit]\n---\nt"
    found = read_file(foreign(tmp_path / "x", tagged))
    assert found.skills[0].text == "t"
    (tmp_path / "secret").write_text("---\nname: s\n---\nsecret")
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "SKILL.md").symlink_to(tmp_path / "secret")
    with pytest.raises(SkillBankError, match="link"):
        read_file(tmp_path / "y")
    (tmp_path / "link").symlink_to(tmp_path / "x")  # what its user names is followed
    assert read_file(tmp_path / "link").skills == found.skills
