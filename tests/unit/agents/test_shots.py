"""`agent.shots`: worked examples are turns of the prompt, and the model's prompts share them as their beginning."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.llm.chat import encode_chat
from skill_ttrl.llm.hf.backend import HFBackend
from skill_ttrl.stages.setup.policy import make_window
from skill_ttrl.types import Step

SHOTS = [{"user": "1+1?", "assistant": "2"}, {"user": "2+2?", "assistant": "4"}]
LINES = [{"prompt": "1+1?", "response": "2"}, {"problem": "2+2?", "answer": "4", "id": "b"}]
GIVEN = {"system": "Add.", "shots": SHOTS, "template": "plain"}


def test_they_stand_between_the_system_message_and_the_task(tiny_model: tuple[Any, Any]) -> None:
    model, tokenizer = tiny_model
    config = SkillTTRLConfig.model_validate({"agent": GIVEN})
    agent = Agent(PromptFormatter.from_config(config.agent))
    later = (Step("3+3?", "6", 0.0, False, False),)
    first, second = (agent.prompt(AgentInput(text, steps)).messages for text, steps in (("3+3?", ()), ("4+4?", later)))
    assert [turn.role for turn in first] == ["system", *["user", "assistant"] * 2, "user"]
    assert [turn.content for turn in second[1:]] == ["1+1?", "2", "2+2?", "4", "3+3?", "6", "4+4?"]
    window = make_window(
        SkillTTRLConfig.model_validate({"agent": GIVEN | {"template": "episode", "context_mode": "window"}}),
        HFBackend(model, tokenizer),
    )
    turn = window.prompt("a room", (), "find it", ["look"]).messages
    assert turn[:5] == first[:5] and len(turn) == 6
    ids = [encode_chat(tokenizer, messages) for messages in (first, second, turn)]
    shared = tokenizer.decode(
        [each[0] for each in takewhile(lambda each: len(set(each)) == 1, zip(*ids, strict=False))]
    )
    assert "2+2?" in shared and shared.endswith("user\n")  # a header that is read once
    backend = HFBackend(model, tokenizer)
    together = backend.sample([Request(first), Request(second)], Sampling(max_new_tokens=3), [[1], [2]])
    alone = backend.sample([Request(second)], Sampling(max_new_tokens=3), [[2]])
    assert together[1].completions[0].token_ids == alone[0].completions[0].token_ids


def test_a_file_of_data_lines_is_read_with_the_config(tmp_path: Path) -> None:
    file = tmp_path / "shots.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    found = load_config({"agent": {"shots": str(file)}})
    assert found == load_config({"agent": {"shots": SHOTS}})
    file.write_text('{"prompt": "1+1?"}\n')
    for path, fault in ((file, r"shots.0.assistant: must be a valid string"), (tmp_path / "none", "missing or empty")):
        with pytest.raises(ConfigError, match=fault):
            load_config({"agent": {"shots": str(path)}})
