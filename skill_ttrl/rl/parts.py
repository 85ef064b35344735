"""The trainable parameters of a causal language model by the part of the model that they belong to."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

PARTS = ("embeddings", "attention", "mlp", "norms", "head", "lora", "other")
_BY_NAME = (
    ("norms", re.compile(r"norm|\bln_")),
    ("attention", re.compile(r"\battn\b|attention|self_attn")),
    ("mlp", re.compile(r"\bmlp\b|feed_forward|\bffn\b|experts")),
)


def model_parts(model: Any) -> dict[str, list[nn.Parameter]]:
    """Sort the trainable parameters into `PARTS`; parts without any are left out.

    A head that is tied to the embeddings counts with these; adapters, whatever they sit on, are `lora`; a value head is `other`.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    head = set() if output is None else {id(parameter) for parameter in output.parameters()}
    found: dict[str, list[nn.Parameter]] = {part: [] for part in PARTS}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found[_part(name, id(parameter), embeddings, head)].append(parameter)
    return {part: parameters for part, parameters in found.items() if parameters}


def _part(name: str, key: int, embeddings: set[int], head: set[int]) -> str:
    if ".lora_" in name:
        return "lora"
    if key in embeddings:
        return "embeddings"
    if key in head:
        return "head"
    return next((part for part, pattern in _BY_NAME if pattern.search(name)), "other")
