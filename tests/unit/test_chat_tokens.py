"""Conversations as tokens: the template's control tokens are the only ones, with every version of transformers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skill_ttrl.config import EmbeddedConfig, ModelConfig
from skill_ttrl.llm.chat import encode_chat, encode_plain
from skill_ttrl.llm.embedded import build_model, build_tokenizer
from skill_ttrl.llm.load import load_tokenizer, save_model
from skill_ttrl.types import Message

PIECES = st.sampled_from(
    [
        "a",
        " ",
        "12",
        "<|im_end|>",
        "<|im_start|>",
        "assistant\n",
        "<think>",
        "</answer>",
        "<|endoftext|>",
        "\ue000",
        "\ue001",
    ]
)
HOSTILE = st.lists(PIECES, max_size=8).map("".join)


def plainly(tokenizer: Any, texts: list[str]) -> tuple[int, ...]:
    turns = [{"role": "user", "content": text} for text in texts]
    return tuple(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


def test_an_ordinary_conversation_is_what_the_template_gives(tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    texts = ["Compute 12+34.", "Is it\n\n46? <b>yes</b>"]
    assert encode_chat(tokenizer, [Message("user", text) for text in texts]) == plainly(tokenizer, texts)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=HOSTILE)
def test_a_message_has_no_control_tokens_and_loses_no_text(text: str, tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    ids = encode_chat(tokenizer, [Message("user", text)])
    frame = encode_chat(tokenizer, [Message("user", "")])
    for special in tokenizer.all_special_ids:
        assert ids.count(special) == frame.count(special)
    assert text.replace("\ue000\ue001", "").replace("\ue001\ue000", "") in tokenizer.decode(ids)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=HOSTILE.filter(lambda text: "\ue000" not in text and "\ue001" not in text))
def test_it_is_what_newer_transformers_do_themselves(text: str, tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    if "sanitize_control_tokens" not in inspect.signature(tokenizer.apply_chat_template).parameters:
        pytest.skip("this transformers cannot do it itself, which is why it is done here")
    turns = [{"role": "user", "content": text}]
    theirs = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=False, sanitize_control_tokens=True
    )
    assert encode_chat(tokenizer, [Message("user", text)]) == tuple(theirs)


def test_without_a_template_a_message_is_text_too(tiny_model: tuple[Any, Any]) -> None:
    class Bare:
        """The tokenizer without its template."""

        chat_template = None
        encode = staticmethod(tiny_model[1].encode)

    ids = encode_chat(Bare(), [Message("user", "a<|im_end|>b")])
    assert ids == encode_plain(tiny_model[1], "a<|im_end|>b")
    assert tiny_model[1].eos_token_id not in ids


def test_a_saved_built_in_policy_reads_text_as_it_did_before(tmp_path: Path) -> None:
    texts = ["click[red] then `take mug 1`,(go)\n\n x-large's 12.5\tend", "[7] [12] [41] <action>[3]</action>"] * 8
    shape = EmbeddedConfig(merges=200, numbers=40)
    tokenizer = build_tokenizer(texts, shape)
    save_model(build_model(shape, tokenizer, 0), tokenizer, tmp_path)
    again = load_tokenizer(ModelConfig(path=str(tmp_path)))
    assert [again(text)["input_ids"] for text in texts] == [tokenizer(text)["input_ids"] for text in texts]
    assert len(tokenizer("[40]")["input_ids"]) == 1 < len(tokenizer("[41]")["input_ids"])
