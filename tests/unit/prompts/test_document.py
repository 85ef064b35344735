"""A skill document in prompts: where it stands, that it counts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import make_env
from skill_ttrl.errors import DocumentError
from skill_ttrl.prompts.templates import document_revision, read_document
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.train.build import make_agent
from skill_ttrl.train.run import RolloutWorker
from skill_ttrl.types import Message
from tests.scripted_backend import ScriptedBackend

RULES = "# Rules\n\n- Write $answer between <answer> tags.\n"
WINDOW: dict[str, Any] = {"context_mode": "window", "template": "episode"}


def config(tmp_path: Path, tokens: int = 2000, **agent: Any) -> SkillTTRLConfig:
    (tmp_path / "rules.md").write_text(RULES, encoding="utf-8")
    section = {"template": "plain", "document": str(tmp_path / "rules.md"), **agent}
    return SkillTTRLConfig.model_validate({"agent": section, "data": {"max_prompt_tokens": tokens}})


def agent(tmp_path: Path, **section: Any) -> Agent:
    return make_agent(config(tmp_path, **section), ScriptedBackend(["x"]))


@pytest.mark.parametrize("more", [{}, WINDOW])
def test_it_stands_behind_the_system_message_and_can_be_exchanged(tmp_path: Path, more: dict[str, Any]) -> None:
    bare = agent(tmp_path, document=None, system="Be brief.", **more).prompt(AgentInput("1+1?")).messages
    made = agent(tmp_path, system="Be brief.", **more)
    shown = made.prompt(AgentInput("1+1?")).messages
    assert shown == (Message("system", f"Be brief.\n\n{RULES}"), bare[1])
    assert made.with_document("Other.").prompt(AgentInput("1+1?")).messages[0].content == "Be brief.\n\nOther."
    assert made.with_document("").prompt(AgentInput("1+1?")).messages == bare
    assert made.prompt(AgentInput("1+1?")).messages == shown
    alone = agent(tmp_path, **more).prompt(AgentInput("1+1?")).messages
    assert alone[0] == Message("system", RULES) and alone[1:] == bare[1:]


@pytest.mark.parametrize("more", [{}, WINDOW])
def test_one_that_is_too_long_says_how_long_it_may_be(tmp_path: Path, more: dict[str, Any]) -> None:
    made = config(tmp_path, tokens=600, **more)
    worker = RolloutWorker(
        made, ScriptedBackend(["x"]), make_agent(made, ScriptedBackend(["x"])), EnvPool(lambda: make_env("math"))
    )
    with pytest.raises(DocumentError, match=r"has 701 tokens, and only (\d+) fit: .* 600") as raised:
        worker.with_document("x" * 700)
    room = int(str(raised.value).split("only ")[1].split(" fit")[0])
    fitting = worker.with_document("x" * (room - 1))
    prompt = fitting.agent.prompt(AgentInput("?", task="?"))
    assert worker.backend.count(prompt.messages) == 600 and prompt.fits in (None, True)
    assert worker.agent.formatter.document == RULES
    with pytest.raises(DocumentError):
        worker.with_document("x" * room)


def test_a_file_that_is_no_document_or_another_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"cannot read .*gone\.md: No such file"):
        read_document(tmp_path / "gone.md")
    (tmp_path / "binary.md").write_bytes(b"a\xff")
    with pytest.raises(DocumentError, match=r"is not UTF-8 text \(byte 1\)"):
        read_document(tmp_path / "binary.md")
    file = tmp_path / "rules.md"
    file.write_bytes(b"a\r\n")
    assert read_document(file) == "a\n"
    pinned = document_revision(str(file))
    file.write_bytes(b"a\n")
    assert document_revision(str(file), pinned) == pinned
    file.write_bytes(b"b\n")
    with pytest.raises(DocumentError, match="has changed"):
        document_revision(str(file), pinned)
