"""Chat templates of each kind that widely used models have: prompts over several turns, ends, and the form that answers are trained in."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tokenizers import AddedToken

from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.backend import Generation, Request
from skill_ttrl.llm.chat import (
    answer_end,
    answer_form,
    decode_texts,
    encode_chat,
    encode_next,
    open_thoughts,
)
from skill_ttrl.stages.setup.encode import encode_answers
from skill_ttrl.types import Completion, Message
from skill_ttrl.types.thoughts import split_thought

SPECIAL = ("<|im_end|>", "<|im_start|>", "<|eot|>", "<turn>", "<|end|>", "<|start|>", "<|return|>", "<|message|>", "<|channel|>", "[/INST]")  # fmt: skip
EACH = "{% for m in messages %}"
CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
DEFAULT = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + EACH + CHATML
NO_SYSTEM = (
    EACH
    + "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% elif m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} {{ m.content }}<|eot|>{% endif %}{% endfor %}"
)
SPLIT = (
    EACH
    + "{% set said = m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content %}"
    + CHATML.replace("m.content", "said")
)
FIELD = (
    EACH
    + "{% if m.role == 'assistant' %}<|im_start|>assistant\n{% if loop.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PREFILLED = FIELD.replace(
    "add_generation_prompt %}<|im_start|>assistant\n", "add_generation_prompt %}<|im_start|>assistant\n<think>\n"
)
HEADER = (
    "<|start|>"
    + EACH
    + "<turn>{{ m.role }}<turn>\n\n{{ m.content | trim }}<|eot|>{% endfor %}{% if add_generation_prompt %}<turn>assistant<turn>\n\n{% endif %}"
)
HARMONY = (
    EACH
    + "{% if m.role != 'assistant' %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% else %}<|start|>assistant{% if loop.last and 'thinking' in m %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
OPEN_END = (
    EACH + "<turn>{{ m.role }}\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
TALK = "<|im_start|>user\nQ </think><|im_end|>\n<|im_start|>assistant\n{}A<|im_end|>\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n"
THOUGHT = "<think>\nT\n</think>\n\n"
KINDS = {  # template: (prompt, what ends an answer, how an answer is trained, one with a thought, why it does not grow)
    "chatml": (EACH + CHATML, TALK.format(THOUGHT), "<|im_end|>", "A", f"{THOUGHT}A", ""),
    "default system": (DEFAULT, "<|im_start|>system\nBe kind.<|im_end|>\n" + TALK.format(THOUGHT), "<|im_end|>", "A", f"{THOUGHT}A", ""),
    "no system": (NO_SYSTEM, f"[INST] Q </think>[/INST] {THOUGHT}A<|eot|>[INST] R[/INST]", "<|eot|>", " A", f"{THOUGHT}A", "what it wrote"),
    "thought split": (SPLIT, TALK.format(""), "<|im_end|>", "A", f"{THOUGHT}A", "thoughts of earlier answers"),
    "thought field": (FIELD, TALK.format(""), "<|im_end|>", "<think>\n\n</think>\n\nA", f"{THOUGHT}A", ""),
    "prefilled": (PREFILLED, f"{TALK.format('')}<think>\n", "<|im_end|>", "\n</think>\n\nA", "T\n</think>\n\nA", "what it wrote"),
    "header": (HEADER, f"<|start|><turn>user<turn>\n\nQ </think><|eot|><turn>assistant<turn>\n\n{THOUGHT}A<|eot|><turn>user<turn>\n\nR<|eot|><turn>assistant<turn>\n\n", "<|eot|>", "A", f"{THOUGHT}A", ""),
    "harmony": (HARMONY, "<|start|>user<|message|>Q </think><|end|><|start|>assistant<|channel|>final<|message|>A<|end|><|start|>user<|message|>R<|end|><|start|>assistant", "<|return|>", "<|channel|>final<|message|>A", "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>final<|message|>A", "what it wrote"),
    "no end": (OPEN_END, f"<turn>user\nQ </think><turn>assistant\n{THOUGHT}A<turn>user\nR<turn>assistant\n", "eos", "A", f"{THOUGHT}A", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tiny_model: tuple[Any, Any]) -> Any:
    made = copy.deepcopy(tiny_model[1])
    made.add_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    made.add_tokens([AddedToken(name, special=False, normalized=False) for name in ("<think>", "</think>")])
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_of_each_kind_renders_ends_grows_and_trains(kind: str, tokenizer: Any) -> None:
    template, prompt, end, plain, thinking, refused = KINDS[kind]
    tokenizer.chat_template = template
    talk = (Message("user", "Q </think>"), Message("assistant", f"{THOUGHT}A"), Message("user", "R"))
    assert tokenizer.decode(encode_chat(tokenizer, talk)) == prompt
    form = answer_form(tokenizer)
    assert (form("A"), form(f"{THOUGHT}A")) == (plain, thinking)
    end_id = tokenizer.eos_token_id if end == "eos" else tokenizer.convert_tokens_to_ids(end)
    assert answer_end(tokenizer) == end_id
    (trained,) = encode_answers(tokenizer, ["A"], end_id).values()
    assert tokenizer.decode(trained[:-1]) == plain and trained[-1] == end_id
    if refused:
        with pytest.raises(ConfigError, match=refused):
            encode_next(tokenizer, talk[2])
    elif end != "eos":
        assert tokenizer.decode(encode_next(tokenizer, talk[2])) in prompt
    if kind == "no system":
        with pytest.raises(ModelError, match="no system role"):
            encode_chat(tokenizer, (Message("system", "S"), *talk))
    else:
        assert "S </s" in tokenizer.decode(encode_chat(tokenizer, (Message("system", "S </s"), *talk)))


def test_special_marks_of_thoughts_stay_in_a_completion_and_other_special_tokens_go(tokenizer: Any) -> None:
    said = "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>final<|message|>A<|return|>"
    ids = tokenizer(said, add_special_tokens=False)["input_ids"]
    (text,) = decode_texts(tokenizer, [ids])
    assert text == said.removesuffix("<|return|>") and split_thought(text) == ("T", "A")


def test_a_thought_that_the_prompt_opens_is_one_even_where_it_never_ends(tokenizer: Any) -> None:
    tokenizer.chat_template = PREFILLED
    asked = Request((Message("user", "Q"),))
    done = Generation(encode_chat(tokenizer, asked.messages), (Completion("is it 5", (1,), (0.0,), "length"),))
    (found,) = open_thoughts(tokenizer, [asked], [done])
    assert split_thought(found.completions[0].text) == ("is it 5", "")
    assert open_thoughts(tokenizer, [asked], [Generation(done.prompt_ids[:-2], done.completions)])[0].completions[0].text == "is it 5"  # fmt: skip
