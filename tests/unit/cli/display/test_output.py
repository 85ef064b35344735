"""What a command prints as JSON acts on no terminal, and is the same value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.cli.display.output import print_json

HOSTILE = "\x1b[2J \x7f \x9b31m \x85 \u2028 \u202e \U000e0041 \ud800 ∑ 中"


@pytest.mark.parametrize("value", [HOSTILE, {HOSTILE: [HOSTILE, 1.5, None]}])
def test_json_holds_no_character_that_acts(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert all(character.isprintable() for character in printed.replace("\n", ""))
    assert "∑ 中" in printed


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    from skill_ttrl.sanitize import escape_json

    assert json.loads(escape_json(json.dumps([text], ensure_ascii=False, indent=1))) == [text]
