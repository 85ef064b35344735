"""The parameters that learn, as they travel to another process."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from skill_ttrl.config import LoraConfig
from skill_ttrl.llm.models.load import add_lora
from skill_ttrl.llm.models.weights import each_trained_weight, pack_weights, take_weights, trained_weights


@pytest.mark.parametrize("adapted", [False, True])
def test_a_copy_that_takes_them_is_the_same_and_frozen_ones_stay_where_they_are(
    tiny_model: tuple[Any, Any], adapted: bool
) -> None:
    model: Any = deepcopy(tiny_model[0])
    if adapted:
        model = add_lora(model, LoraConfig(r=2, alpha=4), seed=0)
    other: Any = deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.requires_grad * 0.5)
    packed = pack_weights(each_trained_weight(model))
    take_weights(other, packed)
    for (name, mine), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name
    assert (len(packed) < sum(each.numel() for each in model.parameters())) == adapted


def test_a_model_that_lacks_one_of_them_says_which(tiny_model: tuple[Any, Any]) -> None:
    weights = trained_weights(tiny_model[0])
    name, _ = weights.popitem()
    with pytest.raises(KeyError, match=name):
        take_weights(deepcopy(tiny_model[0]), pack_weights(weights.items()))
