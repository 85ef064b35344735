"""OpenAI's protocol against a real engine: a vLLM server, asked directly and through a proxy that fails on purpose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from skill_ttrl.config import BuiltinConfig, load_config
from skill_ttrl.llm.backend import Backend, BackendContext, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.backends import make_backend
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.load import save_model
from skill_ttrl.llm.server_key import key_headers
from skill_ttrl.types import Message
from tests.vllm_server import VLLMServer

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

SHAPE = BuiltinConfig(hidden_size=128, layers=2, heads=4, max_positions=512)
CORPUS = ["Compute 12+34.", '8;12;<answer>128</answer> {"pick": "yes"} "no"'] * 20
QUESTIONS = [f"Compute {number}+{3 * number}." for number in range(11, 19)]


@dataclass
class Engine:
    """The server of this file and the same weights here."""

    address: str
    name: str
    here: HFBackend


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    tokenizer = build_tokenizer(CORPUS)
    model: Any = build_model(SHAPE, tokenizer, seed=0)
    for parameter in model.parameters():  # far from flat, so that greedy texts have no ties
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)
    save_model(model, tokenizer, folder / "model")
    words = ["--set", "vllm.max_model_len=512", "--set", "vllm.max_num_seqs=64"]
    with VLLMServer(folder / "model", *words, log=folder / "log") as server:
        address = server.address
        models = httpx.get(f"{address}/v1/models", headers=key_headers(address), trust_env=False).json()["data"]
        yield Engine(address, models[0]["id"], HFBackend(model.eval(), tokenizer))


def backend(engine: Engine, *more: str) -> Backend:
    settings = [f"endpoints.model={json.dumps(engine.name)}", f"endpoints.base_url={engine.address}/v1"]
    settings += ["rollout.backend=openai", "endpoints.server_type=vllm", "endpoints.logprobs=true", *more]
    return make_backend(BackendContext(load_config({}, settings), lambda: pytest.fail("a model was loaded")))


def readable(generation: Generation) -> str:
    return "".join(letter for letter in generation.completions[0].text if letter.isascii())


def sample(made: Any, requests: list[Request], **sampling: Any) -> list[Generation]:
    return wait_for(made.generate(requests, Sampling(max_new_tokens=40, **sampling), seed=3))


def test_greedy_texts_and_their_log_probs_are_those_of_the_same_weights_here(engine: Engine) -> None:
    requests = [Request((Message("user", question),)) for question in QUESTIONS]
    made = backend(engine)
    there, here = sample(made, requests, temperature=0.0), sample(engine.here, requests, temperature=0.0)
    made.close()
    for far, near in zip(there, here, strict=True):
        # Random weights write bytes that are no text; those are shown in two ways.
        assert readable(far) == readable(near)
        assert far.completions[0].finish_reason == near.completions[0].finish_reason
        assert far.completions[0].num_sampled_tokens == near.completions[0].num_sampled_tokens
        assert far.completions[0].logprobs == pytest.approx(near.completions[0].logprobs, abs=1e-4)


def test_a_stop_text_ends_an_answer_and_stays_in_it(engine: Engine) -> None:
    request = Request((Message("user", QUESTIONS[0]),))
    whole = sample(engine.here, [request], temperature=0.0)[0].completions[0].text
    mark = next(letter for letter in whole[3:] if letter.isascii() and letter.isprintable())
    made = backend(engine)
    far, near = (
        sample(each, [request], temperature=0.0, stop=(mark,))[0].completions[0] for each in (made, engine.here)
    )
    made.close()
    assert far.text.endswith(mark) and far.finish_reason == "stop" and len(far.text) < len(whole)
    assert far.logprobs == pytest.approx(near.logprobs, abs=1e-4)


def test_an_answer_that_was_begun_is_gone_on_with(engine: Engine) -> None:
    """By its text there, by its tokens here: the same follows."""
    messages, begun = (Message("user", QUESTIONS[0]),), "8;12;<answer>12"
    ids = (*engine.here.encode(messages), *engine.here.encode_text(begun))
    made = backend(engine)
    far = sample(made, [Request(messages, assistant_prefix=begun)], temperature=0.0)[0].completions[0]
    near = sample(engine.here, [Request(messages, token_ids=ids)], temperature=0.0)[0].completions[0]
    made.close()
    assert far.logprobs == pytest.approx(near.logprobs, abs=1e-4) and not far.text.startswith(begun)
