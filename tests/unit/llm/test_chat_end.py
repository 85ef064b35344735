"""How an answer ends, and what a chat template leaves out."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backend import Request, Sampling, wait_for
from skill_ttrl.llm.chat import encode_chat, template_warning
from skill_ttrl.llm.hf.backend import HFBackend
from skill_ttrl.types import Message

WITHOUT_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content + '<|im_end|>' }}{% endfor %}"
IN_USER = "{{ messages | map(attribute='content') | join }}"
PARTS_ALONE = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
TALK = (Message("system", "Be brief."), Message("user", "6 * 7?"))


def test_a_choice_ends_as_the_template_ends_an_answer(tiny_model: tuple[Any, Any]) -> None:
    model, tokenizer = tiny_model[0], copy.deepcopy(tiny_model[1])
    tokenizer.eos_token = "<|endoftext|>"  # the template still writes <|im_end|>
    request = Request(TALK[1:], 1, choice=("left", "right"))
    (found,) = wait_for(HFBackend(model, tokenizer).generate([request], Sampling(), seed=0))
    assert found.completions[0].token_ids[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")


@pytest.mark.parametrize(
    ("template", "dropped"), [(WITHOUT_SYSTEM, True), (IN_USER, False), (None, False), ("builtin", False)]
)
@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("document", ["", "- Be brief."])
def test_a_system_message_that_the_template_drops_is_said(
    template: str | None, dropped: bool, system: str | None, document: str, tiny_model: tuple[Any, Any]
) -> None:
    tokenizer = copy.deepcopy(tiny_model[1])
    if template != "builtin":
        tokenizer.chat_template = template
    formatter = PromptFormatter("plain", system).with_document(document)
    said = template_warning(SimpleNamespace(tokenizer=tokenizer), formatter.messages("?"))
    assert ("drops the system message" in said) == bool(dropped and (system or document))
    assert ("no chat template" in said) == (template is None)


def test_a_template_that_drops_every_text_is_refused(tiny_model: tuple[Any, Any]) -> None:
    tokenizer = copy.deepcopy(tiny_model[1])
    tokenizer.chat_template = PARTS_ALONE
    with pytest.raises(ModelError, match="drops the text of messages"):
        template_warning(SimpleNamespace(tokenizer=tokenizer), TALK[1:])


def test_a_prompt_without_a_template_does_not_end_with_eos(tiny_model: tuple[Any, Any]) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = copy.deepcopy(tiny_model[1])
    bos, eos = tokenizer.convert_tokens_to_ids(["<|im_start|>", tokenizer.eos_token])
    tokenizer.chat_template = None
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"<|im_start|> $A {tokenizer.eos_token}",
        special_tokens=[("<|im_start|>", bos), (tokenizer.eos_token, eos)],
    )
    assert tokenizer("6 * 7?")["input_ids"][-1] == eos
    ids = encode_chat(tokenizer, TALK)
    assert tokenizer.decode(ids) == "<|im_start|>Be brief.\n\n6 * 7?"
