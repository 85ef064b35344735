"""Skills as files: what is written is read back exactly, published files are read, and a bad record refuses the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.errors import ExtensionError, SkillBankError
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.changes import normalize_skill
from skill_ttrl.skills.formats.files import dump_skills, holds_records, read_file, write_skills
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Skill, SkillStats
from tests.unit.skills.formats.test_agentskills import SKILLS

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
    assert used.stats == SkillStats(12, 9, 2, 17) and used.parents == ("sk_0",) and used.extra == ""
    assert (
        unused.stats == SkillStats() and unused.parents == () and (unused.tier, unused.source) == ("general", "seeded")
    )
    assert "'max_skills, retrieval_mode'" in found.notices[0]
    with pytest.raises(SkillBankError, match="statistics must be whole numbers"):
        SkillBank().add_from_dict({**SEED, "usage_count": "many"})


def test_a_format_of_ones_own_is_read_and_written_and_named_where_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_of_skills.py").write_text(
        "from skill_ttrl.skills.formats.records import FileFormat\n"
        "from skill_ttrl.skills.formats.records import SkillFile, record_at\n"
        "def read(text, where):\n"
        "    return SkillFile([record_at({'text': line}, where, n) for n, line in enumerate(text.split())])\n"
        "lines = FileFormat('lines', read, lambda snapshot: ' '.join(skill.text for skill in snapshot))\n"
        "broken = FileFormat('broken', lambda text, where: 1 / 0, lambda snapshot: 1 / 0)\n"
        "other = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    file, snapshot = tmp_path / "x", Snapshot.of(1, [Skill("a", "", "Look."), Skill("b", "", "Wait.")])
    write_skills(file, snapshot, "mine_of_skills:lines")
    assert file.read_text() == dump_skills(snapshot, "mine_of_skills:lines") == "Look. Wait."
    assert [skill.text for skill in read_file(file, "mine_of_skills:lines").skills] == ["Look.", "Wait."]
    with pytest.raises(ExtensionError, match="The format 'broken' failed: ZeroDivisionError"):
        read_file(file, "mine_of_skills:broken")
    with pytest.raises(ExtensionError, match="The format 'broken' failed: ZeroDivisionError"):
        dump_skills(snapshot, "mine_of_skills:broken")
    with pytest.raises(SkillBankError, match="mine_of_skills:other is not a format"):
        read_file(file, "mine_of_skills:other")


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", '[{"id": "a", "title": "A", "text": "Text."}]'), ("a.md", "## A\n\nText.\n")]
)
def test_a_byte_order_mark_is_no_part_of_a_file(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [skill.text for skill in read_file(tmp_path / name).skills] == ["Text."]
    assert holds_records(tmp_path / name)
