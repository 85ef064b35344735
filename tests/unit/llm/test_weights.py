"""The parameters that learn, as they travel to another process."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model

from skill_ttrl.config import LoraConfig, ModelConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.models.load import add_lora, load_model, save_model
from skill_ttrl.llm.models.weights import each_trained_weight, full_weights, merge_adapters, pack_weights, take_weights


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


@pytest.mark.parametrize("targets", [["q_proj", "lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"], ["q_proj"]])
def test_merged_adapters_give_the_logits_of_the_adapters(
    targets: list[str], tiny_model: tuple[Any, Any], tmp_path: Path
) -> None:
    model: Any = get_peft_model(deepcopy(tiny_model[0]), PeftConfig(r=2, lora_alpha=4, target_modules=targets)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.requires_grad * 0.3)
        ids = torch.arange(3, 12)[None]
        wanted = model(input_ids=ids).logits
        save_model(merge_adapters(model), tiny_model[1], tmp_path)
        merged: Any = load_model(ModelConfig(path=str(tmp_path)), device="cpu").model
        torch.testing.assert_close(merged(input_ids=ids).logits, wanted, atol=1e-4, rtol=1e-4)
    assert merged.config.tie_word_embeddings == (targets == ["q_proj"])


def test_weights_are_not_handed_over_where_adapters_part_a_head_from_its_embedding(tiny_model: tuple[Any, Any]) -> None:
    model = get_peft_model(deepcopy(tiny_model[0]), PeftConfig(r=2, lora_alpha=4, target_modules=["lm_head"]))
    with pytest.raises(ConfigError, match=r"rollout\.backend=hf"):
        dict(full_weights(model))
