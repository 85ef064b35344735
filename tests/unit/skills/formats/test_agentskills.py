"""Folders of the Agent Skills standard: ours are valid and read back exactly, those of others are read with care."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import normalize_skill
from skill_ttrl.skills.formats.agentskills import describe, parts_of, read_agentskills, skill_text
from skill_ttrl.skills.formats.files import read_file, write_skills
from skill_ttrl.skills.snapshot import Snapshot
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
    st.dictionaries(HOSTILE, HOSTILE, max_size=2).map(lambda found: json.dumps({"fields": found}) if found else ""),
)  # fmt: skip


def is_valid(folder: Path) -> bool:
    """True if a folder keeps to the standard, as far as what we write can break it."""
    front, _ = parts_of((folder / "SKILL.md").read_text(encoding="utf-8"), "x")
    name, metadata = front["name"], front["metadata"]
    texts = [*front.values(), *metadata.values()]
    return (
        name == folder.name
        and len(name) <= 64
        and re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name) is not None
        and 0 < len(front["description"].strip()) <= 1024
        and len(front.get("compatibility", "x")) <= 500
        and front.keys() <= {"name", "description", "license", "compatibility", "allowed-tools", "metadata"}
        and all(isinstance(each, str | list) or each is metadata for each in texts)
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


@given(SKILLS)
def test_the_front_matter_survives_simple_readers(skill: Skill) -> None:
    """Some readers end it at the first `---` there is, and take each value to be on its own line."""
    text = skill_text(normalize_skill(skill), "name")
    front = text.split("---", 2)[1]
    assert parts_of(text, "x")[0] == parts_of(f"---{front}---\n", "x")[0]
    for line in front.strip("\n").split("\n"):
        assert line.isprintable() and line[-1] in '":', line
    description = describe(normalize_skill(skill))
    assert 1 <= len(description) <= 1024 and len(description.splitlines()) == 1


def test_a_folder_looks_like_this(tmp_path: Path) -> None:
    skill = Skill("sk_001", "Modular arithmetic", "Use Fermat.", "powers modulo a prime", stats=SkillStats(4, 3, 1, 7))
    write_skills(tmp_path / "out", Snapshot.of(2, [replace(skill, parents=("sk_0",))]), "agentskills")
    assert (tmp_path / "out" / "modular-arithmetic" / "SKILL.md").read_text() == (
        '---\nname: "modular-arithmetic"\n'
        'description: "Modular arithmetic: Use Fermat. Use when: powers modulo a prime"\n'
        'metadata:\n  skill-ttrl-id: "sk_001"\n  skill-ttrl-title: "Modular arithmetic"\n'
        '  skill-ttrl-when-to-apply: "powers modulo a prime"\n  skill-ttrl-parents: "[\\"sk_0\\"]"\n'
        '  skill-ttrl-uses: "4"\n  skill-ttrl-successes: "3"\n  skill-ttrl-created-step: "1"\n'
        '  skill-ttrl-last-used-step: "7"\n---\n\nUse Fermat.\n'
    )


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
    fields = json.loads(skill.extra)["fields"]
    assert fields["metadata"] == {"author": "example-org", "version": "1.10"} and fields["stars"] == "5"
    assert "'README.md'" in found.notices[0] and "'scripts/'" in found.notices[1]
    for path in (folder, folder / "SKILL.md"):
        assert read_file(path).skills == [skill]
    write_skills(tmp_path / "again", Snapshot.of(1, [skill]), "agentskills")
    again, _ = parts_of((tmp_path / "again" / "pdf-processing" / "SKILL.md").read_text(), "x")
    assert again["description"] == skill.when_to_apply and again["license"] == "Apache-2.0"
    assert again["allowed-tools"] == ["Read", "Bash(git:*)"] and again["metadata"]["version"] == "1.10"
    assert read_file(tmp_path / "again").skills == [skill]


def test_what_people_change_in_our_folders_counts(tmp_path: Path) -> None:
    skill = normalize_skill(Skill("a", "A", "old", extra='{"fields": {"license": "MIT", "metadata": {"n": 1.5}}}'))
    write_skills(tmp_path / "out", Snapshot.of(1, [skill]), "agentskills")
    file = tmp_path / "out" / "a" / "SKILL.md"
    text = (
        file.read_text()
        .replace("\nold\n", "\nnew\n")
        .replace('"MIT"', "GPL")
        .replace("metadata:", "metadata:\n  by: me")
    )
    file.write_bytes(text.replace("\n", "\r\n").encode())
    found = read_file(tmp_path / "out").skills[0]
    assert found.text == "new"
    assert json.loads(found.extra)["fields"] == {"license": "GPL", "metadata": {"by": "me", "n": "1.5"}}


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
        ("---\nname: x\nmetadata: {skill-ttrl-id: x, skill-ttrl-uses: many}\n---\nt", "skill-ttrl-uses"),
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
        read_agentskills(tmp_path / "y")
    (tmp_path / "link").symlink_to(tmp_path / "x")  # what its user names is followed
    assert read_file(tmp_path / "link").skills == found.skills


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Snapshot.of(1, [Skill("a", "A", "a"), Skill("b", "B", "b")])
    (tmp_path / "taken").mkdir()
    with pytest.raises(SkillBankError, match=r"Cannot write .*taken: it exists already"):
        write_skills(tmp_path / "taken", snapshot, "agentskills")
    write: Any = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.parent.name == "b":
            raise OSError(28, "No space left on device")
        return int(write(path, data))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(SkillBankError, match="No space left"):
        write_skills(tmp_path / "out", snapshot, "agentskills")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
