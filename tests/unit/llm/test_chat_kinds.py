"""Chat templates of each kind that widely used models have: prompts over several turns, ends, and the form that answers are trained in."""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.data.families import Demonstration
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.backend import Generation, Request
from skill_ttrl.llm.chat import (
    answer_end,
    answer_form,
    decode_texts,
    encode_chat,
    encode_next,
    end_ids,
    open_thoughts,
    template_warning,
)
from skill_ttrl.train.encode import encode_answers, encode_written
from skill_ttrl.types import Completion, Message, split_thought

SPECIAL = (
    "<|im_end|> <|im_start|> <|im_sep|> <|eot|> <turn> <|end|> <|start|> <|return|> <|message|> <|channel|> [INST] [/INST] [SYSTEM_PROMPT] "
    "[/SYSTEM_PROMPT] [THINK] [/THINK] <end_of_turn> <|user|> <|assistant|> <|system|>"
).split()
ADDED = ("<think>", "</think>", "<｜User｜>", "<｜Assistant｜>")
# fmt: off
EACH = "{% for m in messages %}"
CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
DEFAULT = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + EACH + CHATML
ALTERNATE = "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
TALK_OF = "{% set talk = messages[1:] if messages[0].role == 'system' else messages %}{% for m in talk %}"
SYSTEM = "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
INST = "{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} {{ m.content }}<|eot|>{% endif %}{% endfor %}"
NO_SYSTEM = EACH + "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + INST
LAST_SYSTEM = TALK_OF + ALTERNATE + INST.replace("{{ m.content }}[", "{% if loop.last %}" + SYSTEM + "{% endif %}{{ m.content }}[")
MODEL_TURN = "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}"
GEMMA2 = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + EACH + ALTERNATE + MODEL_TURN
GEMMA3 = TALK_OF + ALTERNATE + MODEL_TURN.replace("{{ m.c", "{% if loop.first %}" + SYSTEM + "{% endif %}{{ m.c")
PARTS = EACH + "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]{% else %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{% if part['type'] == 'thinking' %}[THINK]{{ part['thinking'] }}[/THINK]{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|eot|>{% endif %}{% endfor %}"
PHI4 = EACH + "<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
ROLES = EACH + "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}{{ '<|assistant|>\n' if add_generation_prompt else eos_token }}"
LAST_EOS = EACH + "<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' %}{{ '<|end|>' if loop.last else '<|eot|>' }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n<think>{% endif %}"
TWO_ENDS = EACH + "<turn><|{{ m.role }}|>{% if m.role == 'assistant' %}<|start|>{{ m.content.strip() }}<|end|>{% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}{% if add_generation_prompt %}<turn><|assistant|><|start|>{% endif %}"
DEEPSEEK = EACH + "{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<|eot|>{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
GLM = EACH + "<|{{ m.role }}|>\n{% if m.role == 'assistant' %}<think>{% if loop.last and m.reasoning_content is string %}{{ m.reasoning_content.strip() }}{% endif %}</think>\n{% endif %}{{ m.content.strip() }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
SPLIT = EACH + "{% set said = m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content %}" + CHATML.replace("m.content", "said")
FIELD = EACH + "{% if m.role == 'assistant' %}<|im_start|>assistant\n{% if loop.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PREFILLED = FIELD.replace(
    "add_generation_prompt %}<|im_start|>assistant\n", "add_generation_prompt %}<|im_start|>assistant\n<think>\n"
)
HEADER = "<|start|>" + EACH + "<turn>{{ m.role }}<turn>\n\n{{ m.content | trim }}<|eot|>{% endfor %}{% if add_generation_prompt %}<turn>assistant<turn>\n\n{% endif %}"
HARMONY = EACH + "{% if m.role != 'assistant' %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% else %}<|start|>assistant{% if loop.last and 'thinking' in m %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
OPEN_END = EACH + "<turn>{{ m.role }}\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
# fmt: on
TALK = "<|im_start|>user\nQ </think><|im_end|>\n<|im_start|>assistant\n{}A<|im_end|>\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n"
THOUGHT = "<think>\nT\n</think>\n\n"
INSTRUCTED = f"[INST] Q </think>[/INST] {THOUGHT}A<|eot|>[INST] R[/INST]"
GEMMA = f"<turn>user\nQ </think><end_of_turn>\n<turn>model\n{THOUGHT}A<end_of_turn>\n<turn>user\nR<end_of_turn>\n<turn>model\n"
KINDS = {  # template: (prompt, what ends an answer, how an answer is trained, one with a thought, why it does not grow)
    "chatml": (EACH + CHATML, TALK.format(THOUGHT), "<|im_end|>", "A", f"{THOUGHT}A", ""),
    "default system": (DEFAULT, "<|im_start|>system\nBe kind.<|im_end|>\n" + TALK.format(THOUGHT), "<|im_end|>", "A", f"{THOUGHT}A", ""),
    "no system, mistral-1": (NO_SYSTEM, INSTRUCTED, "<|eot|>", " A", f" {THOUGHT}A", "what it wrote"),
    "mistral-3": (LAST_SYSTEM, INSTRUCTED, "<|eot|>", " A", f" {THOUGHT}A", "what it wrote"),
    "gemma-2": (GEMMA2, GEMMA, "<end_of_turn>", "A", f"{THOUGHT}A", ""),
    "gemma-3": (GEMMA3, GEMMA, "<end_of_turn>", "A", f"{THOUGHT}A", ""),
    "ministral, thought part": (PARTS, "[INST]Q </think>[/INST][THINK]T[/THINK]A<|eot|>[INST]R[/INST]", "<|eot|>", "A", "[THINK]T[/THINK]A", ""),
    "phi-4": (PHI4, TALK.replace("\n<|im", "<|im").replace("user\n", "user<|im_sep|>").replace("assistant\n", "assistant<|im_sep|>").format(THOUGHT), "<|im_end|>", "A", f"{THOUGHT}A", ""),
    "phi-4-mini": (ROLES, f"<|user|>\nQ </think><|end|>\n<|assistant|>\n{THOUGHT}A<|end|>\n<|user|>\nR<|end|>\n<|assistant|>\n", "<|end|>", "A", f"{THOUGHT}A", ""),
    "olmo-3, another end at the end": (LAST_EOS, f"<|user|>\nQ </think>\n<|assistant|>\n{THOUGHT}A<|eot|>\n<|user|>\nR\n<|assistant|>\n<think>", "<|end|>", "\n</think>\n\nA", "T\n</think>\n\nA", "what it wrote"),
    "command-r, two ends": (TWO_ENDS, f"<turn><|user|>Q </think><|eot|><turn><|assistant|><|start|>{THOUGHT}A<|end|><|eot|><turn><|user|>R<|eot|><turn><|assistant|><|start|>", "<|end|>", "A", f"{THOUGHT}A", ""),
    "deepseek-r1": (DEEPSEEK, "<｜User｜>Q </think><｜Assistant｜>\n\nA<|eot|><｜User｜>R<｜Assistant｜><think>\n", "<|eot|>", "\n</think>\n\nA", "T\n</think>\n\nA", "what it wrote"),
    "glm-4.5": (GLM, "<|user|>\nQ </think><|assistant|>\n<think></think>\nA<|user|>\nR<|assistant|>", "<|user|>", "\n<think></think>\nA", "\n<think>T</think>\nA", "what it wrote"),
    "thought split": (SPLIT, TALK.format(""), "<|im_end|>", "A", f"{THOUGHT}A", "thoughts of earlier answers"),
    "thought field": (FIELD, TALK.format(""), "<|im_end|>", "<think>\n\n</think>\n\nA", f"{THOUGHT}A", ""),
    "prefilled": (PREFILLED, f"{TALK.format('')}<think>\n", "<|im_end|>", "\n</think>\n\nA", "T\n</think>\n\nA", "what it wrote"),
    "header": (HEADER, f"<|start|><turn>user<turn>\n\nQ </think><|eot|><turn>assistant<turn>\n\n{THOUGHT}A<|eot|><turn>user<turn>\n\nR<|eot|><turn>assistant<turn>\n\n", "<|eot|>", "A", f"{THOUGHT}A", ""),
    "harmony": (HARMONY, "<|start|>user<|message|>Q </think><|end|><|start|>assistant<|channel|>final<|message|>A<|end|><|start|>user<|message|>R<|end|><|start|>assistant", "<|return|>", "<|channel|>final<|message|>A", "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>final<|message|>A", "what it wrote"),
    "no end": (OPEN_END, f"<turn>user\nQ </think><turn>assistant\n{THOUGHT}A<turn>user\nR<turn>assistant\n", "<turn>", "A", f"{THOUGHT}A", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tiny_model: tuple[Any, Any]) -> Any:
    made = copy.deepcopy(tiny_model[1])
    made.add_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    made.add_tokens([AddedToken(name, special=False, normalized=False) for name in ADDED])
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_of_each_kind_renders_ends_grows_and_trains(kind: str, tokenizer: Any) -> None:
    template, prompt, end, plain, thinking, refused = KINDS[kind]
    tokenizer.chat_template = template
    talk = (Message("user", "Q </think>"), Message("assistant", f"{THOUGHT}A"), Message("user", "R"))
    assert tokenizer.decode(encode_chat(tokenizer, talk)) == prompt
    form = answer_form(tokenizer)
    assert (form("A"), form(f"{THOUGHT}A")) == (plain, thinking)
    end_id = tokenizer.convert_tokens_to_ids(end)
    assert answer_end(tokenizer) == end_id
    (trained,) = encode_answers(tokenizer, ["A"], end_id).values()
    (written,) = encode_written(tokenizer, Agent(PromptFormatter("plain")), [Demonstration("Q", "A")])
    assert tokenizer.decode(trained[:-1]) == plain and trained[-1] == end_id and written.response_ids == trained
    assert end_ids(SimpleNamespace(), tokenizer) == {tokenizer.eos_token_id, end_id}
    if refused:
        with pytest.raises(ConfigError, match=refused):
            encode_next(tokenizer, talk[2])
    else:
        assert tokenizer.decode(encode_next(tokenizer, talk[2])) in prompt
    asked = (Message("system", "S </s"), *talk)
    merged = "the first user's message" in template_warning(SimpleNamespace(tokenizer=tokenizer), asked)
    assert merged == (kind in ("gemma-2", "no system, mistral-1"))
    shown = tokenizer.decode(encode_chat(tokenizer, asked))
    assert shown == prompt.replace("Q", "S </s\n\nQ") if merged or kind == "gemma-3" else "S </s" in shown
    forged = Counter(encode_chat(tokenizer, [Message("user", " ".join((*SPECIAL, *ADDED[2:])))]))
    plainly = Counter(encode_chat(tokenizer, [Message("user", "")]))
    assert all(forged[token] == plainly[token] for token in tokenizer.convert_tokens_to_ids([*SPECIAL, *ADDED]))
    with pytest.raises(ModelError, match="assistant, assistant") if "alternate" in template else nullcontext():
        encode_chat(tokenizer, (*talk[:2], talk[1]))


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
