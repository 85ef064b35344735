"""Two scripted models behind one server, for tests of `skillttrl optimize` only: a reader that follows the rules of a document, and an
optimizer that finds the rules in what failed.

The reader answers the questions of `synthetic:formats`; its document is the system message. The optimizer knows every convention. It proposes
the rules of the types of task that it is shown and that the document lacks; asked to rank it answers prose, and shown successes half a
JSON. Both are functions of the request alone.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from skill_ttrl.data.families import CONVENTIONS, Convention, Formats, Item

MARKERS = {"date": "YYYY-MM-DD", "time": "24-hour", "duration": "whole minutes", "amount": "two decimals", "code": "four digits",
           "list": "semicolon", "yes_no": "CONFIRMED", "missing": "NOT-RECORDED"}  # fmt: skip
"""Part of each rule without which no wording of it can be followed."""
_BEHIND = re.compile(r"^## (?:Edit budget|Proposed|Patches|Rollouts|Failure|Merged|Rejected)", re.MULTILINE)
_TYPE = re.compile(r"^Task type: (\w+)", re.MULTILINE)


def stated(convention: Convention, document: str) -> bool:
    """Tell whether a document states the convention, in the words of `rule` or others."""
    return MARKERS[convention.name].lower() in document.lower()


def reply(item: Item, document: str) -> str:
    """The answer of a reader who follows the rules of a document and no others."""
    return item.drawn.formatted if stated(item.convention, document) else item.drawn.plain


def rules_of(*names: str) -> str:
    """A document that states the conventions of these names."""
    rules = [f"- {each.rule}" for each in CONVENTIONS if each.name in names]
    return "\n".join(["# Output conventions", "", "Answer with the value alone.", "", *rules, ""])


@cache
def questions() -> dict[str, Item]:
    family = Formats()
    return {item.question: item for split in ("train", "val", "test") for item in family.items(split)}


def answer(body: Mapping[str, Any], draw: random.Random) -> str:
    """The `Answer` of a `FaultyServer`."""
    messages = body["messages"]
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    user = messages[-1]["content"]
    found = next((item for question, item in questions().items() if question in user), None)
    if "## Document" in user:
        return optimizer(user)
    return f"<answer>{reply(found, system)}</answer>" if found else "?"


def clean(body: Mapping[str, Any], draw: random.Random) -> str:
    """The same without garbage."""
    user = body["messages"][-1]["content"]
    return patch(user) if "## Document" in user else answer(body, draw)


def optimizer(user: str) -> str:
    if "Proposed edits" in user:
        return "I am afraid that I cannot say more about this than that care is needed."
    text = patch(user)
    return text[: len(text) // 2] if "## Rollouts that succeeded" in user else text


def patch(user: str) -> str:
    if "Proposed edits" in user:
        return json.dumps({"selected_indices": [0, 1]})
    known = _BEHIND.split(user)[0]
    shown = {*_TYPE.findall(user)}
    wanted = [each for each in CONVENTIONS if each.name in shown or each.rule in user]
    edits = [{"op": "append", "content": f"- {each.rule}"} for each in wanted if not stated(each, known)]
    return json.dumps({"reasoning": "rules that the failures miss", "edits": edits})
