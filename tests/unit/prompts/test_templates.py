"""Prompts: templates, and questions that stay text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl import PromptFormatter
from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.errors import ConfigError
from skill_ttrl.prompts.templates import PARTS, TURNS, Templates
from skill_ttrl.types import Message, Step


@given(st.text())
def test_a_question_is_inserted_as_it_is(question: str) -> None:
    assert PromptFormatter("plain").format_prompt(question) == question
    assert question in PromptFormatter("boxed").format_prompt(question)


@pytest.mark.parametrize("name", [name for name in Templates().names() if name not in PARTS and name not in TURNS])
def test_shipped_templates_hold_the_question_once_and_end_without_a_line_break(name: str) -> None:
    text = PromptFormatter(name).format_prompt("QUESTION")
    assert text.count("QUESTION") == 1 and not text.endswith("\n")


def test_conversations() -> None:
    formatter = PromptFormatter("plain", system="Be brief.")
    assert formatter.messages("1+1?") == (Message("system", "Be brief."), Message("user", "1+1?"))
    steps = [Step("1+1?", "3", 0.0, False, False), Step("wrong", "4", 0.0, False, False)]
    assert Agent(formatter).prompt(AgentInput("still wrong", steps)).messages[1:] == (
        Message("user", "1+1?"),
        Message("assistant", "3"),
        Message("user", "wrong"),
        Message("assistant", "4"),
        Message("user", "still wrong"),
    )


def test_templates_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read the prompt template"):
        PromptFormatter(str(tmp_path / "none.md"))
    (tmp_path / "binary.md").write_bytes(b"\xff\xfe\x00$question")
    with pytest.raises(ConfigError, match="Cannot read the prompt template"):
        PromptFormatter(str(tmp_path / "binary.md"))
