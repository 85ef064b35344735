"""Thoughts are parsed in one place, and whatever reads a model's output reads the rest."""

from __future__ import annotations

import pytest

from skill_ttrl.agents.action_parser import projection
from skill_ttrl.answers import compute_reward, extract
from skill_ttrl.llm.openai.replies import read_reply
from skill_ttrl.optimize.documents import extract_json
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.types import split_thought, with_thought

FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("text", "thought", "content"),
    [
        ("no thought <b>", "", "no thought <b>"),
        ("<think>\na\n</think>\n\nb", "a", "b"),
        ("<THINK>a</think>b", "a", "b"),
        ("a\n</think>\n\nb", "a", "b"),
        ("a</think>b<think>c</think>d", "a\n\nc", "bd"),
        ("<think>never ends", "never ends", ""),
        ("<think>a</think>b<think>c", "a\n\nc", "b"),
        ("[THINK]a[/THINK]b", "a", "b"),
        ("<seed:think>a</seed:think>b", "a", "b"),
        ("<|channel>thought\na<channel|>b", "a", "b"),
        (f"<|channel|>analysis<|message|>a{FINAL}b<|return|>", "a", "b"),
        (f"<|channel|>analysis<|message|>a{FINAL}", "a", ""),
        ("<|channel|>analysis<|message|>a", "a", ""),
        ("<|channel|>commentary to=f <|constrain|>json<|message|>{}<|call|>", "{}", ""),
    ],
)  # fmt: skip
def test_each_kind_of_mark_parts_thought_and_content(text: str, thought: str, content: str) -> None:
    assert split_thought(text) == (thought, content)


@pytest.mark.parametrize("thought", ["<think>{}</think>", "{}</think>", "<think>{}", "[THINK]{}[/THINK]"])
def test_nothing_in_a_thought_is_read(thought: str) -> None:
    inside = thought.format(
        'is it \\boxed{5}? <answer>5</answer><action>look</action><question>x</question>{"a": 1}'
        '<skill_ops><generate>Guess.</generate><retrieve query="q"></retrieve></skill_ops><solution>s</solution>'
    )
    parsed = OutputParser(last_number=True).parse(inside)
    assert (parsed.answer, parsed.solution, parsed.skill_ops.generate, parsed.text) == (None, None, (), "")
    assert parsed.skill_ops.retrieve == ("q",)  # it was answered while the model thought
    assert extract(inside) is None and extract_json(inside) is None
    assert compute_reward(inside, "5", last_number=True)["score"] == 0
    assert projection("action")(inside, ["look"]).action == projection("none")(inside, ()).action == ""


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_what_a_server_calls_reasoning_is_thought_and_never_content(field: str) -> None:
    def said(**message: object) -> str:
        choice = read_reply({"choices": [{"message": message}]}).choices[0]
        return with_thought(choice.thought, choice.text)

    assert split_thought(said(content="4", **{field: "5 </think> 6"})) == ("5  6", "4")
    assert split_thought(said(content=None, **{field: "\\boxed{5}"})) == ("\\boxed{5}", "")
    assert said(content="4", **{field: None}) == "4"


def test_marks_in_the_strings_of_an_answer_in_json_are_text() -> None:
    assert extract_json('{"text": "x</think>y <think>"}') == {"text": "x</think>y <think>"}
    assert extract_json('so {"text": 1}</think>{"text": 2}') == {"text": 2}
