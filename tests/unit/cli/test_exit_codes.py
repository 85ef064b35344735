"""What commands end with: one list in `errors`, the same in the help, in the docs and in the errors themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import skill_ttrl.cli.main as cli_main
from skill_ttrl import errors
from skill_ttrl.errors import EXIT_CODES, SkillTTRLError
from skill_ttrl.signals import RESUME, Interrupted

DOCS = Path(__file__).parents[3] / "docs"


def _below(kind: type[SkillTTRLError]) -> set[type[SkillTTRLError]]:
    return {kind}.union(*(_below(each) for each in kind.__subclasses__()))


def test_an_interruption_is_no_error_and_says_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise Interrupted(f"Interrupted after rl step 2; saved in runs/a. {RESUME}", 2)

    monkeypatch.setattr(cli_main, "command_tree", lambda: stop)
    monkeypatch.setattr("sys.argv", ["skillttrl", "train", "a b.yaml", "--resume", "never", "-o", "runs/a"])
    with pytest.raises(SystemExit) as left:
        cli_main.main()
    resume = "Resume: skillttrl train 'a b.yaml' -o runs/a --resume auto\n"
    assert left.value.code == 130
    assert capsys.readouterr().err == f"Interrupted after rl step 2; saved in runs/a. {resume}"


def test_every_error_has_a_code_of_the_list_and_every_code_an_error() -> None:
    own = {each for each in _below(SkillTTRLError) if each.__module__ == errors.__name__}
    assert {0, *(each.exit_code for each in own)} == {*EXIT_CODES} == {*range(10)}
    documented = {name: int(code) for name, code in re.findall(r"── (\w+)\D*(\d)", errors.__doc__ or "")}
    assert documented == {each.__name__: each.exit_code for each in own - {SkillTTRLError}}
