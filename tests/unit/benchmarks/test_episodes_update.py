"""The benchmark of updates on episodes: all ways give one loss, and an item an episode computes each token once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import episodes_update
from benchmarks.episodes_update import SHAPES, updates


def test_an_item_an_episode_computes_no_token_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(episodes_update, "REPEATS", 1)
    shape = replace(SHAPES[0], groups=1, tries=2, turns=3, hidden=32, layers=1, vocabulary=40)
    tokens = updates(shape)
    whole = shape.first + 3 * shape.action + 2 * shape.observation
    assert tokens["an item an episode, padded"] == 2 * whole
    assert (
        tokens["an item an episode, packed"] == 2 * (whole - 1) - shape.first
    )  # the last is never read, the prompt once
    assert tokens["an item a step, padded"] > 3 * whole
    assert "6 items" in capsys.readouterr().out
