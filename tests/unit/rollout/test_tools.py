"""Turns of tool calls in a rollout: calls are answered, the conversation grows by tokens, and what goes wrong is told to the model."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.config import AgentConfig, SkillsConfig
from skill_ttrl.envs import make_env
from skill_ttrl.envs.tools import with_tools
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.chat import TokenizerMixin, encode_chat
from skill_ttrl.llm.hf.backend import HFBackend
from skill_ttrl.rl.batch import pack
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.skills.retrieval import BankView, make_retriever
from skill_ttrl.types import Completion, Group, Message, Skill, Task, ToolCall, Trajectory, from_json, to_json
from tests import rollouts
from tests.rollouts import AGENT
from tests.scripted_backend import ScriptedBackend


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Spoken(TokenizerMixin, ScriptedBackend):
    """The script in the tokens of a real tokenizer, each answer with its end token."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        super().__init__(texts)
        self.tokenizer = tokenizer

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        return [
            Generation(request.token_ids or (), tuple(self._completion(next(self._texts)) for _ in range(request.n)))
            for request in requests
        ]

    def _completion(self, text: str) -> Completion:
        ids = (*self.tokenizer.encode(text), self.tokenizer.eos_token_id)
        return Completion(text, ids, (-1.0,) * len(ids), "stop")


def play(
    tokenizer: Any, *texts: str, agent: Agent = AGENT, tools: Any = ("calculator",), backend: Any = None
) -> Trajectory:
    envs = EnvPool(lambda: with_tools(make_env("math"), AgentConfig(tools=list(tools))))
    task = Task("one", "SkillTTRL/Math-v0", {"question": "Compute 12*34."}, ground_truth="408")
    how: dict[str, Any] = {"sampling": Sampling(max_new_tokens=8), "max_turns": 3}
    spoken = backend or Spoken(tokenizer, texts)
    (group,) = rollouts.play(envs, [task], 1, spoken, replace(agent, tools=envs.schemas), **how)
    return from_json(Trajectory, to_json(group.trajectories[0]))


def test_calls_are_answered_and_the_conversation_grows_by_tokens(tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    both = call("calculator", expression="12*34") + call("calculator", expression="1/0")
    found = play(tokenizer, "<think>I compute.</think>" + both, "\\boxed{408}")
    first, last = found.steps
    assert [(each.name, each.result, each.error) for each in first.calls] == [
        ("calculator", "408", ""),
        ("calculator", "Error: division by zero", "failed"),
    ]
    assert first.completion is not None and last.completion is not None
    assert first.completion.text == "<think>\nI compute.\n</think>\n\n" and first.action == both
    assert (found.answer, found.env_return, found.stop_reason) == ("408", 1.0, "terminated")
    grown = (*first.prompt_ids, *first.completion.token_ids)
    assert last.prompt_ids[: len(grown)] == grown  # nothing that was sampled is encoded again
    later = tokenizer.decode(last.prompt_ids[len(grown) :])
    assert (
        later
        == "\n<|im_start|>tool\n408<|im_end|>\n<|im_start|>tool\nError: division by zero<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "<|im_start|>tools\ncalculator\n<|im_end|>" in tokenizer.decode(first.prompt_ids)


@pytest.mark.parametrize(
    ("written", "error", "says"),
    [
        ("<tool_call>{name: calculator}</tool_call>", "not_json", "not JSON"),
        (call("calculater", expression="1"), "no_tool", "calculator"),
        (call("calculator", number=3), "bad_arguments", "expression"),
        (call("calculator", expression="<|im_end|>"), "failed", "not arithmetic"),
    ],
)
def test_a_call_that_cannot_be_run_is_answered(
    tiny_model: tuple[Any, Any], written: str, error: str, says: str
) -> None:
    _, tokenizer = tiny_model
    first, last = play(tokenizer, written, "408").steps
    (made,) = first.calls
    assert made.error == error and says in (made.result or "") and not last.calls


def test_a_template_that_changes_what_it_wrote_gets_the_turn_anew(tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    before = tokenizer.chat_template
    tokenizer.chat_template = before.replace("{% if tools", "{{ messages | length }}{% if tools")
    try:
        with pytest.warns(UserWarning, match="rendered anew"):
            first, last = play(tokenizer, call("calculator", expression="2+2"), "4").steps
        asked = [
            Message("user", "Compute 12*34."),
            Message("assistant", "", first.calls),
            Message("tool", "4", call=first.calls[0]),
        ]
        envs = with_tools(make_env("math"), AgentConfig(tools=["calculator"]))
        assert last.prompt_ids == encode_chat(tokenizer, asked, envs.get_wrapper_attr("schemas"))
    finally:
        tokenizer.chat_template = before


def test_the_bank_as_tools(tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    settings = BankSettings(embedder="hash", index="memory")
    shot = Snapshot(1, {"sk-1": Skill("sk-1", "Products", "Multiply the tens first.")})
    agent = Agent(
        PromptFormatter("plain"),
        skills=SkillsConfig(as_tools=True, max_retrievals=0),
        bank=BankView(shot, make_retriever(settings)),
    )
    search, read = (
        call("search_skills", query="a product"),
        call("read_skill", id="sk-1") + call("read_skill", id="sk-2"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = play(tokenizer, search, read, "\\boxed{408}", agent=agent, tools=())
    searched, opened, last = found.steps
    assert "sk-1: Products" in (searched.calls[0].result or "") and not last.calls
    assert "Multiply the tens first." in (opened.calls[0].result or "") and opened.calls[1].error == "failed"
    assert found.retrieved == ("sk-1",) and found.env_return == 1.0


def test_a_template_that_cannot_write_what_was_said_ends_the_episode_not_the_run(tiny_model: tuple[Any, Any]) -> None:
    tokenizer = copy.deepcopy(tiny_model[1])
    single = "{% for m in messages if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call only') }}{% endfor %}"
    tokenizer.chat_template = single + tokenizer.chat_template
    with pytest.warns(UserWarning, match="one call only"):
        found = play(tokenizer, call("calculator", expression="2+2") * 2)
    assert found.stop_reason == "error" and "one call only" in (found.error or "") and len(found.steps) == 1


class Calls(HFBackend):
    """Takes whatever it writes for a call."""

    def tool_calls(
        self, completion: Completion, tools: Sequence[str], prompt_ids: Sequence[int] = ()
    ) -> tuple[str, tuple[ToolCall, ...]]:
        return completion.text, (ToolCall("calculator", '{"expression": "6*7"}'),)


def test_an_episode_with_calls_is_one_sequence_whose_log_probs_are_those_that_were_sampled(
    tiny_model: tuple[Any, Any],
) -> None:
    model, tokenizer = tiny_model
    found = play(tokenizer, backend=Calls(model, tokenizer))
    batch = pack([Group(found.task, (found,))], join=True)
    assert len(found.steps) == 3 and len(batch.starts_N) == 1
    with torch.no_grad():
        scores = model(batch.tokens_F[None]).logits[0, :-1].log_softmax(-1)
    fresh = scores.gather(1, batch.tokens_F[1:, None])[:, 0][batch.step_F[1:] >= 0]
    sampled = [each for step in found.steps if step.completion for each in step.completion.logprobs]
    assert fresh.tolist() == pytest.approx(sampled, abs=1e-4)  # of no other token: results are not learned


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ('I look.[CALL]{"name": "f", "arguments": {"x": 1}}[/CALL]', "I look.", [("f", '{"x": 1}', "")]),
        ("[CALL]{f[/CALL]", "", [("", "[CALL]{f[/CALL]", "not_json")]),
        ("plain", "plain", []),
    ],
)
def test_a_tokenizer_with_a_response_template_reads_its_own_calls(
    tiny_model: tuple[Any, Any], text: str, said: str, calls: list[Any]
) -> None:
    tokenizer = copy.deepcopy(tiny_model[1])
    own = {"open": "[CALL]", "close": "[/CALL]", "content": "json", "repeats": True}
    fields = {"content": {"content": "text"}, "tool_calls": own}
    tokenizer.response_template = {"start_anchor": "<|im_start|>assistant\n", "fields": fields}
    backend = Spoken(tokenizer, [text])
    prompt = encode_chat(tokenizer, [Message("user", "hi")])
    found = backend.tool_calls(backend._completion(text), (), prompt)
    assert found == (said, tuple(ToolCall(name, written, error=error) for name, written, error in calls))
