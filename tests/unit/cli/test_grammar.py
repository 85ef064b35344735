"""One grammar: the same options everywhere, and an example in each help."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from skill_ttrl.agents.scripted import is_scripted
from skill_ttrl.cli.main import app, main
from skill_ttrl.cli.options import check_resume
from skill_ttrl.errors import RunFolderError

ROOT = Path(__file__).parents[3]
COMMANDS = dict(runpy.run_path(str(ROOT / "docs" / "generate_cli.py"))["commands"]())


def options(command: str) -> dict[str, object]:
    """Option → parameter of a command."""
    return {word: each for each in COMMANDS[command].params for word in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_json_and_shows_an_example(command: str) -> None:
    assert "--json" in options(command) or command == "serve"  # which prints vLLM's own messages
    text = COMMANDS[command].help
    (example,) = re.findall(r"Example: `([^`]*)`", text)
    assert f"skillttrl {command}".strip() in example and text.rstrip().endswith(f"`{example}`")


def test_one_name_means_one_thing() -> None:
    known: dict[str, set[str]] = {"--policy": set(), "--config": set(), "--env-data": set()}
    for command in COMMANDS:
        for name, found in known.items():
            if name in options(command):
                found.add(str(options(command)[name].metavar))  # type: ignore[attr-defined]
        shorts = {name: options(command)[name] for name in ("-n", "-o") if name in options(command)}
        assert "-o" not in shorts or "--output" in shorts["-o"].opts  # type: ignore[attr-defined]
        assert "-n" not in shorts or {"--samples", "--rollouts-per-task"} & {*shorts["-n"].opts}  # type: ignore[attr-defined]
    assert known == {"--policy": {"POLICY"}, "--config": {"CONFIG"}, "--env-data": {"PATH"}}


def test_an_output_is_continued_unless_that_is_forbidden(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "full", tmp_path / "full" / "file"):
        check_resume("auto", path)
        with pytest.raises(RunFolderError, match=f"{path} already exists. Continue it with --resume auto"):
            check_resume("never", path)
    check_resume("never", tmp_path / "empty", tmp_path / "nothing", None)


def test_a_path_comes_before_the_name_of_a_scripted_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert all(map(is_scripted, ("random", "first", "constant:look", "expert")))
    assert not any(map(is_scripted, ("runs/a", "openai:m", "none", "owner/name")))
    (tmp_path / "random").mkdir()
    assert not is_scripted("random")


def test_the_names_of_the_commands_stay() -> None:
    names = {name.split()[0] for name in COMMANDS if name}
    stay = "train collect distill sft rl vote merge evaluate inspect ask export serve init doctor configs envs skills"
    assert {*stay.split(), "optimize", "replay", "report"} <= names and len(COMMANDS) <= 28
    assert app.info.name == "skillttrl"


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_and_no_word_of_a_help_is_cut_at_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["skillttrl", *command.split(), "--help"])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().out
    assert "Example:" in shown and "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
