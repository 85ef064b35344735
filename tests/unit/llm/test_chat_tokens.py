"""Conversations as tokens: the template's control tokens are the only ones, with every version of transformers."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from skill_ttrl.agents.agent import PromptFormatter
from skill_ttrl.config import BuiltinConfig, ModelConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.backend import Request, Sampling, wait_for
from skill_ttrl.llm.chat import (
    encode_chat,
    encode_chats,
    encode_next,
    encode_plain,
    missing_end,
    template_warning,
    turn_end,
)
from skill_ttrl.llm.hf.backend import HFBackend
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.load import load_tokenizer, save_model
from skill_ttrl.types import Completion, Message

SIGNS = "a 12 <|im_end|> <|im_start|> assistant\n <think> </answer> <|endoftext|> \ue000 \ue001".split(" ")
HOSTILE = st.lists(st.sampled_from([" ", *SIGNS]), max_size=8).map("".join)


def plainly(tokenizer: Any, texts: list[str]) -> tuple[int, ...]:
    turns = [{"role": "user", "content": text} for text in texts]
    return tuple(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


def test_an_ordinary_conversation_is_what_the_template_gives(tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    texts = ["Compute 12+34.", "Is it\n\n46? <b>yes</b>"]
    assert encode_chat(tokenizer, [Message("user", text) for text in texts]) == plainly(tokenizer, texts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=HOSTILE)
def test_a_message_has_no_control_tokens_and_loses_no_text(text: str, tiny_model: tuple[Any, Any]) -> None:
    _, tokenizer = tiny_model
    ids = encode_chat(tokenizer, [Message("user", text)])
    frame = encode_chat(tokenizer, [Message("user", "")])
    for special in tokenizer.all_special_ids:
        assert ids.count(special) == frame.count(special)
    assert text.replace("\ue000\ue001", "").replace("\ue001\ue000", "") in tokenizer.decode(ids)


SHAPE = BuiltinConfig(hidden_size=32, heads=4, merges=200, numbers=40)
READABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
"""Any text that UTF-8 can hold, decomposed accents and Hangul, controls and private characters among it."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The built-in tokenizer as made, and as read from a checkpoint, from a checkpoint of that, and by transformers alone."""
    texts = ["click[red] then `take mug 1`,(go)\n\n x-large's 12.5\tend", "Cafe\u0301 <action>[3]</action>"] * 8
    made = build_tokenizer(texts, SHAPE)
    model, found = build_model(SHAPE, made, 0), [made]
    for generation in range(2):
        folder = tmp_path_factory.mktemp(f"saved-{generation}")
        save_model(model, found[-1], folder)
        found.append(load_tokenizer(ModelConfig(path=str(folder))))
    return [*found, AutoTokenizer.from_pretrained(folder)]


def everything(tokenizer: Any) -> dict[str, Any]:
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    parts["model"] = {name: value or None for name, value in parts["model"].items()}
    return {**parts, "roles": tokenizer.special_tokens_map, "clean_up": tokenizer.clean_up_tokenization_spaces}


def test_a_tokenizer_that_is_read_back_is_the_one_that_was_made(saved: list[Any]) -> None:
    for again in saved[1:]:
        assert everything(again) == everything(saved[0])
        assert again.chat_template == saved[0].chat_template


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=READABLE | HOSTILE)
def test_the_same_text_has_the_same_tokens_always(text: str, saved: list[Any]) -> None:
    plain, chat = encode_plain(saved[0], text), encode_chat(saved[0], [Message("user", text)])
    for again in saved[1:]:
        assert encode_plain(again, text) == plain
        assert encode_chat(again, [Message("user", text)]) == chat
        assert again.decode(plain) == saved[0].decode(plain)


def test_many_conversations_are_the_same_tokens_as_one_by_one(tiny_model: tuple[Any, Any]) -> None:
    tokenizer = tiny_model[1]
    texts = ["one", "", "<|im_end|> in the middle", "one", "two\n\nlines <|im_start|>"]
    many = [[Message("user", text)] for text in texts] + [[Message("user", "a"), Message("assistant", "b<|im_end|>")]]
    assert encode_chats(tokenizer, many) == [encode_chat(tokenizer, each) for each in many]
    assert encode_chats(tokenizer, []) == []


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "str"),
    ],
)
def test_a_template_that_refuses_a_conversation_says_why(
    template: str, reason: str, tiny_model: tuple[Any, Any]
) -> None:
    tokenizer = copy.deepcopy(tiny_model[1])
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=f"such as system, user: .*({reason}).*agent.system"):
        encode_chat(tokenizer, [Message("system", "Be brief."), Message("user", "6 * 7?")])


TEXTS = st.lists(st.sampled_from(["a", " ", "\n", "12", "<|im_end|>", "<|im_start|>", "\ue003", "\ue000"]), max_size=6)
NO_END = "{% for message in messages %}{{ message['content'] + '\\n' }}{% endfor %}"
BRACKETS = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[Q] ' + message['content'] + ' [A]' }}"
    "{% else %}{{ ' ' + message['content'] + ' <|im_end|>' }}{% endif %}{% endfor %}"
)


def templated(tokenizer: Any, template: str | None) -> Any:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


def stopped(ids: tuple[int, ...], reason: Any = "stop") -> Completion:
    return Completion("", ids, (0.0,) * len(ids), reason)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS.map("".join), min_size=3, max_size=3))
def test_it_grows_to_what_the_template_writes(texts: list[str], tiny_model: tuple[Any, Any]) -> None:
    tokenizer = tiny_model[1]
    first, later, last = (Message("user", text) for text in texts)
    answer = (*encode_plain(tokenizer, "12;<answer>"), turn_end(tokenizer))
    said = Message("assistant", "12;")
    grown = (*encode_chat(tokenizer, [first]), *encode_plain(tokenizer, "12;"), turn_end(tokenizer))
    grown += encode_next(tokenizer, later)
    assert grown == encode_chat(tokenizer, [first, said, later])
    grown += (*encode_plain(tokenizer, "12;"), turn_end(tokenizer), *encode_next(tokenizer, last))
    assert grown == encode_chat(tokenizer, [first, said, later, said, last])
    assert not missing_end(tokenizer, stopped(answer))


def test_an_answer_that_was_cut_off_gets_the_end_it_lacks(tiny_model: tuple[Any, Any]) -> None:
    tokenizer = tiny_model[1]
    end = turn_end(tokenizer)
    assert end == tokenizer.eos_token_id
    words = encode_plain(tokenizer, "12")
    for cut in (stopped(words, "length"), stopped(words), stopped((), "length"), stopped((*words, end), "length")):
        assert missing_end(tokenizer, cut) == (end,)
    for control in tokenizer.all_special_ids:  # a model may end with another token than its template does
        assert missing_end(tokenizer, stopped((*words, control))) == ()


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (NO_END, "ends an answer with a control token"),
        (None, "needs a chat template"),
    ],
)
def test_a_template_that_does_more_than_append_is_refused(
    template: str | None, reason: str, tiny_model: tuple[Any, Any]
) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*agent.context_mode=conversation"):
        encode_next(templated(tiny_model[1], template), Message("user", "a"))


def test_any_template_that_appends_will_do(tiny_model: tuple[Any, Any]) -> None:
    tokenizer = templated(tiny_model[1], BRACKETS.replace("{{ ' ' +", "{{"))
    assert encode_next(tokenizer, Message("user", "why")) == encode_plain(tokenizer, "[Q] why [A]")
    tokenizer.chat_template = BRACKETS.replace("{{ ' ' +", "{{").replace("[A]", "[B]")  # the new one counts
    assert encode_next(tokenizer, Message("user", "why")) == encode_plain(tokenizer, "[Q] why [B]")


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
