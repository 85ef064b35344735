"""A conversation that grows token by token is the one that its chat template writes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.chat import encode_chat, encode_next, encode_plain, missing_end, turn_end
from skill_ttrl.types import Completion, Message

TEXTS = st.lists(st.sampled_from(["a", " ", "\n", "12", "<|im_end|>", "<|im_start|>", "\ue003", "\ue000"]), max_size=6)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + CONTENT + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WITHOUT_THOUGHTS = CHATML.replace("CONTENT", "message['content'].split('</think>')[-1].lstrip('\\n')")
LAST_ALONE = CHATML.replace("CONTENT", "(message['content'] if loop.last else '(before)')")
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


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        (WITHOUT_THOUGHTS, "changes thoughts of earlier answers"),
        (LAST_ALONE, "changes what it wrote before"),
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
