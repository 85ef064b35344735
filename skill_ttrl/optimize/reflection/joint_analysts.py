"""Several minibatches in one request to the analyst: fewer requests for the same minibatches, and still one patch for each.

The request's instructions and document are sent once for all of them. Whether a model judges each minibatch as if it saw it alone is
the model's to keep; an answer that leaves one out is counted as an analyst without a usable answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from skill_ttrl.optimize.replies import extract_json
from skill_ttrl.optimize.transcript import show_rollouts
from skill_ttrl.optimize.types import RolloutResult

Minibatch = Sequence[RolloutResult]


Source = Literal["failure", "success"]


def grouped(minibatches: Sequence[tuple[Source, Minibatch]], per_request: int) -> list[tuple[Source, list[Minibatch]]]:
    """Neighbours of one outcome, at most `per_request` of them, in order."""
    groups: list[tuple[Source, list[Minibatch]]] = []
    for outcome, rollouts in minibatches:
        if groups and groups[-1][0] == outcome and len(groups[-1][1]) < per_request:
            groups[-1][1].append(rollouts)
        else:
            groups.append((outcome, [rollouts]))
    return groups


def show_minibatches(several: Sequence[Minibatch]) -> str:
    """The rollouts of one minibatch, or those of several under a heading each."""
    if len(several) == 1:
        return show_rollouts(several[0])
    return "\n\n".join(
        f"### Minibatch {number} ({len(rollouts)} rollouts)\n{show_rollouts(rollouts)}"
        for number, rollouts in enumerate(several, 1)
    )


def split_answer(answer: str | None, count: int) -> list[str | None]:
    """The answer for each of `count` minibatches; None where there is none. One patch alone is the first minibatch's."""
    if count == 1:
        return [answer]
    found = extract_json(answer or "") or {}
    listed = found.get("patches", [found])
    parts = (
        [json.dumps(each) if isinstance(each, Mapping) and each else None for each in listed]
        if isinstance(listed, list)
        else []
    )
    return [*parts, *[None] * count][:count]
