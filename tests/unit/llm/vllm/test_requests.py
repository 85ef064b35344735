"""What is asked of vLLM and what comes back, without an engine."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.llm.vllm.checks import SEEDS, check_prompt, completions, request_seed, sampling_fields


def fields(request: Request, sampling: Sampling, room: int = 100) -> dict[str, Any]:
    return sampling_fields(request, sampling, 1, eos_ids={7, 3}, room=room)


def test_each_request_draws_from_a_seed_of_its_own_that_vllm_can_add_to() -> None:
    seeds = [request_seed(base, number) for base in (0, 1) for number in range(200)]
    assert len(set(seeds)) == 400 and all(0 <= seed < SEEDS for seed in seeds)
    assert SEEDS + 2**20 < 2**63


def test_the_shortest_limit_counts() -> None:
    long, short = Sampling(max_new_tokens=50), Sampling(max_new_tokens=5)
    assert fields(Request(), long)["max_tokens"] == 50
    assert fields(Request(max_new_tokens=8), long)["max_tokens"] == 8
    assert fields(Request(max_new_tokens=8), short)["max_tokens"] == 5
    assert fields(Request(), long, room=1)["max_tokens"] == 1


def test_greedy_samples_are_drawn_once_and_repeated(tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    asked = [fields(Request(n=4), Sampling(temperature=temperature))["n"] for temperature in (0.0, 0.5)]
    assert asked == [1, 4]  # vLLM refuses several greedy ones
    ids = tuple(tokenizer.encode("12"))
    found = completions(tokenizer, [(ids, (-0.5,) * len(ids), "length")], 4, version=3)
    assert len(found) == 4 == found.count(found[0])
    assert (found[0].text, found[0].finish_reason, found[0].policy_version) == ("12", "length", 3)
    (broken,) = completions(tokenizer, [((), (), "abort")], 1, version=3)
    assert broken.finish_reason == "error"


@pytest.mark.parametrize(("length", "says"), [(0, "no tokens"), (8, "8 tokens does not fit the engine's 8")])
def test_a_prompt_leaves_room_for_a_token(length: int, says: str) -> None:
    check_prompt((5,) * 7, 8, "the engine's {}")
    with pytest.raises(ModelError, match=says):
        check_prompt((5,) * length, 8, "the engine's {}")
