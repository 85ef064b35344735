"""Constrained sampling: a completion is one of its choices, drawn from the model's distribution over what may follow.

A slot takes some words alone.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.agents.action_parser import PLACE
from skill_ttrl.agents.observations import WORDS, FormActions, Slot
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.hf import HFBackend, sample_seeds
from skill_ttrl.llm.hf.choices import SLOT, ChoiceTokens
from skill_ttrl.llm.models.builtin import build_entity_tokenizer

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


WRITTEN = f"ask {WORDS}"
SLOTTED = ("asleep", "buy", WRITTEN)
SOME = ("a", "ab", "b", "b c")


def texts(words: tuple[str, ...], most: int) -> list[str]:
    """All that can be written with at most so many words."""
    said, every = [""], []
    for _ in range(most):
        said = [f"{begun} {word}" for begun in said for word in words]
        every += [f"ask{each}" for each in said]
    return [*every, *SLOTTED[:-1]]


@settings(max_examples=25)
@given(st.lists(st.sampled_from(SOME), min_size=1, max_size=3, unique=True).map(tuple), st.integers(7, 10), st.data())
def test_what_may_follow_is_what_the_definition_says(
    backend: HFBackend, words: tuple[str, ...], room: int, data: st.DataObject
) -> None:
    end = backend.tokenizer.eos_token_id
    whole = {(*(backend.encode_text(text) or ()), end) for text in texts(words, 3)}
    whole = {ids for ids in whole if len(ids) <= room}
    tokens = ChoiceTokens(backend.tokenizer, end)
    walk, written = tokens.start(SLOTTED, words), tuple[int, ...]()
    while True:
        allowed = walk.allowed(room - len(written))
        assert all(one < other for one, other in pairwise(allowed))
        assert set(allowed) == {ids[len(written)] for ids in whole if ids[: len(written)] == written}
        token = data.draw(st.sampled_from(allowed))
        written = (*written, token)
        if token == end:
            break
        walk.take(token)
    said = tokens.text(SLOTTED, words, written)
    assert written in whole and said is not None and (*(backend.encode_text(said) or ()), end) == written


def test_samples_keep_to_their_own_words_with_the_log_probs_among_what_may_follow(backend: HFBackend) -> None:
    ids = backend.encode_text("Do: ") or ()
    asked = [Request(token_ids=ids, n=12, choice=(WRITTEN,), slot_words=words) for words in (("red",), ("a", "blue"))]
    for request, found in zip(asked, sample(backend, asked, length=24), strict=True):
        form = FormActions({}, Slot(WRITTEN, f"ask[{WORDS}]", {word: word for word in request.slot_words}))
        for done in found.completions:
            assert done.finish_reason == "stop" and len(done.token_ids) <= 24 and done.allowed is not None
            assert form.read(done.text) is not None
            logits = backend.model(torch.tensor([[*ids, *done.token_ids]])).logits[0].detach()
            for place, (token, logprob, allowed) in enumerate(
                zip(done.token_ids, done.logprobs, done.allowed, strict=True)
            ):
                masked = torch.log_softmax(logits[len(ids) + place - 1, list(allowed)], -1)
                assert logprob == pytest.approx(float(masked[allowed.index(token)]), abs=1e-4)
    assert len({done.text for found in sample(backend, asked[1:2], length=24) for done in found.completions}) > 3


def test_a_tokenizer_of_entities_writes_words_as_it_reads_them() -> None:
    tokenizer = build_entity_tokenizer(["search word 1 word 12", "buy", "new running shoe"])
    words = ("word 1", "word 12", "new", "shoe", "never seen", "!?")
    slot, tokens = (
        Slot(f"search {WORDS}", f"search[{WORDS}]", {word: word.upper() for word in words}),
        ChoiceTokens(tokenizer, 1),
    )
    for said in ("search new word 12 word 1", "search shoe", "search word 1 word 1 new", "search never seen new"):
        ids = (*tokenizer.encode(said, add_special_tokens=False), tokens.end_id)
        walk = tokens.start(("buy", slot.written), words)
        for token in ids[:-1]:
            assert token in walk.allowed(9)
            walk.take(token)
        assert tokens.end_id in walk.allowed(9) and tokens.text(("buy", slot.written), words, ids) == said


def test_words_without_tokens_cannot_be_written() -> None:
    tokens = ChoiceTokens(build_entity_tokenizer(["buy", "ask"]), 1)
    assert tokens.start(SLOTTED, ("!", "?")).allowed(9) == tokens.start(SLOTTED[:-1]).allowed(9)
    with pytest.raises(ModelError, match="no tokens for any of the 2 words"):
        tokens.start((WRITTEN,), ("!", "?"))
