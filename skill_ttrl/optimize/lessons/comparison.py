"""The same items under two documents: how each went before and after, and how a model is shown that."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from skill_ttrl.optimize.transcript import clip, show_rollout
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.sanitize import escape, escape_terminal
from skill_ttrl.types import derive_seed

Change = Literal["improved", "regressed", "persistent_fail", "stable_success"]
Item = Mapping[str, Any]
PairPolicy = Literal["mixed", "changed", "unchanged"]

POLICIES: Mapping[PairPolicy, frozenset[Change]] = {
    "mixed": frozenset(get_args(Change)),
    "changed": frozenset({"improved", "regressed"}),
    "unchanged": frozenset({"persistent_fail", "stable_success"}),
}
"""Pairs that a policy shows."""
SHOWN_CHARS = 120_000
"""Of all rollouts of a comparison together."""
TASK_CHARS = 200

_HEADINGS: Mapping[Change, str] = {
    "regressed": "Regressed: right before, wrong now",
    "persistent_fail": "Still failing: wrong under both",
    "improved": "Improved: wrong before, right now",
    "stable_success": "Stable: right under both",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """One item under two documents."""

    before: RolloutResult
    after: RolloutResult

    @property
    def change(self) -> Change:
        """How the success of the item changed."""
        if self.before.hard:
            return "stable_success" if self.after.hard else "regressed"
        return "improved" if self.after.hard else "persistent_fail"

    def to_dict(self) -> dict[str, Any]:
        """The pair as JSON, without conversations."""
        sides = {"prev": self.before, "curr": self.after}
        shown = {
            name: {
                "hard": side.hard,
                "soft": side.soft,
                "predicted_answer": side.predicted_answer,
                "fail_reason": side.fail_reason,
            }
            for name, side in sides.items()
        }
        return {"id": self.after.id, "task": _task(self), "category": self.change, **shown}


def sample_order(items: Sequence[Item], seed: int, epoch: int) -> list[Item]:
    """All items in the order in which a comparison at the end of an epoch takes them."""
    order = list(items)
    random.Random(derive_seed(seed, "comparison", str(epoch))).shuffle(order)
    return order


def compare(
    roll_out: Callable[[str, Sequence[Item]], Sequence[RolloutResult]],
    documents: tuple[str, str],
    items: Sequence[Item],
    count: int,
    policy: PairPolicy = "mixed",
) -> list[Pair]:
    """Roll out two documents on the first `count` items, and on further ones until `changed` has `count` pairs.

    Args:
        roll_out: (document, items) → one result each.
        documents: the one before and the one now. Where they are the same text it is rolled out once.
        items: in the order in which they are taken.
        count: items of a comparison; under `changed`, pairs that are looked for.
        policy: pairs that are returned.
    """
    before, after = documents
    found: list[Pair] = []
    done = 0
    while done < len(items) and len(found) < count:
        chunk = items[done : done + count - len(found)]
        done += len(chunk)
        first = roll_out(before, chunk)
        second = first if before == after else roll_out(after, chunk)
        found += [pair for pair in map(Pair, first, second) if pair.change in POLICIES[policy]]
        if policy != "changed" or before == after:
            break
    return found


def count_changes(pairs: Sequence[Pair]) -> dict[Change, int]:
    """Pairs by how they changed, all four named."""
    found = Counter(pair.change for pair in pairs)
    return {change: found[change] for change in get_args(Change)}


def show_pairs(pairs: Sequence[Pair]) -> str:
    """The comparison as a section of a prompt: counts, then the rollouts of all pairs but those that went right twice."""
    counts = count_changes(pairs)
    detailed = sum(pair.change != "stable_success" for pair in pairs)
    most = SHOWN_CHARS // max(2 * detailed, 1)
    parts = [", ".join(f"{_HEADINGS[change].split(':')[0].lower()} {counts[change]}" for change in _HEADINGS)]
    for change, heading in _HEADINGS.items():
        group = [pair for pair in pairs if pair.change == change]
        if group:
            parts += [f"### {heading}", *(_shown(pair, most) for pair in group)]
    return "\n\n".join(parts)


def _shown(pair: Pair, most: int) -> str:
    if pair.change == "stable_success":
        return f"- {_task(pair)}"
    if pair.before == pair.after:
        return f"Before and now:\n{show_rollout(pair.after, 2 * most)}"
    return f"Before:\n{show_rollout(pair.before, most)}\nNow:\n{show_rollout(pair.after, most)}"


def _task(pair: Pair) -> str:
    result = pair.after
    text = result.question or result.task_description or str(result.id)
    return clip(escape(escape_terminal(" ".join(text.split()))), TASK_CHARS)
