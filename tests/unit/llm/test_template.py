"""A chat template of a foreign model is a program: it ends in time, in little memory, and gives what transformers gives."""

from __future__ import annotations

import time
from typing import Any

import pytest

from skill_ttrl.errors import ModelError
from skill_ttrl.llm import template
from skill_ttrl.llm.chat import encode_chat, render
from skill_ttrl.llm.models.builtin import build_tokenizer
from skill_ttrl.types import Message

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
FOREIGN = (
    "{{ bos_token or '' }}{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ message.role }}] {{ message.content | trim }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
ASKED = (Message("system", " Be brief. "), Message("user", "1+1? é"))


@pytest.fixture
def tokenizer() -> Any:
    return build_tokenizer()


@pytest.mark.parametrize("text", [LOOP, pytest.param("{{ 2 ** (10 ** 9) }}", marks=pytest.mark.slow)])
def test_one_that_does_not_end_or_takes_all_memory_is_refused(
    text: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "SECONDS", 1.0)
    monkeypatch.setattr(template, "RENDERER", template.Renderer())
    tokenizer.chat_template = text
    began = time.monotonic()
    with pytest.raises(ModelError, match="chat template"):
        encode_chat(tokenizer, ASKED)
    assert time.monotonic() - began < 60
    tokenizer.chat_template = FOREIGN  # the next one has a process again
    assert encode_chat(tokenizer, ASKED)


@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": True}])
def test_a_foreign_one_gives_what_transformers_gives(options: dict[str, bool], tokenizer: Any) -> None:
    tokenizer.chat_template = FOREIGN
    turns = [[{"role": message.role, "content": message.content} for message in ASKED]] * 2
    expected = tokenizer.apply_chat_template(turns, tokenize=False, **options)
    assert render(tokenizer, turns, **options) == expected
    assert render(tokenizer, turns[0], **options) == expected[0]
    with pytest.raises(ModelError, match="no tools"):
        render(tokenizer, [{"role": "tool", "content": "x"}])
