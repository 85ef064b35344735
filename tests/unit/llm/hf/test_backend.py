"""The `hf` backend on a small random model: its log-probs are the learner's, its tokens are drawn as asked."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backend import Generation, Request, Sampling, wait_for
from skill_ttrl.llm.hf import HFBackend, HFCopyBackend, sample_seeds, sample_token, truncate
from skill_ttrl.rl.batch import pack
from skill_ttrl.rl.micro_batch import lay_out
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Group, Message, Step, Task, Trajectory

TASK = Task("t", "Env-v0")
RAGGED = ["Hi", "Compute 12+34.", "A much longer question, of 56 words: " + "why " * 9, "9"]


@pytest.fixture(scope="module")
def backend(tiny_model: tuple[Any, Any]) -> HFBackend:
    return HFBackend(*tiny_model)


def sample(
    backend: HFBackend, prompts: list[str], n: int = 3, *, seed: int = 0, length: int = 12, **how: Any
) -> list[Generation]:
    requests = [Request((Message("user", prompt),), n=n) for prompt in prompts]
    return wait_for(backend.generate(requests, Sampling(max_new_tokens=length, **how), seed=seed))


def training_logprobs(backend: HFBackend, found: list[Generation], temperature: float) -> list[list[float]]:
    """What the learner computes for the very tokens, from its own packing and padding."""
    groups = []
    for generation in found:
        steps = [Step("", done.text, 0.0, True, False, generation.prompt_ids, done) for done in generation.completions]
        groups.append(Group(TASK, tuple(Trajectory(TASK, (step,), None, "terminated") for step in steps)))
    rows = [done for generation in found for done in generation.completions]
    batch = pack(groups)
    policy = Policy(backend.model, backend.tokenizer, "cpu")
    scored = []
    for row in range(len(rows)):
        micro_batch = lay_out(batch, torch.tensor([row]), policy.pad_id)
        with torch.no_grad():
            log_probs, _ = policy.token_logprobs(micro_batch, temperature=temperature)
        scored.append(log_probs[0, : len(rows[row].token_ids)].tolist())
    return scored


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.9}], ids=str)
def test_ids_beyond_the_tokenizer_are_never_drawn(tiny_model: tuple[Any, Any], how: dict[str, Any]) -> None:
    model, tokenizer = deepcopy(tiny_model[0]), tiny_model[1]
    size = len(tokenizer)
    model.resize_token_embeddings(size + 20)
    with torch.no_grad():  # the padding is what the model likes best
        model.get_input_embeddings().weight[size:] = 3 * model.get_input_embeddings().weight[:20]
    backend = HFBackend(model, tokenizer)
    found = sample(backend, RAGGED[:2], 8, **how)
    assert max(token for each in found for done in each.completions for token in done.token_ids) < size
    scored = training_logprobs(backend, found, how.get("temperature") or 1.0)
    done = [list(done.logprobs) for each in found for done in each.completions]
    for ours, learners in zip(done, scored, strict=True):  # of the whole distribution, as with every truncation
        assert ours == pytest.approx(learners, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.3, 1.7])
@pytest.mark.parametrize("rows", [1024, 5])
def test_log_probs_are_those_of_the_training_forward(
    tiny_model: tuple[Any, Any], temperature: float, rows: int
) -> None:
    backend = HFBackend(*tiny_model, max_batch_size=rows)
    found = sample(backend, RAGGED, n=4, length=24, temperature=temperature)
    completions = [done for generation in found for done in generation.completions]
    assert len({len(generation.prompt_ids) for generation in found}) > 2
    for done, expected in zip(completions, training_logprobs(backend, found, temperature), strict=True):
        assert len(done.logprobs) == len(done.token_ids) == len(expected)
        assert done.logprobs == pytest.approx(expected, abs=1e-4)
    assert max(abs(value) for done in completions for value in done.logprobs) > 0.5  # not flat, not certain


def test_a_cpu_decodes_as_many_rows_as_a_gibibyte_holds(tiny_model: tuple[Any, Any]) -> None:
    backend = HFBackend(*tiny_model, max_batch_size=10**9)
    cache = backend.model(torch.ones(1, 8, dtype=torch.long), use_cache=True).past_key_values
    of_a_token = sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values)) // 8
    assert backend._most_rows(64) == 2**30 // (64 * of_a_token)
    assert HFBackend(*tiny_model, max_batch_size=3)._most_rows(64) == 3


def ending_soon(tiny_model: tuple[Any, Any], share: float) -> HFBackend:
    """A backend for which many tokens end a completion, so that rows finish at many lengths."""
    backend = HFBackend(*tiny_model)
    vocabulary = len(backend.tokenizer)
    backend.eos_ids = set(range(0, vocabulary, round(1 / share))) | backend.eos_ids
    return backend


def test_rows_that_leave_early_change_no_log_prob(tiny_model: tuple[Any, Any]) -> None:
    backend = ending_soon(tiny_model, 0.1)
    found = sample(backend, RAGGED, n=16, length=24)
    completions = [done for generation in found for done in generation.completions]
    assert len({len(done.token_ids) for done in completions}) > 6
    for done, expected in zip(completions, training_logprobs(backend, found, 1.0), strict=True):
        assert done.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_completion_ends_with_its_end_token_and_says_why(tiny_model: tuple[Any, Any]) -> None:
    backend = ending_soon(tiny_model, 0.1)
    reasons = set()
    for generation in sample(backend, RAGGED, n=16, length=10):
        for done in generation.completions:
            *before, last = done.token_ids
            assert not backend.eos_ids & set(before)
            assert (last in backend.eos_ids) == (done.finish_reason == "stop")
            assert done.finish_reason == "stop" or len(done.token_ids) == 10
            assert done.text == backend.tokenizer.decode(done.token_ids, skip_special_tokens=True)
            reasons.add(done.finish_reason)
    assert reasons == {"stop", "length"}


def test_the_same_seed_gives_the_same_tokens(backend: HFBackend) -> None:
    torch.manual_seed(1)
    first = sample(backend, RAGGED, seed=4)
    torch.manual_seed(2)
    assert sample(backend, RAGGED, seed=4) == first != sample(backend, RAGGED, seed=5)
    texts = {done.token_ids for done in sample(backend, ["Hi"], n=32)[0].completions}
    assert len(texts) > 16  # the samples of one prompt differ


def test_greedy_takes_the_likeliest_token(backend: HFBackend) -> None:
    (found,) = sample(backend, ["Compute 12+34."], n=2, length=6, temperature=0.0)
    assert found.completions[0] == found.completions[1]
    ids = list(found.prompt_ids)
    for token, logprob in zip(found.completions[0].token_ids, found.completions[0].logprobs, strict=True):
        with torch.no_grad():
            scores = torch.log_softmax(backend.model(torch.tensor([ids])).logits[0, -1], -1)
        assert int(scores.argmax()) == token and float(scores[token]) == pytest.approx(logprob, abs=1e-4)
        ids.append(token)


def uniforms(count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(0))


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]).expand(4, -1)
    tokens, _ = sample_token(logits, Sampling(), torch.tensor([0.0, 0.4999, 0.5, 1.0 - 2**-24]))
    assert tokens.tolist() == [1, 1, 3, 3]


def test_a_sample_depends_on_no_other_in_its_batch(backend: HFBackend) -> None:
    """So several processes that sample parts of a batch give what one gives."""
    requests = [Request(token_ids=backend.tokenizer.encode(prompt), n=5) for prompt in RAGGED]
    sampling, seeds = Sampling(max_new_tokens=10), sample_seeds(requests, 3)
    whole = backend.sample(requests, sampling, seeds)
    parts = [
        backend.sample([replace(request, n=last - first)], sampling, [own[first:last]])[0].completions
        for request, own in zip(requests, seeds, strict=True)
        for first, last in ((0, 2), (2, 5))
    ]
    tokens = [[done.token_ids for done in each.completions] for each in whole]
    assert tokens == [
        [done.token_ids for done in (*parts[2 * place], *parts[2 * place + 1])] for place in range(len(RAGGED))
    ]


@pytest.mark.parametrize(
    ("how", "allowed"),
    [
        ({"top_k": 1}, {2}),
        ({"top_k": 2}, {1, 2}),
        ({"top_p": 0.5}, {2}),
        ({"top_p": 0.75}, {1, 2}),
        ({"top_p": 0.9}, {0, 1, 2}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_k": 2, "top_p": 0.6}, {2}),
    ],
)
def test_truncation_draws_allowed_tokens_only(how: dict[str, Any], allowed: set[int]) -> None:
    logits = torch.tensor([0.12, 0.26, 0.55, 0.07]).log().expand(4000, -1)
    tokens, logprobs = sample_token(logits, Sampling(**how), uniforms(4000))
    assert set(tokens.tolist()) == allowed
    torch.testing.assert_close(logprobs, logits.gather(1, tokens[:, None]).squeeze(1))
    assert int(truncate(logits[:1], Sampling(**how)).isfinite().sum()) == len(allowed)


def test_frequencies_follow_the_temperature() -> None:
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(20_000, -1)
    tokens, _ = sample_token(logits, Sampling(temperature=0.5), uniforms(20_000))
    expected = torch.tensor([0.04, 0.09, 0.25]) / 0.38
    torch.testing.assert_close(torch.bincount(tokens, minlength=3) / 20_000, expected, atol=0.015, rtol=0)


def test_prompts_that_cannot_be_continued(backend: HFBackend) -> None:
    with pytest.raises(ModelError, match="does not fit the model's 128 positions"):
        sample(backend, ["x" * 300])
    with pytest.raises(ModelError, match="is empty"):
        wait_for(backend.generate([Request(token_ids=())], Sampling(), seed=0))


def test_a_copy_samples_with_the_weights_of_the_last_hand_over(tiny_model: tuple[Any, Any]) -> None:
    learner = deepcopy(tiny_model[0]), tiny_model[1]
    own, copied = HFBackend(*learner), HFCopyBackend(*learner)
    first = sample(own, RAGGED)
    assert sample(copied, RAGGED) == first
    with torch.no_grad():
        for each in learner[0].parameters():
            each += 0.05 * torch.sin(torch.arange(each.numel(), dtype=each.dtype)).view_as(each)
    assert sample(copied, RAGGED) == first, "the learner has moved on, the copy has not"
    copied.update_weights(1)
    own.update_weights(1)
    assert sample(copied, RAGGED) == sample(own, RAGGED) != first
