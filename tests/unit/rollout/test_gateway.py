"""Agent programs through the gateway: what the openai SDK gets, what is recorded, and what attacks come to. The SDK and sockets are real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
import torch

from skill_ttrl.llm.backend import Backend, Sampling, wait_for
from skill_ttrl.llm.hand_over import BatchingBackend
from skill_ttrl.llm.hf.backend import HFBackend
from skill_ttrl.rollout.gateway import Gateway, ModelCall, Session

ASKED = {"role": "user", "content": "Compute 12+34."}


def through(backend: Any, *programs: Callable[[openai.OpenAI], None], **options: Any) -> list[Session]:
    """Run programs at once, each with a session of its own."""

    async def run() -> list[Session]:
        how = options.pop("sampling", Sampling(max_new_tokens=8))
        async with Gateway(backend, how, **options) as gateway:
            sessions = [gateway.session(seed) for seed in range(len(programs))]
            clients = [openai.OpenAI(base_url=each.url, api_key=each.key, max_retries=0) for each in sessions]
            await asyncio.gather(*map(asyncio.to_thread, programs, clients))
            return sessions

    return wait_for(run())


def ask(client: openai.OpenAI, *messages: Any, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": "policy", "messages": list(messages)} | more)


@pytest.fixture
def backend(tiny_model: tuple[Any, Any]) -> Backend:
    return BatchingBackend(HFBackend(*tiny_model), lambda: 1)


def tokens(call: ModelCall) -> tuple[int, ...]:
    return call.prompt_ids + call.completion.token_ids


def test_a_plain_call(backend: Any) -> None:
    found: list[Any] = []

    def program(client: openai.OpenAI) -> None:
        found.append(ask(client, ASKED, n=2, seed=4, logprobs=True, temperature=0, max_tokens=5))
        found.append(ask(client, ASKED, n=2, seed=4))
        found.append(client.models.list().data[0].id)

    (session,) = through(backend, program)
    first, again, model = found
    assert model == first.model == "policy" and [choice.index for choice in first.choices] == [0, 1]
    assert len(session.calls) == 4 and session.error is None
    for choice, call in zip(first.choices, session.calls, strict=False):
        assert choice.message.content == call.completion.text and choice.finish_reason == "length"
        assert [row.logprob for row in choice.logprobs.content] == list(call.completion.logprobs)
        assert call.observation == "Compute 12+34."
    assert first.usage.prompt_tokens == len(session.calls[0].prompt_ids) and first.usage.completion_tokens == 10
    texts = [[choice.message.content for choice in each.choices] for each in (first, again)]
    assert all(long.startswith(short) for short, long in zip(*texts, strict=True))  # the seed is the same


def test_conversations_become_sequences_whose_logprobs_are_those_of_a_fresh_forward_pass(
    backend: Any, tiny_model: tuple[Any, Any]
) -> None:
    def program(client: openai.OpenAI) -> None:
        talk: list[Any] = [ASKED]
        for question in ("And 1+2?", "And 3?"):
            said = ask(client, *talk).choices[0].message
            talk += [
                said.model_dump(exclude_none=True),
                {"role": "user", "content": [{"type": "text", "text": question}]},
            ]
        ask(client, *talk)
        ask(client, {"role": "system", "content": "A sub-agent."}, {"role": "user", "content": "12"})
        ask(client, ASKED, {"role": "assistant", "content": "a summary"}, talk[-1])

    (session,) = through(backend, program)
    one, two, three, other, compacted = session.calls
    assert two.prompt_ids[: len(tokens(one))] == tokens(one) and two.observation == "And 1+2?"
    assert three.prompt_ids[: len(tokens(two))] == tokens(two) and three.observation == "And 3?"
    for branch in (other, compacted):
        assert all(branch.prompt_ids[: len(tokens(each))] != tokens(each) for each in (one, two, three))
    model = tiny_model[0]
    for call in session.calls:
        with torch.no_grad():
            logits = model(torch.tensor([tokens(call)])).logits[0].float()
        rows = logits.log_softmax(-1)[len(call.prompt_ids) - 1 : -1]
        fresh = rows.gather(1, torch.tensor(call.completion.token_ids)[:, None])[:, 0]
        assert fresh.tolist() == pytest.approx(list(call.completion.logprobs), abs=1e-4)
