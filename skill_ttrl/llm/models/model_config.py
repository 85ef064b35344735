"""The transformers config of a model, without its weights; and what is wrong with a model's files where they cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from skill_ttrl.config import BUILTIN, LoraConfig, ModelConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.gguf import on_disk
from skill_ttrl.storage.jsonl import parse_json


def count_parameters(model_config: Any, lora: LoraConfig | None) -> tuple[int, int, int]:
    """(all numbers of a model with its adapters, those of its adapters, those of its linear layers other than the head), counted
    without storage.

    Raises:
        ModelError: transformers builds no causal language model from this config.
    """
    builder: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = builder.from_config(model_config)
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"Cannot estimate memory for a {getattr(model_config, 'model_type', 'model')!r} model: transformers builds no "
            f"causal language model from this config ({' '.join(str(error).split())[:200]})."
        ) from None
    head = model.get_output_embeddings()
    linear = {
        name: each for name, each in model.named_modules() if isinstance(each, torch.nn.Linear) and each is not head
    }
    chosen = (
        linear.values()
        if lora is None or lora.target_modules == "all-linear"
        else [
            each
            for name, each in linear.items()
            if any(f".{name}".endswith(f".{target}") for target in lora.target_modules)
        ]
    )
    adapters = 0 if lora is None else sum(lora.r * (each.in_features + each.out_features) for each in chosen)
    parameters = sum(parameter.numel() for parameter in model.parameters()) + adapters
    return parameters, adapters, sum(each.weight.numel() for each in linear.values())


def load_model_config(model: ModelConfig) -> Any:
    """The transformers config of a model: of the built-in one as it will be made, else from a folder, cache or hub.

    Raises:
        ModelError: it is in no folder and no cache, and the hub cannot be reached or has no such model.
    """
    if model.path == BUILTIN:
        tokenizer = build_tokenizer((), model.builtin)
        with torch.device("meta"):
            return build_model(model.builtin, tokenizer, seed=0).config
    model = on_disk(model)
    chosen = {"revision": model.revision or "main", "trust_remote_code": model.trust_remote_code}
    if Path(model.path).is_dir():
        with reading_model(model.path, "config.json"):
            return AutoConfig.from_pretrained(model.path, **chosen)
    reason = "it is neither a folder nor in the Hugging Face cache, and the hub was not reached"
    try:
        return AutoConfig.from_pretrained(model.path, local_files_only=True, **chosen)
    except (OSError, ValueError):
        if _hub_answers():
            try:
                return AutoConfig.from_pretrained(model.path, **chosen)
            except (OSError, ValueError) as error:
                reason = " ".join(str(error).split())[:300]
    raise ModelError(
        f"Cannot read the config of the model {model.path!r}: {reason}. The estimate needs its config.json alone: put it "
        "into a folder and set model.path to that folder, or allow the network."
    )


@contextmanager
def reading_model(path: str, files: str, kind: str = "model") -> Iterator[None]:
    """Turn whatever a library raises over a model's files into `ModelError`. It names the file that is damaged, else `files`."""
    try:
        yield
    except (ModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a foreign folder can make transformers, tokenizers and safetensors raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        if Path(path).is_dir():
            what = _damage(Path(path)) or f"Its {files} cannot be used: {reason}."
        elif path.startswith((".", "/", "~")) or path.count("/") > 1:
            what = f"There is no folder {Path(path)}."
        else:
            hint = "Check the name, the network and HF_HUB_OFFLINE; cached models work offline."
            what = f"{hint} ({reason})"
        raise ModelError(f"Cannot load the {kind} {path!r}. {what}") from error


def _damage(folder: Path) -> str:
    """A sentence about the first file of a model's folder that is damaged; empty where each can be read alone."""
    for file in sorted(folder.iterdir()):
        try:
            if file.suffix == ".json" and not isinstance(parse_json(file.read_bytes()), dict):
                raise ValueError("it contains no JSON object")
            if file.name == "tokenizer.json":
                Tokenizer.from_file(str(file))
            if file.suffix == ".safetensors":
                with safe_open(str(file), "pt"):
                    pass
        except Exception as error:  # the library of each format has errors of its own
            return f"{file} is damaged: {' '.join(str(error).split())[:200]}. Copy or download it again."
    return ""


def check_tokenizer(tokenizer: Any, described: Any, path: str) -> None:
    """Raise `ModelError` for a tokenizer that is not the model's: transformers makes an empty one where tokenizer.json is missing."""
    known, rows = len(tokenizer), getattr(described.get_text_config(), "vocab_size", None) or 0
    if known < rows / 2 or not tokenizer("the answer 12", add_special_tokens=False)["input_ids"]:
        raise ModelError(
            f"The tokenizer of {path!r} has {known:,} tokens and its config.json {rows:,}: it is empty or another model's. The folder needs "
            "the model's own tokenizer.json (or tokenizer.model, or vocab.json and merges.txt)."
        )


def _hub_answers() -> bool:
    """True if the Hugging Face hub answers: one short request, where its own client would try for half a minute."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # whatever the HTTP client raises, it did not get there
        return False
    return True
