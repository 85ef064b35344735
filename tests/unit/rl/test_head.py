"""Log-probs in blocks of the vocabulary against the plain softmax, values and gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from skill_ttrl.rl import micro_batch as allowed
from skill_ttrl.rl import policy as log_probs
from skill_ttrl.rl.batch import EncodedDemonstration, RolloutBatch, pack, pack_demonstrations
from skill_ttrl.rl.micro_batch import lay_out
from skill_ttrl.rl.policy import HeadSettings, Policy, score_tokens
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory
from tests.unit.rl.conftest import _model

VOCABULARY, WIDTH, POSITIONS, CHOSEN = 40, 6, 11, 17
ALL = 10**9


class Inputs(NamedTuple):
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    rows: Tensor


@pytest.fixture
def inputs() -> Callable[..., Inputs]:
    def make(*, frozen: bool, bias: bool) -> Inputs:
        torch.manual_seed(3)
        hidden = torch.randn(POSITIONS, WIDTH, requires_grad=True)
        weight = torch.randn(VOCABULARY, WIDTH, requires_grad=not frozen)
        offsets = torch.randn(VOCABULARY, requires_grad=not frozen) if bias else None
        targets, rows = torch.randint(0, VOCABULARY, (CHOSEN,)), torch.randint(0, POSITIONS, (CHOSEN,))
        return Inputs(hidden, weight, offsets, targets, rows)

    return make


def plain(inputs: Inputs, settings: HeadSettings) -> tuple[Tensor, Tensor]:
    hidden, weight, bias, targets, rows = inputs
    logits = torch.nn.functional.linear(hidden, weight, bias) * settings.scale
    if settings.softcap is not None:
        logits = settings.softcap * torch.tanh(logits / settings.softcap)
    log_p = torch.log_softmax(logits / settings.temperature, dim=-1)
    return log_p[rows, targets], -(log_p.exp() * log_p).sum(-1)[rows]


@pytest.mark.parametrize("budget", [0, 160, ALL], ids=["nothing held", "some held", "all held"])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_the_softmax(
    budget: int,
    softcap: float | None,
    entropy: bool,
    frozen: bool,
    bias: bool,
    inputs: Callable[..., Inputs],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_probs, "MIN_BLOCK_WIDTH", 7)
    monkeypatch.setattr(log_probs, "CPU_BLOCK", 50)
    settings = HeadSettings(1.3, softcap, 0.7, entropy, budget)
    given = inputs(frozen=frozen, bias=bias)
    learnt = [part for part in given[:3] if part is not None and part.requires_grad]
    pull, entropy_pull = torch.randn(CHOSEN), torch.randn(CHOSEN)

    found, found_entropy = score_tokens(*given, settings)
    expected, expected_entropy = plain(given, settings)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    loss, plain_loss = (found * pull).sum(), (expected * pull).sum()
    assert (found_entropy is not None) == entropy
    if found_entropy is not None:
        torch.testing.assert_close(found_entropy, expected_entropy, atol=1e-5, rtol=1e-5)
        loss = loss + (found_entropy * entropy_pull).sum()
        plain_loss = plain_loss + (expected_entropy * entropy_pull).sum()
    gradients = torch.autograd.grad(loss, learnt, retain_graph=True)
    for gradient, wanted in zip(gradients, torch.autograd.grad(plain_loss, learnt), strict=True):
        torch.testing.assert_close(gradient, wanted, atol=2e-5, rtol=1e-4)
    again = torch.autograd.grad(loss, learnt)
    assert all(torch.equal(first, second) for first, second in zip(gradients, again, strict=True))


@pytest.mark.parametrize("frozen", [False, True])
def test_bf16_autocast_computes_the_softmax_in_float32(frozen: bool, inputs: Callable[..., Inputs]) -> None:
    given = inputs(frozen=frozen, bias=False)
    hidden, weight, _, targets, rows = given
    learnt = [hidden] if frozen else [hidden, weight]
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = score_tokens(*given, HeadSettings(budget=ALL))
        logits = torch.nn.functional.linear(hidden, weight)
    assert found.dtype == torch.float32 and logits.dtype == torch.bfloat16
    expected = torch.log_softmax(logits.float(), dim=-1)[rows, targets]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for gradient, wanted in zip(
        torch.autograd.grad(found.sum(), learnt), torch.autograd.grad(expected.sum(), learnt), strict=True
    ):
        assert gradient.dtype == torch.float32
        assert float((gradient - wanted).norm() / wanted.norm()) < 0.01


# Gradients of embedding and head that go straight to `.grad` are those of autograd.


PAD = 7


def batch() -> RolloutBatch:
    rows = [([1, 2, PAD, 3], [4, PAD, 5]), ([1, 2, PAD, 3], [4, 6]), ([PAD], [2, 2, 2, PAD])]
    return pack_demonstrations([EncodedDemonstration(prompt, response) for prompt, response in rows])


def gradients(policy: Policy, *, packed: bool, twice: bool) -> dict[str, Tensor]:
    policy.model.zero_grad()
    for _ in range(1 + twice):
        micro_batch = lay_out(batch(), torch.arange(3), 0, packed=packed)
        policy.token_logprobs(micro_batch)[0].sum().backward()  # type: ignore[no-untyped-call]
    found = {name: value.grad for name, value in policy.model.named_parameters() if value.grad is not None}
    return {name: value.clone() for name, value in found.items()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("twice", [True, False], ids=["gathered", "first"])
@pytest.mark.parametrize("budget", [0, 10_000])
@pytest.mark.parametrize("bf16", [False, True])
def test_they_are_autograds(tied: bool, packed: bool, twice: bool, budget: int, bf16: bool) -> None:
    policy = Policy(
        _model(tie_word_embeddings=tied, pad_token_id=PAD, initializer_range=0.3), None, "cpu", logit_budget=budget
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        expected = gradients(policy, packed=packed, twice=twice)
        with policy.training(0):
            assert policy._gathers
            found = gradients(policy, packed=packed, twice=twice)
    assert not policy._gathers and found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-2 if bf16 else 1e-5, msg=name)
    embedding = found["model.embed_tokens.weight"]
    assert bool(embedding[PAD].any()) == tied  # its row learns as the head's alone


# Log-probs, entropies and gradients of tokens that were drawn from a part of the vocabulary, against a plain masked softmax.


V = 40
FREE = tuple(range(0, V, 2))
"""A set that is large here, the same object wherever it stands."""


def limited_batch(seed: int = 0) -> RolloutBatch:
    """Five answers to one prompt: tokens from small sets, forced ones, from a large set, and from the whole vocabulary."""
    draw, tries = random.Random(seed), []
    for _ in range(5):
        sets: list[tuple[int, ...]] = []
        for kind in draw.choices(("small", "forced", "large"), k=5):
            small = tuple(sorted(draw.sample(range(V - 1), 1 if kind == "forced" else 4)))
            sets.append(FREE if kind == "large" else small)
        tokens = tuple(draw.choice(found) for found in sets)
        done = Completion("", tokens, (-1.0,) * 5, "stop", allowed=tuple(sets))
        tries.append(Trajectory(Task("t", "e"), (Step("", "", 0.0, True, False, (1, 2, 3), done),), None, "terminated"))
    free = Completion("", (5, 6), (-1.0,) * 2, "stop")  # of another kind: no limits at all
    tries.append(replace(tries[0], steps=(Step("", "", 0.0, True, False, (1, 2, 3), free),)))
    return pack([Group(Task("t", "e"), tuple(tries))])


def expected(policy: Policy, batch: RolloutBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs, entropies) of the trained tokens, item after item, from the model's own logits."""
    assert batch.allowed_F is not None
    assert batch.allowed_ids_P is not None
    assert batch.allowed_sizes_U is not None
    ids = torch.split(batch.allowed_ids_P, batch.allowed_sizes_U.tolist())
    found, entropies = [], []
    for start, length, prompt in zip(batch.starts_N, batch.lengths_N, batch.prompt_lengths_N, strict=True):
        tokens = batch.tokens_F[start : start + length]
        logits = policy.model(input_ids=tokens[None]).logits[0].float() / temperature
        for at in range(int(prompt), int(length)):
            number = int(batch.allowed_F[start + at])
            chosen = torch.arange(V) if number < 0 else ids[number]
            log_p = torch.log_softmax(logits[at - 1, chosen], dim=0)
            found.append(log_p[chosen == tokens[at]].squeeze(0))
            entropies.append(-(log_p.exp() * log_p).sum())
    return torch.stack(found), torch.stack(entropies)


class Scaled(nn.Linear):
    """A head that the learner does not know."""


@pytest.mark.parametrize("kind", ["padded", "packed", "lora", "custom", "several blocks"])
def test_scores_under_limits_are_those_of_a_masked_softmax(
    kind: str,
    make_policy: Callable[..., Policy],
    make_lora_policy: Callable[..., Policy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allowed, "GATHERED_SET", 8)  # FREE is large
    make = make_lora_policy if kind == "lora" else make_policy
    policies = [make(packing="off" if kind == "padded" else "on") for _ in range(2)]
    if kind == "custom":
        for policy in policies:
            head: Any = Scaled(16, V, bias=False)
            head.weight = policy.model.lm_head.weight
            policy.model.lm_head = policy._head._module = head
    if kind == "several blocks":
        monkeypatch.setattr("skill_ttrl.rl.policy.CPU_BLOCK", 1)
        monkeypatch.setattr("skill_ttrl.rl.policy.MIN_BLOCK_WIDTH", 7)
    batch = limited_batch()
    weights_K = torch.linspace(-1, 2, int(batch.trained_F.sum()))
    wanted, entropies = expected(policies[0], batch, 0.6)
    torch.autograd.backward((wanted * weights_K + 0.3 * entropies).sum())
    with policies[1].training(0):
        part = policies[1].lay_out(batch, torch.arange(len(batch)))
        assert part.allowed and {each.ids_V is None for each in part.allowed} == {True, False}
        log_probs, entropy = policies[1].token_logprobs(part, temperature=0.6, with_entropy=True)
        assert entropy is not None
        chosen = part.response_mask_N_R.bool()
        found_K, entropy_K = log_probs[chosen], entropy[chosen]
        torch.autograd.backward((found_K * weights_K + 0.3 * entropy_K).sum())
    assert torch.allclose(found_K, wanted, atol=2e-5) and torch.allclose(entropy_K, entropies, atol=2e-5)
    assert (found_K[entropies == 0] == 0).all() and bool((entropies == 0).any()), "a forced token has probability 1"
    for (name, mine), other in zip(policies[1].model.named_parameters(), policies[0].model.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None), name
        if mine.grad is not None and other.grad is not None:
            assert torch.allclose(mine.grad, other.grad, atol=2e-5), name
