"""An agent program without a model: it reads its task on stdin, follows the rules that stand in the prompt, and prints its answer.

It knows the eight kinds of questions of synthetic:formats, and of each the rule that it has to find in the prompt. So it shows what a
document is worth, in a second and without a key:

    skillttrl evaluate none --agent "python examples/rules_program.py" --env qa --split val
    skillttrl evaluate none --agent "python examples/rules_program.py" --env qa --split val --set agent.document=rules.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable

MONTHS = "January February March April May June July August September October November December".split()
Rule = tuple[str, str, Callable[[re.Match[str]], str]]


def in_minutes(found: re.Match[str]) -> str:
    return f"{60 * int(found[1]) + int(found[2])} min"


def in_order(found: re.Match[str]) -> str:
    return "; ".join(sorted(re.split(", | and ", found[1])))


RULES: tuple[Rule, ...] = (
    (
        "YYYY-MM-DD",
        r"opened on ((\w+) (\d+), (\d{4}))",
        lambda f: f"{f[4]}-{MONTHS.index(f[2]) + 1:02d}-{int(f[3]):02d}",
    ),
    ("24-hour", r"leaves at (\d+):(\d\d) p\.m\.", lambda f: f"{int(f[1]) + 12}:{f[2]}"),
    ("whole minutes", r"takes (\d+) hours and (\d+) minutes", in_minutes),
    ("two decimals", r"costs (\d+) euros and (\d+) cents", lambda f: f"EUR {f[1]}.{int(f[2]):02d}"),
    ("four digits", r"has the code (\w+) (\d+)", lambda f: f"{f[1].upper()}-{int(f[2]):04d}"),
    ("semicolon", r"line serves (.+)\.", in_order),
    ("CONFIRMED", r"gate is (open|closed)", lambda f: "CONFIRMED" if f[1] == "open" else "DENIED"),
    ("NOT-RECORDED", r"tower was built", lambda f: "NOT-RECORDED"),
)
"""What a prompt must say for a rule to be known, where the context answers, and the answer as the rule wants it."""


def answer(prompt: str) -> str:
    """The answer by the rules of the prompt, else the words of the context."""
    _, _, context = prompt.rpartition("Context:\n")
    for named, where, follow in RULES:
        found = re.search(where, context)
        if found:
            return follow(found) if named.lower() in prompt.lower() else found[0]
    return "I do not know."


if __name__ == "__main__":
    print(answer(json.load(sys.stdin)["prompt"]))
