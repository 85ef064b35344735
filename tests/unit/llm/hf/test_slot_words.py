"""Choices whose slot takes some words alone: every token is drawn from those with which the completion can still end as one of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.agents.observations import WORDS, FormActions, Slot
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.hf import HFBackend, sample_seeds
from skill_ttrl.llm.hf.sampling import ChoiceTokens
from skill_ttrl.llm.models.builtin import build_entity_tokenizer

WRITTEN = f"ask {WORDS}"
CHOICES = ("asleep", "buy", WRITTEN)
SOME = ("a", "ab", "b", "b c")


@pytest.fixture(scope="module")
def backend(tiny_model: tuple[Any, Any]) -> HFBackend:
    return HFBackend(*tiny_model)


def sample(backend: HFBackend, requests: list[Request], *, length: int, **how: Any) -> list[Generation]:
    return backend.sample(requests, Sampling(max_new_tokens=length, **how), sample_seeds(requests, 0))


def texts(words: tuple[str, ...], most: int) -> list[str]:
    """All that can be written with at most so many words."""
    said, every = [""], []
    for _ in range(most):
        said = [f"{begun} {word}" for begun in said for word in words]
        every += [f"ask{each}" for each in said]
    return [*every, *CHOICES[:-1]]


@settings(max_examples=25)
@given(st.lists(st.sampled_from(SOME), min_size=1, max_size=3, unique=True).map(tuple), st.integers(7, 10), st.data())
def test_what_may_follow_is_what_the_definition_says(
    backend: HFBackend, words: tuple[str, ...], room: int, data: st.DataObject
) -> None:
    end = backend.tokenizer.eos_token_id
    whole = {(*(backend.encode_text(text) or ()), end) for text in texts(words, 3)}
    whole = {ids for ids in whole if len(ids) <= room}
    tokens = ChoiceTokens(backend.tokenizer, end)
    walk, written = tokens.start(CHOICES, words), tuple[int, ...]()
    while True:
        allowed = walk.allowed(room - len(written))
        assert all(one < other for one, other in pairwise(allowed))
        assert set(allowed) == {ids[len(written)] for ids in whole if ids[: len(written)] == written}
        token = data.draw(st.sampled_from(allowed))
        written = (*written, token)
        if token == end:
            break
        walk.take(token)
    said = tokens.text(CHOICES, written, words)
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
        assert tokens.end_id in walk.allowed(9) and tokens.text(("buy", slot.written), ids, words) == said


def test_words_without_tokens_cannot_be_written() -> None:
    tokens = ChoiceTokens(build_entity_tokenizer(["buy", "ask"]), 1)
    assert tokens.start(CHOICES, ("!", "?")).allowed(9) == tokens.start(CHOICES[:-1]).allowed(9)
    with pytest.raises(ModelError, match="no tokens for any of the 2 words"):
        tokens.start((WRITTEN,), ("!", "?"))
