"""Thoughts: what stands between a model's thinking marks, parsed in one place. Answers, actions and skills are read from the rest."""

from __future__ import annotations

import re

THINK, THINK_END = "<think>", "</think>"
MARKS = (
    (THINK, THINK_END),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
)
"""What opens a thought and what closes it: Qwen, DeepSeek, GLM and others; Seed; Mistral; Gemma 4."""
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
"""gpt-oss opens a channel for each part of an answer; `final` is the one that the user sees."""
_CLOSE = re.compile("|".join(re.escape(close) for _, close in MARKS), re.IGNORECASE)
_OPENING = {close.lower(): re.compile(re.escape(opened), re.IGNORECASE) for opened, close in MARKS}
_THOUGHT = re.compile(
    "|".join(rf"{re.escape(opened)}(.*?)(?:{re.escape(close)}|\Z)" for opened, close in MARKS),
    re.DOTALL | re.IGNORECASE,
)
_CHANNEL = re.compile(
    r"<\|channel\|>\s*+(\w++).{,200}?<\|message\|>(.*?)(?=<\|(?:start|channel|end|return|call)\|>|\Z)", re.DOTALL
)
_JSON = re.compile(r"\s*+(?:[{`]|\[(?!THINK))")


def split_thought(text: str) -> tuple[str, str]:
    """(thought, content) of what a model wrote. Total: any text has both, either may be empty.

    A thought that is never closed reaches to the end, so there is no content. A closing mark without its opening one ends a thought that
    the prompt has opened. Several thoughts are joined by blank lines.
    """
    if channels := _CHANNEL.findall(text):
        thoughts = [said for name, said in channels if name != "final"]
        return _joined(thoughts), "".join(said for name, said in channels if name == "final")
    begun, closed = list[str](), _CLOSE.search(text)
    if closed and not _OPENING[closed[0].lower()].search(text, 0, closed.start()):
        begun, text = [text[: closed.start()]], text[closed.end() :]
    thoughts = [*begun, *(found[found.lastindex or 0] for found in _THOUGHT.finditer(text))]
    return (_joined(thoughts), _THOUGHT.sub("", text).lstrip()) if thoughts else ("", text)


def content(text: str) -> str:
    """What a model wrote without its thoughts: see `split_thought`."""
    return split_thought(text)[1]


def folded(text: str) -> str:
    """A model's text to look at: of its thought the length alone, then its content."""
    thought, said = split_thought(text)
    return f"[thought: {len(thought):,} characters] {said}" if thought else text


def json_content(text: str) -> str:
    """`content` of an answer in JSON; where the text begins with JSON, all of it, because marks in its strings are text."""
    return text if _JSON.match(text) else content(text)


def with_thought(thought: str, said: str) -> str:
    """One text of a thought and a content that came apart, which `split_thought` parses back."""
    return f"{THINK}\n{_CLOSE.sub('', thought).strip()}\n{THINK_END}\n\n{said}" if thought.strip() else said


def _joined(thoughts: list[str]) -> str:
    return "\n\n".join(filter(None, (thought.strip() for thought in thoughts)))
