"""Scores of a batch of rollouts, and names of documents and other values by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from skill_ttrl.optimize.types import RolloutResult


def compute_score(results: Iterable[RolloutResult | Mapping[str, Any]]) -> tuple[float, float]:
    """Means of `hard` and `soft`; (0, 0) of nothing."""
    rows = list(results)
    hard = soft = 0.0  # added in turn: `sum` compensates from Python 3.12 on, and scores are compared to the last digit
    for each in rows:
        hard += float(each.hard if isinstance(each, RolloutResult) else each.get("hard") or 0)
        soft += float(each.soft if isinstance(each, RolloutResult) else each.get("soft") or 0)
    return (hard / len(rows), soft / len(rows)) if rows else (0.0, 0.0)


def graded(results: Iterable[RolloutResult]) -> list[RolloutResult]:
    """The results whose success is known: only these are lessons."""
    return [result for result in results if not result.ungraded]


def skill_hash(content: str) -> str:
    """16 hexadecimal digits of the document's SHA-256: the key of its evaluations."""
    return hashlib.sha256((content or "").encode("utf-8", "surrogatepass")).hexdigest()[:16]


def content_hash(*content: Any) -> str:
    """24 hexadecimal digits that are the same for the same JSON content."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
