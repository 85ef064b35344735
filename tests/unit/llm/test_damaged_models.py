"""A model folder that is damaged, or whose parts do not fit together, is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from skill_ttrl.config import BuiltinConfig, LoraConfig, ModelConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.models.load import load_checkpoint, load_model, save_model

WEIGHTS = "model.safetensors"
Damage = Callable[[Path], object]


def cut(file: str, length: int) -> Damage:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:length])


def put(file: str, text: str) -> Damage:
    return lambda folder: (folder / file).write_text(text)


def state(file: str, **values: Any) -> Damage:
    return lambda folder: (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **values}))


def without(*files: str) -> Damage:
    def remove(folder: Path) -> None:
        for file in files:
            (folder / file).unlink()

    return remove


def drop_tensor(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


DAMAGES: dict[str, Damage] = {
    "half a header": cut(WEIGHTS, 100),
    "half the weights": cut(WEIGHTS, 9000),
    "no weights": without(WEIGHTS),
    "a tensor missing": drop_tensor,
    "another width": state("config.json", hidden_size=64),
    "another vocabulary": state("config.json", vocab_size=10),
    "a memory bomb": state("config.json", vocab_size=10**12),
    "no heads": state("config.json", num_attention_heads=0),
    "a width that is a text": state("config.json", hidden_size="wide"),
    "an unknown dtype": state("config.json", dtype="nope"),
    "no tokenizer.json": without("tokenizer.json"),
    "a tokenizer without parts": put("tokenizer.json", "{}"),
    "a kernel of others": state("config.json", attn_implementation="evil/kernel"),
    "an end that is a number": state("tokenizer_config.json", eos_token=5),
    **{
        f"{file} is {text[:5]}": put(file, text)
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
        for text in ("[]", "[" * 100_000)
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    built = load_model(
        ModelConfig(path="builtin", builtin=BuiltinConfig(hidden_size=32, layers=1, heads=2)), device="cpu"
    )
    save_model(built.model, built.tokenizer, folder)
    return folder


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_model_folder_is_refused_and_named(name: str, model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    DAMAGES[name](folder)
    with pytest.raises(ModelError) as refused:
        load_model(ModelConfig(path=str(folder)), device="cpu")
    assert refused.value.exit_code == 5 and str(folder) in str(refused.value)


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (cut("adapter_model.safetensors", 50), "adapter_model.safetensors"),
        (put("adapter_config.json", "[]"), "adapter_config.json"),
        (state("adapter_config.json", r=3), "adapter"),
    ],
)
def test_so_are_adapters(damage: Damage, file: str, model: Path, tmp_path: Path) -> None:
    base = ModelConfig(path=str(model), lora=LoraConfig(r=2))
    adapted = load_model(base, device="cpu")
    save_model(adapted.model, adapted.tokenizer, tmp_path / "adapter")
    load_checkpoint(tmp_path / "adapter", device="cpu", base=base)
    damage(tmp_path / "adapter")
    with pytest.raises(ModelError, match=file):
        load_checkpoint(tmp_path / "adapter", device="cpu", base=base)


@pytest.mark.parametrize("vocabulary", ["bytes", "entities"])
def test_a_model_that_is_loaded_and_saved_again_has_the_same_files(vocabulary: Any, tmp_path: Path) -> None:
    shape = BuiltinConfig(hidden_size=32, layers=1, heads=2, vocabulary=vocabulary)
    built = load_model(
        ModelConfig(path="builtin", builtin=shape), device="cpu", corpus=["take apple 1 from shelf 2"] * 9
    )
    save_model(built.model, built.tokenizer, tmp_path / "first")
    again = load_checkpoint(tmp_path / "first", device="cpu")
    first = {file.name: file.read_bytes() for file in (tmp_path / "first").iterdir()}
    shutil.rmtree(tmp_path / "first")  # as old checkpoints go
    save_model(again.model, again.tokenizer, tmp_path / "second")
    assert {file.name: file.read_bytes() for file in (tmp_path / "second").iterdir()} == first
