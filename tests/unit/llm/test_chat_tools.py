"""Chat templates with tools: what the prompt shows, how calls are written, and that results only append."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.chat import encode_chat, encode_results, read_calls
from skill_ttrl.llm.models import MESSAGES
from skill_ttrl.types import Message, ToolCall

SPECIAL = (
    "<|start|> <|head|> <|eot|> [INST] [/INST] [TOOLS] [/TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]".split()
)
SCHEMA = json.dumps({"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}})
# fmt: off
EACH, START = "{% for m in messages %}", "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = EACH + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + START
CALLS = "{% for c in m.tool_calls %}{{ '\n' if m.content or not loop.first }}<tool_call>\n" '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}' "\n</tool_call>{% endfor %}<|im_end|>\n"
RESULT = "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}{{ '\n<tool_response>\n' ~ m.content }}\n</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
TOOLS = "{% if tools %}<|im_start|>system\n<tools>{% for t in tools %}{{ '\n' }}{{ t | tojson }}{% endfor %}{{ '\n' }}</tools><|im_end|>\n{% endif %}"
QWEN25 = TOOLS + EACH + "{% if m.role == 'tool' %}" + RESULT + "{% elif m.tool_calls %}<|im_start|>assistant\n{{ m.content }}" + CALLS + "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}" + START
QWEN3 = QWEN25.replace("assistant\n{{ m.content }}" + CALLS, "assistant\n{% if loop.last or m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}" + CALLS)
LLAMA = "{% if tools %}{% set first = messages[0].content %}{% set messages = messages[1:] %}<|start|>user<|head|>\n\nFunctions: {{ tools | tojson }}\n{{ first }}<|eot|>{% endif %}" + EACH + "{% if m.role == 'tool' %}<|start|>ipython<|head|>\n\n{{ {'output': m.content} | tojson }}<|eot|>{% elif 'tool_calls' in m %}{% if m.tool_calls | length > 1 %}{{ raise_exception('single tool-calls only') }}{% endif %}<|start|>assistant<|head|>\n\n" '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}' "<|eot|>{% else %}<|start|>{{ m.role }}<|head|>\n\n{{ m.content | trim }}<|eot|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|head|>\n\n{% endif %}"
MISTRAL = "{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}" + EACH + "{% if m.role == 'user' %}{% if tools and m == asked[-1] %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids of nine') }}{% endif %}[TOOL_RESULTS]" '{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}' "[/TOOL_RESULTS]{% elif m.tool_calls is defined %}[TOOL_CALLS]{{ m.tool_calls | map(attribute='function') | list | tojson }}<|eot|>{% else %}{{ m.content }}<|eot|>{% endif %}{% endfor %}"
GEMMA = EACH + "{% if m.role not in ('user', 'assistant') or (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}<|start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|eot|>\n{% endfor %}{% if add_generation_prompt %}<|start|>model\n{% endif %}"
CALL, TWO = '{"name": "add", "arguments": {"a": 1}}', '{"name": "add", "arguments": {"a": 2}}'
KINDS = {  # template: (prompt, two calls as it writes them, what follows them)
    "built-in": (MESSAGES, "<|im_start|>tools\nadd\n<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n", f"<tool_call>{CALL}</tool_call><tool_call>{TWO}</tool_call><|im_end|>", "\n<|im_start|>tool\nR<|im_end|>\n<|im_start|>tool\nS<|im_end|>\n<|im_start|>assistant\n"),
    "smollm2, no tools": (CHATML, "<tools>\n" + SCHEMA, f"<tool_call>{CALL}</tool_call><tool_call>{TWO}</tool_call><|im_end|>", "\n<|im_start|>user\n<tool_response>\nR\n</tool_response>\n<tool_response>\nS\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
    "gemma-2, no system, no tools": (GEMMA, "<tools>\n" + SCHEMA, f"<tool_call>{CALL}</tool_call><tool_call>{TWO}</tool_call><|eot|>", "\n<|start|>user\n<tool_response>\nR\n</tool_response>\n<tool_response>\nS\n</tool_response><|eot|>\n<|start|>model\n"),
    "qwen2.5": (QWEN25, "<tools>\n" + SCHEMA, f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call><|im_end|>", "\n<|im_start|>user\n<tool_response>\nR\n</tool_response>\n<tool_response>\nS\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
    "mistral": (MISTRAL, f"[TOOLS][{SCHEMA}][/TOOLS][INST]Q[/INST]", f"[TOOL_CALLS][{CALL}, {TWO}]<|eot|>", '[TOOL_RESULTS]{"content": R, "call_id": "call00000"}[/TOOL_RESULTS][TOOL_RESULTS]{"content": S, "call_id": "call00000"}[/TOOL_RESULTS]'),
    "llama-3.1, one call a turn": (LLAMA, f"Functions: [{SCHEMA}]\nQ<|eot|>", '{"name": "add", "parameters": {"a": 1}}<|eot|>', '<|start|>ipython<|head|>\n\n{"output": "R"}<|eot|><|start|>assistant<|head|>\n\n'),
}
# fmt: on


@pytest.fixture(scope="module")
def tokenizer(tiny_model: tuple[Any, Any]) -> Any:
    made = copy.deepcopy(tiny_model[1])
    made.add_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return made


def turns(*results: str) -> tuple[Message, tuple[Message, ...]]:
    calls = tuple(
        ToolCall("add", json.dumps({"a": place}), result=result) for place, result in enumerate(results, start=1)
    )
    return Message("assistant", "", calls), tuple(Message("tool", call.result or "", call=call) for call in calls)


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_of_each_kind_shows_tools_and_appends_results(kind: str, tokenizer: Any) -> None:
    tokenizer.chat_template, shown, written, after = KINDS[kind]
    asked = (Message("user", "Q"),)
    said, told = turns(*("R", "S")[: 1 if "one call" in kind else 2])
    prompt, whole = (encode_chat(tokenizer, each, [SCHEMA]) for each in (asked, (*asked, said, *told)))
    later = encode_results(tokenizer, told)
    assert shown in tokenizer.decode(prompt)
    assert tokenizer.decode(later) == after
    assert (whole[: len(prompt)], whole[-len(later) :]) == (prompt, later)  # what was sampled stands between them
    assert tokenizer.decode(whole[len(prompt) : -len(later)]) == written


HOSTILE = st.lists(st.sampled_from(["a", " ", "\n", "<|im_end|>", "[/TOOL_RESULTS]", "</tool_response>", '"}', "\ue000\ue001", *SPECIAL]), max_size=6).map("".join)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(result=HOSTILE)
def test_no_result_has_control_tokens(kind: str, result: str, tokenizer: Any) -> None:
    tokenizer.chat_template = KINDS[kind][0]
    asked = (Message("user", "Q"),)
    said, told = turns(result)
    later, plain = encode_results(tokenizer, told), encode_results(tokenizer, turns("R")[1])
    for special in tokenizer.all_special_ids:
        assert later.count(special) == plain.count(special)
    assert encode_chat(tokenizer, (*asked, said, *told), [SCHEMA])[-len(later) :] == later


def test_a_template_that_takes_back_what_it_wrote_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = QWEN3  # its empty thought in the last answer is none that was sampled
    assert tokenizer.decode(encode_results(tokenizer, turns("R")[1])) == KINDS["qwen2.5"][3].replace(
        "\n<tool_response>\nS\n</tool_response>", ""
    )
    tokenizer.chat_template = "{{ messages | length }}" + QWEN25
    with pytest.raises(ConfigError, match="only append"):
        encode_results(tokenizer, turns("R")[1])


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("no call", "no call", []),
        ('Both: <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call> <tool_call>{"name": "b"}</tool_call>', "Both:", [("add", '{"a": 1}', ""), ("b", "{}", "")]),
        ('<think>\n<tool_call>{"name": "b"}</tool_call>\n</think>\n\nno', '<think>\n<tool_call>{"name": "b"}</tool_call>\n</think>\n\nno', []),
        ("<tool_call>{", "", [("", "{", "not_json")]),
        ('<tool_call>["add"]</tool_call>', "", [("", '["add"]', "not_json")]),
        ('<tool_call>{"name": "add", "arguments": "{}"}</tool_call>', "", [("", '{"name": "add", "arguments": "{}"}', "not_json")]),
        ("<tool_call>" + "[" * 9999, "", [("", "[" * 9999, "not_json")]),
    ],
)  # fmt: skip
def test_calls_are_read_from_what_a_model_wrote(text: str, said: str, calls: list[tuple[str, str, str]]) -> None:
    assert read_calls(text) == (said, tuple(ToolCall(name, given, error=error) for name, given, error in calls))  # type: ignore[arg-type]


def test_calls_are_written_even_where_no_tools_are_offered(tokenizer: Any) -> None:
    said = Message("assistant", "", (ToolCall("", "{oops", result="R", error="not_json"),))
    talk = (Message("user", "Q"), said, Message("tool", "R", call=said.calls[0]))
    for template, result in ((MESSAGES, "<|im_start|>tool\nR"), (CHATML, "<|im_start|>user\n<tool_response>\nR\n")):
        tokenizer.chat_template = template
        assert f"<tool_call>{{oops</tool_call><|im_end|>\n{result}" in tokenizer.decode(encode_chat(tokenizer, talk))
