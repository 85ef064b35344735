"""A scripted optimizer for the world of tests/rule_follower.py. For tests and benchmarks only.

It answers what an optimizer model is asked (analyst, merge, ranking, slow update, a whole document to rewrite) from the
text of the request alone, and its answer is a function of (seed, request). What it knows and how it errs was fixed before the first
comparison was run, but for the slow update: it was revised once, when its request had been written and a first look (100 seeds) had
shown that it wrote of failures that were mended. What is reported was measured afterwards, on other seeds:

- For a rule that failures name, it believes in the right value with probability .6, otherwise in one of the wrong ones. Of the two
  subtle rules it does so with .25 from one batch of failures, and with .7 when it is shown the same items under two documents (the
  slow update): some things are only seen over a longer time. There it writes only of rules that fail under both documents,
  doubts what the present one says of them, and says that its block holds.
- If the document already says what it believes, it proposes nothing for the rule; otherwise it appends the line, or replaces the one
  that is there, be that right or wrong. Of two lines that contradict each other it deletes the one it does not believe in.
- One analyst in ten adds a distraction, one in seven a platitude; one edit in twenty names a target that is not in the document.
- One answer in twenty-five is prose, another one in twenty-five a JSON that breaks off.
- A merge adds up what agrees and keeps the best supported value of a rule, but one time in ten the contradicting one as well, and
  now and then it forgets an edit. A ranking is by support with noise of one analyst's weight.
- Whoever writes a whole document anew loses each line with probability .03.

`blind=True` is the control: the same forms of answers, but rules and values drawn at random, whatever the failures say.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from skill_ttrl.optimize.calls import Reply
from tests.rule_follower import DISTRACTIONS, HOLDS, RULES, SUBTLE, line, uniforms

KNOWS, KNOWS_SUBTLE, SEES_SUBTLE, REPEATS = 0.6, 0.25, 0.7, 0.2
DISTRACTS, PLATITUDE, ABSENT, PROSE, BROKEN = 0.1, 0.15, 0.05, 0.04, 0.04
KEEPS_BOTH, FORGETS, LOSES, NOISE = 0.1, 0.05, 0.03, 8.0
PLATITUDES = ("Be careful and check the answer.", "Think step by step.", "Read the question twice.")

_RULE = re.compile(r"- ([a-z]+): ([^\n\"\\]+)")
_REASON = re.compile(r"not as asked: ([a-z, ]+)")
_POOL = re.compile(r"^\[(\d+)\] (.*)$", re.MULTILINE)
_CONTENT = re.compile(r"content=(['\"])(.*?)\1")
_SUPPORT = re.compile(r"support=(\d+)")
Draws = Iterator[float]


@dataclass
class ScriptedOptimizer:
    """The optimizer model, with a count.

    Args:
        seed: another seed is another model.
        blind: the control of random edits.
        wavering: the answer depends on the number of the call too, so that asking again is seen.
        before: called with the number of the call before each one; may raise.
    """

    seed: int = 0
    blind: bool = False
    wavering: bool = False
    before: Callable[[int], None] | None = None
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """(stage, system, user) of each call in order."""
    tokens: int = 0
    """Of all requests and answers: a quarter of their characters."""
    first: int = 0
    """Number of the first call, for a model that another process has already asked."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
        with self._lock:
            number = self.first + len(self.calls)
            if self.before is not None:
                self.before(number)
            self.calls.append((stage, system, user))
        draws = uniforms("optimizer", self.seed, system, user, number if self.wavering else "")
        text = self._answer(user, stage, draws)
        reply = Reply(text=text, prompt_tokens=(len(system) + len(user)) // 4, completion_tokens=len(text) // 4)
        with self._lock:
            self.tokens += reply.prompt_tokens + reply.completion_tokens
        return reply

    def _answer(self, user: str, stage: str, draws: Draws) -> str:
        garbled = next(draws)
        if garbled < PROSE:
            return "I would look at the failures again before I change anything."
        if "new instruction" in user:  # gepa's request: a document in a fence, not JSON
            document = self._rewritten(user.split("```")[1], user, draws)
            return f"Here it is.\n```\n{document}\n```"
        answer = json.dumps(self._object(user, stage, draws), indent=1)
        return answer[: len(answer) // 2] if garbled < PROSE + BROKEN else answer

    def _object(self, user: str, stage: str, draws: Draws) -> dict[str, Any]:
        if stage.startswith("merge"):
            return {"reasoning": "merged", "edits": _merge(user, draws)}
        if stage.startswith("rank"):
            return {"reasoning": "by support", "selected_indices": _rank(user, draws)}
        if stage == "slow_update":
            return {"reasoning": "over two epochs", "slow_update_content": self._guidance(user, draws)}
        return {"reasoning": "seen in the failures", "edits": self._edits(user, draws)}

    # The analysts

    def _edits(self, user: str, draws: Draws) -> list[dict[str, Any]]:
        document = _current_document(user)
        most = re.search(r"at most (\d+) edits", user, re.IGNORECASE)
        edits = self._right_or_wrong(user, document, draws, KNOWS_SUBTLE)
        edits = edits[: int(most[1]) if most else None]
        if next(draws) < DISTRACTS:
            edits.append({"op": "append", "content": DISTRACTIONS[int(next(draws) * len(DISTRACTIONS))]})
        if next(draws) < PLATITUDE:
            edits.append({"op": "append", "content": PLATITUDES[int(next(draws) * len(PLATITUDES))]})
        return edits

    def _right_or_wrong(self, user: str, document: str, draws: Draws, subtle: float) -> list[dict[str, Any]]:
        """An edit a rule that failures name, the most often named first."""
        found = _RULE.findall(document)
        said = dict(found)
        edits: list[dict[str, Any]] = []
        for name in self._named(user, draws):
            if name == "distracted":
                present = [each for each in DISTRACTIONS if each in document]
                edits += [{"op": "delete", "target": present[0] + "\n"}] if present else []
                continue
            value = self._believe(name, set(), draws, subtle)
            other = [each for each in found if each[0] == name and each[1] != said[name]]
            if other and value in (said[name], other[0][1]):  # the document contradicts itself
                wrong = other[0][1] if value == said[name] else said[name]
                edits.append({"op": "delete", "target": line(name, wrong) + "\n"})
                continue
            if said.get(name) == value:
                continue
            if name in said:
                edits.append({"op": "replace", "target": line(name, said[name]), "content": line(name, value)})
            elif next(draws) < 0.3 and said:
                anchor = list(said)[int(next(draws) * len(said))]
                edits.append({"op": "insert_after", "target": line(anchor, said[anchor]), "content": line(name, value)})
            else:
                edits.append({"op": "append", "content": line(name, value)})
            if next(draws) < ABSENT and edits[-1]["op"] != "append":
                edits[-1]["target"] = "- as discussed"
        return edits

    def _named(self, user: str, draws: Draws) -> list[str]:
        if self.blind:
            return [list(RULES)[int(next(draws) * len(RULES))] for _ in range(3)]
        reasons = [name.strip() for found in _REASON.findall(user) for name in found.split(",")]
        return [
            name for name, _ in Counter(name for name in reasons if name in RULES or name == "distracted").most_common()
        ]

    def _believe(self, name: str, doubted: set[tuple[str, str]], draws: Draws, subtle: float) -> str:
        right, *wrong = RULES[name]
        knows = 1 / len(RULES[name]) if self.blind else subtle if name in SUBTLE else KNOWS
        value = ""
        for _ in range(4):
            value = right if next(draws) < knows else wrong[int(next(draws) * len(wrong))]
            if (name, value) not in doubted or next(draws) < REPEATS:
                break
        return value

    # Whole documents and blocks

    def _rewritten(self, document: str, user: str, draws: Draws) -> str:
        document = re.sub(
            r"<!-- (\w+)_START -->.*?<!-- \1_END -->", "", document.replace("(empty)", ""), flags=re.DOTALL
        )
        document = document.strip("\n") + "\n"
        for edit in self._right_or_wrong(user, document, draws, KNOWS_SUBTLE):
            if edit["op"] == "delete" or edit["op"] == "replace":
                document = document.replace(edit["target"], edit.get("content", ""), 1)
            else:
                document += edit["content"] + "\n"
        if next(draws) < DISTRACTS:
            document += "\n" + DISTRACTIONS[int(next(draws) * len(DISTRACTIONS))]
        if next(draws) < PLATITUDE:
            document += "\n" + PLATITUDES[int(next(draws) * len(PLATITUDES))]
        return "\n".join(each for each in document.splitlines() if not each.strip() or next(draws) >= LOSES)

    def _guidance(self, user: str, draws: Draws) -> str:
        """The lines of the block so far, and one for each rule that fails under both documents."""
        before = re.search(r"## Previous slow update guidance\n(.*?)(?=\n## )", user, re.DOTALL | re.IGNORECASE)
        lines = dict(_RULE.findall(before[1])) if before else {}
        said = set(_RULE.findall(_current_document(user)))
        still = re.search(r"### Still failing.*?(?=\n### |\Z)", user, re.DOTALL)
        for name in self._named(still[0] if still else "", draws):
            if name in RULES:  # what the document says of it now did not help
                lines[name] = self._believe(name, said, draws, SEES_SUBTLE)
        return "\n".join([HOLDS, *(line(name, value) for name, value in lines.items())]) if lines else "Nothing to add."


def _current_document(user: str) -> str:
    """The document that a request shows as the current one."""
    found = re.search(r"## (?:Current )?(?:Epoch's )?(?:Skill|Document)[^\n]*\n(.*?)(?=\n## |\Z)", user, re.DOTALL)
    return found[1] if found else ""


def _merge(user: str, draws: Draws) -> list[dict[str, Any]]:
    """One edit a rule, the best supported; others once."""
    pool: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for edit in _patches(user):
        text = str(edit.get("content", "") or edit.get("target", ""))
        named = _RULE.match(text)
        same = pool.setdefault(("rule", named[1]) if named and named[1] in RULES else ("text", text), {})
        support = int(edit.get("support_count") or 1)
        if text in same:
            same[text]["support_count"] += support
        else:
            same[text] = {**edit, "support_count": support}
    merged: list[dict[str, Any]] = []
    for same in pool.values():
        ranked = sorted(same.values(), key=lambda edit: -edit["support_count"])
        merged += ranked[: 2 if next(draws) < KEEPS_BOTH else 1]
    return [edit for edit in merged if next(draws) >= FORGETS]


def _patches(user: str) -> list[dict[str, Any]]:
    """The edits of all patches in a request, in order."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"^\[", user, re.MULTILINE):
        try:
            found, _ = decoder.raw_decode(user, match.start())
        except ValueError:
            continue
        if isinstance(found, list) and found and isinstance(found[0], dict):
            return [edit for patch in found for edit in patch.get("edits", []) if isinstance(edit, dict)]
    return []


def _rank(user: str, draws: Draws) -> list[int]:
    scores = {}
    for match in _POOL.finditer(user):
        support = _SUPPORT.search(match[2])
        content = _CONTENT.search(match[2])
        rule = _RULE.match(content[2]) if content else None
        scores[int(match[1])] = (int(support[1]) if support else 1) + NOISE * next(draws) + (NOISE if rule else 0)
    return sorted(scores, key=lambda index: -scores[index])
