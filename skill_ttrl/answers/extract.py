"""Find the final answer in what a model wrote. Total: any string gives an answer or None, never an error."""

from __future__ import annotations

import re
from functools import cache

_SENTENCE = re.compile(r"answer is[\s:]*", re.IGNORECASE)
_LONGEST_SENTENCE = 200
_LAST_NUMBER = re.compile(r"-?\d[\d,]*\.?\d*|-?\.\d+")


def extract(text: str, *, last_number: bool = False) -> str | None:
    r"""The final answer of `text`, or None.

    In this order: the last `<answer>…</answer>`, the last `\boxed{…}` (braces may nest), the rest of the line after the
    last "answer is", and, only with `last_number`, the last number. An answer of white space is no answer.
    """
    tagged = last_tagged(text, "answer")
    if tagged is not None:
        return _clean(unbox(tagged) or tagged)
    boxed = unbox(text)
    if boxed is not None:
        return _clean(boxed)
    sentences = [match.end() for match in _SENTENCE.finditer(text)]
    if sentences:
        rest = text[sentences[-1] : sentences[-1] + _LONGEST_SENTENCE].partition("\n")[0]
        return _clean(rest.strip().strip("$").rstrip(".").strip("$"))
    if last_number:
        numbers = _LAST_NUMBER.findall(text)
        if numbers:
            return _clean(numbers[-1].rstrip(","))
    return None


def last_tagged(text: str, name: str) -> str | None:
    """What stands between the last `<name>` that is ever closed and its closing; linear in the text's length."""
    opening, closing = _tags(name)
    closings = list(closing.finditer(text))
    openings = list(opening.finditer(text, 0, closings[-1].start())) if closings else []
    if not openings:
        return None
    begin = openings[-1].end()
    return text[begin : next(found.start() for found in closings if found.start() >= begin)]


@cache
def _tags(name: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    return re.compile(f"<{re.escape(name)}>", re.IGNORECASE), re.compile(f"</{re.escape(name)}>", re.IGNORECASE)


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
