"""Log-probs, entropies and gradients of tokens that were drawn from a part of the vocabulary, against a plain masked softmax."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from skill_ttrl.rl import micro_batch as allowed
from skill_ttrl.rl.batch import RolloutBatch, pack
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory

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
        monkeypatch.setattr("skill_ttrl.rl.head.CPU_BLOCK", 1)
        monkeypatch.setattr("skill_ttrl.rl.head.MIN_BLOCK_WIDTH", 7)
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
