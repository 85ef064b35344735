"""A real vLLM engine in this process: what it samples, and that it follows the learner."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any

import bm25s  # noqa: F401  (with it comes numba, which vLLM's start must survive: users shop while an engine samples)
import numpy as np
import pytest
import torch

from skill_ttrl.config import load_config
from skill_ttrl.errors import WeightSyncError
from skill_ttrl.llm.backend import BackendContext, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.backends import make_backend
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.llm.models.load import LoadedModel, load_model
from skill_ttrl.llm.pauses import InsertionPoint, generate_with_insertions
from skill_ttrl.types import Message
from tests.vllm_server import learners, worst_gap

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

SETTINGS = {
    "model": {"path": "builtin", "builtin": {"hidden_size": 128, "heads": 4, "layers": 2, "max_positions": 640}},
    "data": {"max_prompt_tokens": 400},
    "rollout": {"backend": "vllm", "max_new_tokens": 200},
}
QUESTIONS = ["Hi", "Compute 12+34.", "A much longer question, of 56 words: " + "why " * 9, "9"]
BLOCK = 128
"""Tokens that vLLM's prefix cache keeps together on a CPU."""


def process_state() -> tuple[Any, ...]:
    numpy = np.random.get_state()
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in numpy],
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.set_num_threads,
    )


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    """The learner's policy: sharp, so that a stale weight shows."""
    made = load_model(
        load_config(SETTINGS).model, device="cpu", corpus=["Compute 12+34.", "8;<answer>128</answer>"] * 20
    )
    for parameter in made.model.parameters():
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)
    return made


@pytest.fixture(scope="module")
def backend(loaded: LoadedModel) -> Iterator[Any]:
    context = BackendContext(load_config(SETTINGS), lambda: loaded, trains=True)
    made: Any = make_backend(context)
    before = process_state()
    made.update_weights(1)
    assert process_state() == before  # the learner shares this process
    yield made
    made.close()


def move(loaded: LoadedModel, by: float = 0.05) -> None:
    """A step of the learner."""
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def sample(
    backend: Any, prompts: Sequence[str], n: int = 3, *, seed: int = 0, length: int = 12, **how: Any
) -> list[Generation]:
    requests = [Request((Message("user", prompt),), n=n) for prompt in prompts]
    return wait_for(backend.generate(requests, Sampling(max_new_tokens=length, **how), seed=seed))


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probs_are_the_learners_at_the_sampling_temperature(
    backend: Any, loaded: LoadedModel, temperature: float
) -> None:
    found = sample(backend, QUESTIONS, n=8, length=40, temperature=temperature)
    assert worst_gap(loaded, found, temperature) < 1e-4
    assert worst_gap(loaded, found, temperature + 0.1) > 1e-2  # the comparison sees a wrong temperature
    reasons = set()
    for question, generation in zip(QUESTIONS, found, strict=True):
        assert generation.prompt_ids == backend.encode([Message("user", question)])
        assert len({done.token_ids for done in generation.completions}) > 1
        for done in generation.completions:
            *before, last = done.token_ids
            assert not backend.eos_ids & set(before)
            assert (last in backend.eos_ids) == (done.finish_reason == "stop")
            assert done.finish_reason == "stop" or len(done.token_ids) == 40
            assert done.text == loaded.tokenizer.decode(list(done.token_ids), skip_special_tokens=True)
            assert done.policy_version == backend.policy_version and done.completion_mask == (True,) * len(
                done.token_ids
            )
            reasons.add(done.finish_reason)
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("stop", [(), ("a", "9")])
def test_greedy_samples_are_those_of_the_hf_backend(backend: Any, loaded: LoadedModel, stop: tuple[str, ...]) -> None:
    hf = HFBackend(loaded.model, loaded.tokenizer)
    ours = sample(backend, QUESTIONS, n=1, length=30, temperature=0, stop=stop)
    theirs = sample(hf, QUESTIONS, n=1, length=30, temperature=0, stop=stop)
    for one, other in zip(ours, theirs, strict=True):
        (mine,), (same,) = one.completions, other.completions
        assert (mine.token_ids, mine.text, mine.finish_reason) == (same.token_ids, same.text, same.finish_reason)
        assert mine.logprobs == pytest.approx(same.logprobs, abs=1e-4)


def test_a_seed_gives_the_same_tokens_and_each_request_has_its_own(backend: Any) -> None:
    state = process_state()
    first = sample(backend, QUESTIONS, seed=4)
    assert sample(backend, QUESTIONS, seed=4) == first != sample(backend, QUESTIONS, seed=5)
    twice = sample(backend, ["Hi", "Hi"], n=8, seed=4)
    drawn = [{done.token_ids for done in generation.completions} for generation in twice]
    assert len(drawn[0]) > 4 and not drawn[0] & drawn[1]
    assert process_state() == state


def test_a_caller_that_leaves_takes_its_requests_along(backend: Any) -> None:
    async def leave() -> None:
        asking = backend.generate([Request(token_ids=(5, 6), n=64)], Sampling(max_new_tokens=200), seed=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asking, 0.1)

    asyncio.run(leave())
    assert not backend.engine().call(lambda llm: llm.llm_engine.has_unfinished_requests())
    assert sample(backend, ["Hi"])


def test_a_pause_goes_on_from_the_very_tokens(backend: Any, loaded: LoadedModel) -> None:
    prompt = backend.encode_text("why " * 400)[: BLOCK + 40]
    asked: list[InsertionPoint] = []

    def answer(pauses: Sequence[InsertionPoint]) -> list[str | None]:
        asked.extend(pauses)
        return [" <|im_end|> told: 12 " for _ in pauses]

    cached = backend.cached_tokens
    (found,) = wait_for(
        generate_with_insertions(
            backend,
            [Request(token_ids=prompt, n=16)],
            Sampling(max_new_tokens=40),
            seed=0,
            stop_markers=("a",),
            answer=answer,
            limit=1,
        )
    )
    told = [done for done in found.completions if done.inserted_spans]
    assert len(told) == len(asked) > 3 and backend.cached_tokens - cached >= BLOCK * len(told)
    control = loaded.tokenizer.convert_tokens_to_ids("<|im_end|>")
    for done in told:
        assert done.completion_mask is not None and sum(done.completion_mask) <= 40
        inserted = [token for token, own in zip(done.token_ids, done.completion_mask, strict=True) if not own]
        assert loaded.tokenizer.decode(inserted) == " <|im_end|> told: 12 " and control not in inserted
        scored = learners(loaded, found.prompt_ids, done)
        pairs = zip(done.logprobs, scored, done.completion_mask, strict=True)
        assert max(abs(own - other) for own, other, sampled in pairs if sampled) < 1e-4


def test_the_engine_follows_the_learner(backend: Any, loaded: LoadedModel) -> None:
    before = sample(backend, QUESTIONS)
    move(loaded)
    stale = sample(backend, QUESTIONS)
    assert stale == before and worst_gap(loaded, stale) > 0.05  # the engine has copies of its own
    backend.update_weights(7)
    after = sample(backend, QUESTIONS)
    assert worst_gap(loaded, after) < 1e-4 and backend.last_logprob_diff.largest < 1e-4
    assert {done.policy_version for generation in after for done in generation.completions} == {7}


def test_an_output_layer_that_keeps_old_weights_ends_the_run(
    backend: Any, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("skill_ttrl.llm.vllm.engine.pack_output_layer", lambda model: None)
        move(loaded)
        with pytest.raises(WeightSyncError, match="differ from the learner's by"):
            backend.update_weights(8)
        assert backend.policy_version != 8
    backend.update_weights(8)
    assert backend.last_logprob_diff.mean < 1e-4


def test_nothing_that_old_weights_computed_is_used_again(
    backend: Any, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(token_ids=backend.encode_text("why " * 400)[: 3 * BLOCK], n=2)

    def gap() -> float:
        return worst_gap(loaded, wait_for(backend.generate([request], Sampling(max_new_tokens=8), seed=0)))

    assert gap() < 1e-4
    move(loaded)
    with monkeypatch.context() as patch:
        patch.setattr(backend.engine()._llm, "reset_prefix_cache", lambda: True)
        backend.update_weights(9)
    assert gap() > 1e-2  # without the reset this very prompt meets old blocks
    backend.update_weights(10)
    assert gap() < 1e-4
    with monkeypatch.context() as patch:
        patch.setattr(backend.engine()._llm, "reset_prefix_cache", lambda: False)
        with pytest.raises(WeightSyncError, match="prefix cache"):
            backend.update_weights(11)
    backend.update_weights(11)
