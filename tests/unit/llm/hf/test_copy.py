"""The copy that samples while the learner learns: it has the weights of the last hand-over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from skill_ttrl.llm.backend import Generation, Request, Sampling, wait_for
from skill_ttrl.llm.hf import HFBackend, HFCopyBackend
from skill_ttrl.types import Message


@pytest.fixture
def learner(tiny_model: tuple[Any, Any]) -> Any:
    model, tokenizer = tiny_model
    before = [each.detach().clone() for each in model.parameters()]
    yield model, tokenizer
    with torch.no_grad():
        for own, old in zip(model.parameters(), before, strict=True):
            own.copy_(old)


def sample(backend: HFBackend, prompt: str = "Compute 12+34.") -> list[Generation]:
    request = Request((Message("user", prompt),), n=3)
    return wait_for(backend.generate([request], Sampling(max_new_tokens=8), seed=1))


def learn(model: Any) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each += 0.05 * torch.sin(torch.arange(each.numel(), dtype=each.dtype)).view_as(each)


def test_it_samples_with_the_weights_of_the_last_hand_over(learner: Any) -> None:
    own, copy = HFBackend(*learner), HFCopyBackend(*learner)
    first = sample(own)
    assert sample(copy) == first
    learn(learner[0])
    assert sample(copy) == first, "the learner has moved on, the copy has not"
    copy.update_weights(1)
    own.update_weights(1)
    assert sample(copy) == sample(own) != first
