"""GiGPO's parts (arXiv 2505.10978, section 4): discounted returns of steps, and steps that share an anchor observation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher


def discounted_returns(rewards: Sequence[Sequence[float]], gamma: float) -> list[list[float]]:
    """R_t = r_t + gamma R_{t+1} of each step of each episode (equation 5)."""
    rows = []
    for episode in rewards:
        row: list[float] = []
        for reward in reversed(episode):
            row.append(reward + gamma * (row[-1] if row else 0.0))
        rows.append(row[::-1])
    return rows


def anchor_groups(
    anchors: Sequence[Sequence[str]], groups: Sequence[Hashable], similarity: float | None = None
) -> list[list[Hashable]]:
    """Name the step group of each step: steps of one group's episodes whose anchors are equal, or alike (equation 6).

    Args:
        anchors: What each step of each episode (E) was taken from: an observation, or a state.
        groups: Group of each episode (E).
        similarity: From which ratio (`difflib.SequenceMatcher`) on two texts are alike; a text joins the first step group whose
            first text it is like. None: only equal texts are.

    Returns:
        An id for each step of each episode.
    """
    first: dict[Hashable, list[str]] = {}
    rows: list[list[Hashable]] = []
    for episode, group in zip(anchors, groups, strict=True):
        known = first.setdefault(group, [])
        rows.append(
            [(group, anchor if similarity is None else _alike(anchor, known, similarity)) for anchor in episode]
        )
    return rows


def _alike(text: str, known: list[str], similarity: float) -> str:
    """The first of the known texts that this one is like; itself, which is known from then on, where there is none."""
    for other in known:
        if text == other:
            return other
        matcher = SequenceMatcher(None, text, other)
        # The two quick ratios are upper bounds, and spare most pairs the quadratic one.
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
        if all(bound() >= similarity for bound in bounds):
            return other
    known.append(text)
    return text
