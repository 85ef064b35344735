"""Find the final answer in what a model wrote. Total: any string gives an answer or None, never an error."""

from __future__ import annotations

import re

_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_SENTENCE = re.compile(r"(?:final answer is|answer is)\s*:?\s*([^\n]{1,200})", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"-?\d[\d,]*\.?\d*|-?\.\d+")


def extract(text: str, *, last_number: bool = False) -> str | None:
    r"""The final answer of `text`, or None.

    In this order: the last `<answer>…</answer>`, the last `\boxed{…}` (braces may nest), the rest of the line after the
    last "answer is", and, only with `last_number`, the last number. An answer of white space is no answer.
    """
    tags = _ANSWER_TAG.findall(text)
    if tags:
        return _clean(unbox(tags[-1]) or tags[-1])
    boxed = unbox(text)
    if boxed is not None:
        return _clean(boxed)
    sentences = _SENTENCE.findall(text)
    if sentences:
        return _clean(sentences[-1].strip().strip("$").rstrip(".").strip("$"))
    if last_number:
        numbers = _LAST_NUMBER.findall(text)
        if numbers:
            return _clean(numbers[-1].rstrip(","))
    return None


def unbox(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` or `\fbox{…}`, or None where there is none or its braces never close."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for position in range(begin, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return text[begin:position]
    return None


def _clean(answer: str) -> str | None:
    return answer.strip() or None
