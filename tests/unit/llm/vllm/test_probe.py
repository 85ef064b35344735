"""What is handed to another sampler, and whether it is seen that it did not arrive."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from skill_ttrl.errors import WeightSyncError
from skill_ttrl.llm.backend import Generation
from skill_ttrl.llm.models.weights import full_weights
from skill_ttrl.llm.vllm.probe import Probe, check_sync, learner_logprobs
from skill_ttrl.types import Completion


def adapted(model: Any, **changes: Any) -> Any:
    torch.manual_seed(1)
    options: dict[str, Any] = {"r": 4, "target_modules": "all-linear", "init_lora_weights": False}
    return get_peft_model(copy.deepcopy(model), LoraConfig(**(options | changes)))


def test_adapters_are_folded_in_and_the_model_is_left_as_it_is(tiny_model: tuple[Any, Any]) -> None:
    model, _ = tiny_model
    policy = adapted(model)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    found = dict(full_weights(policy))
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())
    merged = copy.deepcopy(policy).merge_and_unload()
    expected = dict(merged.named_parameters())
    assert set(found) == set(expected) == {name for name, _ in model.named_parameters()}
    changed = [name for name in found if not torch.equal(found[name], dict(model.named_parameters())[name])]
    assert len(changed) == 7 * model.config.num_hidden_layers
    for name, value in found.items():
        assert torch.allclose(value, expected[name], atol=1e-6), name


def test_weights_that_did_not_arrive_are_refused(tiny_model: tuple[Any, Any]) -> None:
    model, _ = tiny_model
    probe = Probe(model.config.vocab_size)
    ours, theirs = (learner_logprobs(each, probe.sequences) for each in (adapted(model), model))
    with pytest.raises(WeightSyncError, match="does not sample from the policy"):
        check_sync(ours, theirs, 1e-3, "weights")


def test_log_probs_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(WeightSyncError):
        check_sync([[0.0, -1.0]], [[0.0, float("nan")]], 1e9, "weights")


def test_a_probe_takes_what_was_sampled_last_and_keeps_to_its_bounds(tiny_model: tuple[Any, Any]) -> None:
    probe = Probe(100, longest=5)
    drawn = list(probe.sequences)
    probe.take([])
    assert probe.sequences == drawn
    sampled = [
        Generation((index, 1), (Completion("", (2,) * 9, (0.0,) * 9, "stop"), Completion("", (3,), (0.0,), "stop")))
        for index in range(30)
    ]
    probe.take(sampled)
    assert len(probe.sequences) == 8 and all(len(ids) == 5 for ids in probe.sequences)
    assert probe.sequences[0] == (0, 1, 2, 2, 2) and probe.sequences[-1][0] > 15
    probe.take([Generation((), (Completion("said", (), (), "stop"),))])  # texts alone: nothing to score
    assert len(probe.sequences) == 8
