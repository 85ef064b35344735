"""Files of others that are damaged or hostile: a message that names the file and a documented exit code, never a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skill_ttrl.cli.main import app
from skill_ttrl.commands.train import run
from skill_ttrl.config import load_config
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.storage.jsonl import parse_json
from tests.conftest import TINY_SKILLS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    file = folder.with_name("tiny.yaml")
    file.write_text(TINY_SKILLS)
    run(load_config(str(file)), folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("depth", [100, 101, 100_000])
@pytest.mark.parametrize("level", ["[]", ('{"a":', "}")], ids=["lists", "objects"])
def test_levels_of_json_are_limited(level: tuple[str, str], depth: int) -> None:
    text = f"{level[0] * depth}1{level[1] * depth}"
    if depth <= 100:
        assert parse_json(text)
    else:
        with pytest.raises(ValueError, match="more than 100 levels of nesting"):
            parse_json(text)


@pytest.mark.slow
def test_json_that_is_nested_without_end_is_a_damaged_file(copied: Path) -> None:
    files = sorted(path for path in copied.rglob("*.json*") if path.suffix in (".json", ".jsonl") and path.is_file())
    assert len(files) > 10
    for file in {file.name: file for file in files}.values():  # one of each kind
        whole = file.read_bytes()
        file.write_bytes(b"[" * 100_000 + b"]" * 100_000 + (b"\n" + whole if file.suffix == ".jsonl" else b""))
        refused(
            ["skills", "list", f"{copied}/bank"] if file.parent.name == "bank" else ["inspect", str(copied)], file.name
        )
        file.write_bytes(whole)


def refused(command: list[str], name: str) -> None:
    """Run a command: it ends well or with a message that names the file, and never with a traceback."""
    error = CliRunner().invoke(app, command).exception
    if isinstance(error, SkillTTRLError):
        assert error.exit_code != 1 and name in str(error), f"{' '.join(command)}: {error!r}"
    else:
        assert error is None or isinstance(error, SystemExit), f"{' '.join(command)} with {name}: {error!r}"
