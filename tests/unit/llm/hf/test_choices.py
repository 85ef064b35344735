"""Constrained sampling: a completion is one of its choices, drawn from the model's distribution over what may follow."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.agents.action_parser import PLACE
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.hf import HFBackend, sample_seeds
from skill_ttrl.llm.hf.sampling import SLOT

CHOICES = ("go to 1", "go to 12", "go", "take 3 from 4", "take 3", "look")


@pytest.fixture(scope="module")
def backend(tiny_model: tuple[Any, Any]) -> HFBackend:
    return HFBackend(*tiny_model)


def sample(
    backend: HFBackend, requests: list[Request], *, seed: int = 0, length: int = 16, **how: Any
) -> list[Generation]:
    return backend.sample(requests, Sampling(max_new_tokens=length, **how), sample_seeds(requests, seed))


def by_prefix(backend: HFBackend, choices: tuple[str, ...], written: tuple[int, ...]) -> set[int]:
    """Tokens that may follow, straight from the definition."""
    whole = [(*backend.encode_text(choice), backend.tokenizer.eos_token_id) for choice in choices]
    return {choice[len(written)] for choice in whole if choice[: len(written)] == written}


@settings(max_examples=15)
@given(
    st.integers(0, 10_000),
    st.lists(st.lists(st.sampled_from(CHOICES), min_size=1, max_size=6).map(tuple), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_every_token_is_drawn_from_what_may_follow_with_the_log_prob_among_those(
    backend: HFBackend, seed: int, several: list[tuple[str, ...]], temperature: float
) -> None:
    ids = backend.encode_text("Act: ")
    requests = [Request(token_ids=ids, n=3, choice=choices) for choices in several]  # one prompt, different choices
    for request, found in zip(requests, sample(backend, requests, seed=seed, temperature=temperature), strict=True):
        for done in found.completions:
            assert done.text in request.choice and done.finish_reason == "stop" and done.allowed is not None
            logits = backend.model(torch.tensor([[*ids, *done.token_ids]])).logits[0].detach() / (temperature or 1)
            for place, (token, logprob, allowed) in enumerate(
                zip(done.token_ids, done.logprobs, done.allowed, strict=True)
            ):
                assert set(allowed) == by_prefix(backend, request.choice, done.token_ids[:place])
                assert all(one < other for one, other in pairwise(allowed)) and token in allowed
                masked = torch.log_softmax(logits[len(ids) + place - 1, list(allowed)], -1)
                assert logprob == pytest.approx(float(masked[allowed.index(token)]), abs=1e-4)
                assert temperature or masked.max() == masked[allowed.index(token)]
                assert len(allowed) > 1 or logprob == 0


def test_frequencies_are_those_of_the_masked_distribution(backend: HFBackend) -> None:
    ids = backend.encode_text("Act: ")
    (found,) = sample(backend, [Request(token_ids=ids, n=4000, choice=CHOICES)])
    texts = [done.text for done in found.completions]
    for text in set(texts):
        chance = math.exp(sum(found.completions[texts.index(text)].logprobs))
        assert texts.count(text) / 4000 == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / 4000))


def test_one_choice_needs_no_model(backend: HFBackend) -> None:
    ran: list[Any] = []
    hook = backend.model.register_forward_pre_hook(lambda *args: ran.append(1))
    (found,) = sample(backend, [Request(token_ids=(1, 2), n=2, choice=("look",))])
    hook.remove()
    assert not ran and {done.text for done in found.completions} == {"look"}
    assert all(set(done.logprobs) == {0.0} for done in found.completions)


def test_a_choice_that_the_tokenizer_cannot_give_back_is_written_as_it_was_given(tiny_model: tuple[Any, Any]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "<end>": 1, "take": 2, "go": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made: Any = PreTrainedTokenizerFast
    few = made(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")
    backend = HFBackend(tiny_model[0], few)
    choices = ("take vase", "take lamp", "go  north")
    (found,) = sample(backend, [Request(token_ids=(2,), n=20, choice=choices)])
    assert {done.text for done in found.completions} == {"take vase", "go  north"}


def test_a_slot_for_any_words_is_refused(backend: HFBackend) -> None:
    assert SLOT.pattern == PLACE.pattern
    with pytest.raises(ConfigError, match=r"agent\.structured_actions"):
        sample(backend, [Request(token_ids=(5, 6), choice=("search[<your query>]", "click[buy now]"))])
