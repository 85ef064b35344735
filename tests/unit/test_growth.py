"""Time of everything that reads text of a model with regular expressions: none may be quadratic on a text that wants it to.

Bounds are of processor time and far from both, so that a loaded machine changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from pydantic import BaseModel

from skill_ttrl import sanitize as hostile
from skill_ttrl.agents.action_parser import fill_slot, project
from skill_ttrl.answers import compute_reward, extract, grade_answer
from skill_ttrl.envs.webshop.catalogue.nouns import nouns_of
from skill_ttrl.envs.webshop.catalogue.search import analyse
from skill_ttrl.envs.webshop.expert import read_wish
from skill_ttrl.envs.webshop.reward import plain_words
from skill_ttrl.llm.openai.replies import read_json
from skill_ttrl.skills import heuristic_teacher, mergers
from skill_ttrl.skills import similarity as fuse
from skill_ttrl.skills.embedders import WORDS
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.train.tasks import plain
from skill_ttrl.types import Skill, split_thought

RUNS = (" ", "\n", "a", "1", "*", "{", "<", "\\", "a ", "1,", "\n ")


class Form(BaseModel):
    """What a teacher is asked for."""

    text: str


READERS: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    # reader, and what its own rules begin with: shown before runs, and repeated
    "extract": (
        lambda text: extract(text, last_number=True),
        (
            "# answer", "answer", "\nanswer:", "the answer is", "final answer:", ". Final Answer", "**answer", "\n(A)", "\n**A**",
            "option", "\\boxed{", "\\boxed{1},", "\\boxed{1} and ", "<answer>", "</answer>", "1/", "-1.",
        ),
    ),
    "compute_reward": (
        lambda text: compute_reward(text, "1", last_number=True),
        ("$", "$$", "$1$ and ", "\\(", "\\[", "so ", "therefore there is ", "is 1", "it's 1.", "answer is so "),
    ),
    "grade_answer": (lambda text: grade_answer(text, "1"), ("x=", "\\text{", "5 cm", "1.", "\\sum_{", "$")),
    "ops": (OutputParser(last_number=True).parse, ("<skill_ops", "<retrieve", "<evolve base=", "<generate a=", "</", "skill #")),
    "projection": (lambda text: project(text, ["look"]), ("<action>", "<think>", "</action>", "<skill_ops>", "[")),
    "thoughts": (split_thought, ("<think>", "</think>", "[THINK]", "<|channel|>", "<|channel|>a", "<|channel|>a<|message|>")),
    "listing": (lambda text: fill_slot("search[<x>]", text), ("<", "[")),
    "webshop instruction": (read_wish, ("price ", ", price", "and ", "find me ", " with ", "$1")),
    "webshop query": (analyse, ("a.", "a'", "1.", "_", "a_", "log", "\u200d", "a\u0301.", "❤\u200d", "1,", "bly")),
    "webshop reward": (plain_words, ()),
    "webshop nouns": (nouns_of, ("(", "a.", "!", "a-")),
    "leaks": (plain, ("\u200b", "x.")),
    "actions": (heuristic_teacher.words, ("a-", "a'")),
    "brackets": (heuristic_teacher.bracketed, ("a[", "[")),
    "fuse": (lambda text: (fuse.sentences(text), fuse.normalized_tokens(text)), ("1.", ". ", "a.")),
    "techniques": (lambda text: mergers._ANSWERS.sub(" ", text), ("<answer>", "\\boxed{", "<a", "let's ")),
    "evolve": (lambda text: heuristic_teacher._asks_for(Skill("s", "t", text), "open"), ("open", "a b ")),
    "hostile": (
        lambda text: (hostile.flags(text), hostile.escape(text)),
        ("<", "<|", "[inst", "ignore ", "ignore all ", "you are ", "print a ", "new "),
    ),
    "teacher": (lambda text: read_json(text, Form), ("```", "```json", "```\n", "\n", "{", "[", '{"text": ')),
    "embedder": (WORDS.findall, ("-", "a_")),
}  # fmt: skip


def _texts(own: tuple[str, ...], length: int, runs: tuple[str, ...]) -> Iterator[str]:
    for run in (*runs, *own):
        yield (run * (length // len(run) + 1))[:length]
    for mark in own:
        for run in runs:
            yield mark + run * length + "x"


def _check(reader: str, length: int, runs: tuple[str, ...], seconds: float) -> None:
    read, own = READERS[reader]
    for text in _texts(own, length, runs):
        began = time.process_time()
        read(text)
        assert time.process_time() - began < seconds, (text[:30], text[-30:])


@pytest.mark.parametrize("reader", READERS)
def test_a_long_text_takes_linear_time(reader: str) -> None:
    """40,000 characters: milliseconds for a linear rule, seconds for a quadratic one."""
    _check(reader, 40_000, (" ",), 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_very_long_text_takes_linear_time(reader: str) -> None:
    """200,000 characters of every kind: under a second for a linear rule, half a minute for a quadratic one."""
    _check(reader, 200_000, RUNS, 5.0)
