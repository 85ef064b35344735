"""`agent.shots`: worked examples are turns of the prompt, and the model's prompts share them as their beginning."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.llm.chat import encode_chat
from skill_ttrl.llm.hf.backend import HFBackend
from skill_ttrl.stages.setup.policy import make_window
from skill_ttrl.types import Step

SHOTS = [{"user": "1+1?", "assistant": "2"}, {"user": "2+2?", "assistant": "4"}]
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
