"""Generation that pauses: answered in rounds, limited, and true to its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from skill_ttrl.llm.backend import Generation, Request, Sampling, wait_for
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.llm.pauses import MAX_IDLE, InsertionPoint, generate_with_insertions
from skill_ttrl.types import Completion
from tests.scripted_backend import ScriptedBackend

MARK = "</ask>"


def run(
    backend: Any,
    answer: Any,
    *,
    limit: int = 1,
    n: int = 1,
    prompts: Sequence[str] = ("p",),
    stop_markers: tuple[str, ...] = (MARK,),
) -> list[Generation]:
    requests = [Request(token_ids=tuple(prompt.encode()), n=n) for prompt in prompts]
    how = Sampling(max_new_tokens=40)
    return wait_for(
        generate_with_insertions(backend, requests, how, seed=0, stop_markers=stop_markers, answer=answer, limit=limit)
    )


def test_what_is_inserted_stands_where_it_was_asked_and_is_masked() -> None:
    backend = ScriptedBackend(["one <ask>a</ask>", " then two"])
    asked: list[InsertionPoint] = []

    def answer(pauses: Sequence[InsertionPoint]) -> list[str | None]:
        asked.extend(pauses)
        return ["[A]" for _ in pauses]

    ((done,),) = (generation.completions for generation in run(backend, answer))
    assert done.text == "one <ask>a</ask>[A] then two" and done.model_text == "one <ask>a</ask> then two"
    assert bytes(done.token_ids).decode() == done.text
    assert done.completion_mask is not None and len(done.completion_mask) == len(done.logprobs) == len(done.token_ids)
    assert bytes(t for t, own in zip(done.token_ids, done.completion_mask, strict=True) if not own) == b"[A]"
    assert asked == [InsertionPoint(0, 0, "one <ask>a</ask>", MARK)]


def test_all_that_pause_are_answered_together_and_only_they_go_on() -> None:
    texts = ["a</ask>", "plain", "b</ask>", "c</ask>", "after a", "after b", "after c"]
    rounds: list[list[str]] = []

    def answer(pauses: Sequence[InsertionPoint]) -> list[str | None]:
        rounds.append([pause.written for pause in pauses])
        return ["" if pause.written == "b</ask>" else pause.written.upper() for pause in pauses]

    found = run(ScriptedBackend(texts), answer, n=2, prompts=("p", "q"))
    assert rounds == [["a</ask>", "b</ask>", "c</ask>"]]
    texts_found = [[done.text for done in generation.completions] for generation in found]
    assert texts_found == [["a</ask>A</ASK>after a", "plain"], ["b</ask>after b", "c</ask>C</ASK>after c"]]
    assert found[1].completions[0].inserted_spans == ()


def test_a_mark_in_other_text_takes_no_question_away() -> None:
    asked: list[str] = []

    def answer(pauses: Sequence[InsertionPoint]) -> list[str | None]:
        asked.extend(pause.written for pause in pauses)
        return ["[A]" if pause.written.endswith("<ask q='1'/>") else None for pause in pauses]

    backend = ScriptedBackend(["<br/>", " and <ask q='1'/>", " then two"])
    ((done,),) = (generation.completions for generation in run(backend, answer, stop_markers=(MARK, "/>")))
    assert done.text == "<br/> and <ask q='1'/>[A] then two"
    assert asked == ["<br/>", "<br/> and <ask q='1'/>"]


def test_pauses_that_ask_nothing_are_bounded() -> None:
    calls = 0

    def answer(pauses: Sequence[InsertionPoint]) -> list[str | None]:
        nonlocal calls
        calls += 1
        return [None] * len(pauses)

    (generation,) = run(ScriptedBackend(["/>"]), answer, stop_markers=("/>",))
    assert calls == MAX_IDLE and generation.completions[0].text == "/>" * (MAX_IDLE + 1)


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_after_the_limit_the_mark_is_ordinary_text(limit: int) -> None:
    calls = 0

    def answer(pauses: Sequence[InsertionPoint]) -> list[str | None]:
        nonlocal calls
        calls += 1
        return ["!"] * len(pauses)

    (generation,) = run(ScriptedBackend(["x</ask>"]), answer, limit=limit)
    assert calls == limit and generation.completions[0].text == "x</ask>" + "!x</ask>" * limit


def test_sampled_tokens_count_against_the_length_and_inserted_ones_do_not() -> None:
    backend = ScriptedBackend(["123456</ask>", "rest"])
    seen: list[int | None] = []
    generate = backend.generate

    async def watched(requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        seen.extend(request.max_new_tokens for request in requests)
        return await generate(requests, sampling, seed=seed)

    backend.generate = watched  # type: ignore[method-assign]
    run(backend, lambda pauses: ["x" * 100] * len(pauses))
    assert seen == [None, 40 - len("123456</ask>")]


@pytest.fixture(scope="module")
def backend(tiny_model: tuple[Any, Any]) -> HFBackend:
    return HFBackend(*tiny_model)


def plain(backend: HFBackend, ids: tuple[int, ...], length: int, **how: Any) -> Completion:
    request = Request(token_ids=ids)
    (found,) = wait_for(backend.generate([request], Sampling(max_new_tokens=length, **how), seed=1))
    return found.completions[0]


def test_a_real_model_goes_on_from_exactly_what_was_inserted(backend: HFBackend) -> None:
    prompt = tuple(backend.encode_text("Compute 12+34."))
    whole = plain(backend, prompt, 12, temperature=0.0)
    mark = backend.tokenizer.decode([whole.token_ids[3]])
    how = Sampling(max_new_tokens=12, temperature=0.0)
    (found,) = asyncio.run(
        generate_with_insertions(
            backend,
            [Request(token_ids=prompt, n=3)],
            how,
            seed=0,
            stop_markers=(mark,),
            answer=lambda p: [" 7"] * len(p),
            limit=1,
        )
    )
    first, *others = found.completions
    assert all(other == first for other in others)  # greedy: a group that pauses together is one request again
    assert first.completion_mask is not None and sum(first.completion_mask) <= 12
    stop = first.completion_mask.index(False)
    told = backend.encode_text(" 7")
    assert first.token_ids[stop : stop + len(told)] == told
    rest = plain(backend, (*prompt, *first.token_ids[: stop + len(told)]), 12 - stop, temperature=0.0)
    assert first.token_ids[stop + len(told) :] == rest.token_ids
    torch.testing.assert_close(list(first.logprobs[stop + len(told) :]), list(rest.logprobs), atol=1e-5, rtol=0)
