"""Banks of others in and out on the command line, and the comparison of two banks wherever they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skill_ttrl.config import SkillsConfig, load_config
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.stages.setup.open_run import open_run_bank, starting_skills
from tests.integration.test_cli_commands import refused, skillttrl

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
    ("form", "name"), [("json", "bank.json"), ("document", "x.md"), ("skillrl", "x.json"), ("agentskills", "folder")]
)
def test_inspect_shows_every_format_that_import_reads(form: str, name: str, bank: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    assert skillttrl("skills", "export", bank, "-o", path, "--format", form).code == 0
    found = skillttrl("inspect", path, "--json").json
    assert (found["kind"], found["path"]) == ("skills", str(path))
    assert {skill["text"] for skill in found["skills"]} == {"Use it.", "Look once."}
    assert found["facts"]["skills"].startswith("2 (") and "Look once." in skillttrl("inspect", path).out


def test_an_import_says_what_it_does_not_take(bank: Path, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "pdf"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: pdf\ndescription: Reads. Use for PDFs.\n---\nRun it.")
    done = skillttrl("skills", "import", bank, folder.parent)
    assert "added 1: pdf" in done.out and "'scripts/'" in done.err
    assert "metadata" in skillttrl("skills", "import", bank, file, "--on-duplicate", "rename").err
    assert "added 5" in skillttrl("skills", "import", tmp_path / "other", bank).out
    refused(skillttrl("skills", "import", bank, tmp_path / "fil.json"), 4, "does not exist")
    refused(skillttrl("skills", "export", bank, "--format", "agentskills"), 4, "agentskills", "--output")
    refused(skillttrl("skills", "export", bank, "--format", "skilrl"), 4, "Did you mean 'skillrl'?")


def test_hostile_titles_are_shown_as_text(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"id": "a", "title": "[red]\x1b[2J", "text": "\x9b31m", "odd": "\u202e"}]))
    shown = skillttrl("inspect", path).out
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
    assert "## Look" in skillttrl("skills", "export", file, "--format", "document").out
