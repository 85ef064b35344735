"""Banks of others in and out on the command line, and the comparison of two banks wherever they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skill_ttrl.config import SkillsConfig, load_config
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.stages.inspecting.bank_diff import match
from skill_ttrl.stages.setup.open_bank import open_run_bank, starting_skills
from skill_ttrl.types import Skill
from tests.integration.test_skill_commands import refused, skillttrl

FILE = {
    "task_specific_skills": {
        "heat": [{"skill_id": "hea_001", "title": "Stove", "principle": "Use it.", "example": [1.5]}]
    },
    "general_skills": [{"skill_id": "gen_001", "title": "Look", "principle": "Look once.", "when_to_apply": "first"}],
    "metadata": {"source": "o3", "total_memories_analyzed": 2},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file as SkillRL writes it."""
    path = tmp_path / "file.json"
    path.write_text(json.dumps(FILE, indent=2))
    return path


@pytest.fixture
def bank(tmp_path: Path, file: Path) -> Path:
    """A bank that was imported from it."""
    assert skillttrl("skills", "import", tmp_path / "bank", file).code == 0
    return tmp_path / "bank"


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("json", "bank.json"),
        ("document", "x.md"),
        ("skillrl", "x.json"),
        ("agentskills", "folder"),
    ],
)
def test_inspect_shows_every_format_that_import_reads(form: str, name: str, bank: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    assert skillttrl("skills", "export", bank, "-o", path, "--format", form).code == 0
    found = skillttrl("inspect", path, "--json").json
    assert (found["kind"], found["path"]) == ("skills", str(path))
    assert {skill["text"] for skill in found["skills"]} == {"Use it.", "Look once."}
    assert found["facts"]["skills"].startswith("2 (") and "Look once." in skillttrl("inspect", path).out


def test_inspect_names_what_is_wrong_with_a_file_and_not_the_file(file: Path, tmp_path: Path) -> None:
    many = [*FILE["general_skills"], {"skill_id": "bad", "title": "x" * 5000}]
    file.write_text(json.dumps({"general_skills": many}))
    done = skillttrl("inspect", file)
    assert done.code == 4 and f"{file}, general_skills[1]: A skill needs 'text'" in " ".join(done.err.split())
    assert len(done.err) < 1000
    folder = SkillBank(tmp_path / "empty")
    folder.close()
    assert skillttrl("inspect", tmp_path / "empty" / "bank.json").code == 0  # settings, which are no skills
    file.write_text('{"generall_skills": [{"title": "' + "x" * 5000 + '"}]}')
    done = skillttrl("inspect", file)
    assert "generall_skills" in done.err and len(done.err) < 1000


def test_two_banks_are_compared_wherever_they_are(bank: Path, file: Path, tmp_path: Path) -> None:
    assert skillttrl("skills", "export", bank, "-o", tmp_path / "folder", "--format", "agentskills").code == 0
    skillttrl("skills", "edit", bank, "gen_001", "--text", "Look twice.\nThen go.")
    skillttrl("skills", "remove", bank, "hea_001")
    skillttrl("skills", "add", bank, "--id", "new", "--title", "Other", "--text", "Use  it.", "--task-type", "heat")
    with SkillBank(bank) as opened:
        opened.record_usages([("gen_001", True), ("gen_001", False)], 4)
    for other in (file, tmp_path / "folder"):
        found = skillttrl("inspect", "--diff", other, bank, "--json").json
        assert [(each["kind"], each["id"], each["was"], each["matched_by"]) for each in found["skills"]] == [
            ("changed", "gen_001", None, "id"),
            ("changed", "new", "hea_001", "text"),
        ]
        assert {"-Look once.", "+Look twice.", "+Then go."} <= set(found["skills"][0]["lines"])
        assert not any("uses" in line for each in found["skills"] for line in each["lines"])
        assert {"id": "gen_001", "field": "uses", "a": 0, "b": 2} in found["records"]
        assert found["b"] == {"path": str(bank), "version": 5, "skills": 2} and found["same"] == 0
    shown = skillttrl("inspect", "--diff", file, bank).out
    assert "0 added, 0 removed, 2 changed, 0 the same" in shown and "changed new (in A: hea_001, same text)" in shown
    assert "Records of skills that both have" in shown and "last_used_step" in shown
    back = skillttrl("inspect", "--diff", bank, file, "--json").json
    assert [each["kind"] for each in back["skills"]] == ["changed", "changed"]
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    assert RunFolder.exists(run)
    refused(skillttrl("inspect", "--diff", run, bank), "There is no skill bank at")
    bank.rename(run / "bank")
    assert skillttrl("inspect", "--diff", run, run / "bank", "--json").json["same"] == 2


def test_a_comparison_that_cannot_be_made_says_how_it_is_meant(bank: Path, file: Path, tmp_path: Path) -> None:
    refused(skillttrl("inspect", "--diff", bank, tmp_path / "fill.json"), "nothing at", "Did you mean", "file.json?")
    refused(skillttrl("inspect", "--diff", 1, 2), "Versions 1 and 2 of which bank?", code=2)
    refused(skillttrl("inspect", bank, "--diff", bank, file), "leave the bank (inspect: the PATH) out", code=2)
    refused(skillttrl("inspect"), "Name a path", code=2)
    refused(skillttrl("inspect", "--search", "x"), "Name a path", code=2)
    (tmp_path / "twice.json").write_text('[{"id": "a", "text": "t"}, {"id": "a", "text": "u"}]')
    refused(skillttrl("inspect", "--diff", bank, tmp_path / "twice.json"), "twice.json: The id 'a' is given twice")
    (tmp_path / "later.json").write_text('{"schema": 2, "skills": []}')
    for command in (("inspect", "--diff", bank), ("skills", "import", bank)):
        refused(
            skillttrl(*command, tmp_path / "later.json"), "later.json was written under schema 2", "Export it again"
        )
    (bank / "bank.json").write_text('{"schema": 99, "settings": {}}')
    refused(skillttrl("inspect", "--diff", file, bank), "written under schema 99", "skillttrl skills export")


def test_skills_are_matched_by_id_then_text_then_title() -> None:
    a = [Skill("x", "T", "one"), Skill("y", "Same title", "two"), Skill("z", "", "three"), Skill("w", "", "four")]
    b = [Skill("x", "U", "other"), Skill("p", "V", " one "), Skill("q", "same  TITLE", "five"), Skill("r", "", "six")]
    pairs, removed, added = match(a, b)
    assert [(one.id, two.id, how) for one, two, how in pairs] == [("y", "q", "title"), ("x", "x", "id")]
    assert [skill.id for skill in removed] == ["w", "z"] and [skill.id for skill in added] == ["p", "r"]


def test_an_import_says_what_it_does_not_take(bank: Path, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "pdf"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: pdf\ndescription: Reads. Use for PDFs.\n---\nRun it.")
    done = skillttrl("skills", "import", bank, folder.parent)
    assert "added 1: pdf" in done.out and "Note: not taken of pdf: 'scripts/'." in done.err
    assert "not taken of" in skillttrl("skills", "import", bank, file, "--on-duplicate", "rename").err
    assert "added 5" in skillttrl("skills", "import", tmp_path / "other", bank).out
    refused(skillttrl("skills", "import", bank, tmp_path / "fil.json"), "nothing at", "Did you mean")
    refused(skillttrl("skills", "export", bank, "--format", "agentskills"), "agentskills is a folder", "--output")
    refused(skillttrl("skills", "export", bank, "--format", "skilrl"), "Did you mean 'skillrl'?")


def test_an_empty_bank_is_exported_and_imported(tmp_path: Path) -> None:
    with SkillBank(tmp_path / "empty"):
        pass
    for form in ("json", "skillrl", "document", "agentskills"):
        path = tmp_path / form
        assert skillttrl("skills", "export", tmp_path / "empty", "-o", path, "--format", form).code == 0
        done = skillttrl("skills", "import", tmp_path / f"{form}-bank", path, "--format", form)
        assert "nothing differs" in done.out, (form, done)


def test_a_file_of_skills_is_written_in_another_format(file: Path) -> None:
    assert "## Look" in skillttrl("skills", "export", file, "--format", "document").out


def test_hostile_titles_are_shown_as_text(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"id": "a", "title": "[red]\x1b[2J", "text": "\x9b31m", "odd": "\u202e"}]))
    (tmp_path / "y.json").write_text("[]")
    shown = skillttrl("inspect", "--diff", path, tmp_path / "y.json").out
    assert "[red]" in shown and not {"\x1b", "\x9b", "\u202e"} & set(shown)


def test_a_run_that_begins_with_a_published_bank_exports_its_skills(
    tiny_yaml: Path, file: Path, tmp_path: Path
) -> None:
    config = load_config(str(tiny_yaml), [f"skills.bank={file}", "skills.embedder=hash"])
    run = RunFolder.create(tmp_path / "run", config)
    opened = open_run_bank(config.skills, run, None)
    assert opened
    with opened.bank as bank:
        bank.record_usages([("gen_001", True)])
    exported = skillttrl("skills", "export", tmp_path / "run", "--format", "skillrl").json
    assert exported["general_skills"] == FILE["general_skills"]
    for name in ("run/bank", "folder"):  # a bank, and folders of the standard
        if name == "folder":
            assert skillttrl("skills", "export", file, "-o", tmp_path / name, "--format", "agentskills").code == 0
        assert len(starting_skills(SkillsConfig(bank=str(tmp_path / name)))) == 2
