"""`skillttrl optimize` with the engine gepa, through a really started server: budget, resume, and everything that reads the run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.data.formats import CONVENTIONS
from skill_ttrl.errors import BudgetError
from skill_ttrl.stages.inspecting.inspect import inspect
from skill_ttrl.stages.optimize import check_start, optimize_run, prepare
from tests import format_models
from tests.faulty_server import FaultyServer

pytestmark = pytest.mark.slow


def answer(body: Mapping[str, Any], draw: random.Random) -> str:
    """A model that follows the document; asked for a new one by gepa, it adds a rule that the old one lacks."""
    user = body["messages"][-1]["content"]
    if "new instruction" not in user:
        return format_models.answer(body, draw)
    document = user.split("```")[1].strip()
    lacking = [each.rule for each in CONVENTIONS if not each.stated(document)]
    return f"```\n{document}\n- {lacking[len(user) % len(lacking)]}\n```" if lacking else "Nothing to add."


def settings(url: str, **endpoints: Any) -> dict[str, Any]:
    endpoint = {"model": "scripted", "base_url": url, "max_retries": 0}
    return {
        "name": "forms",
        "env": {"id": "qa", "train_tasks": 24, "eval_tasks": 8},
        "rollout": {"backend": "openai", "max_new_tokens": 40},
        "optimize": {"engine": "gepa", "epochs": 3, "selection": {"tasks": 8}, "engine_options": {"minibatch_size": 4}},
        "endpoints": {"policy": endpoint, "optimizer": endpoint, **endpoints},
    }


def test_the_whole_command_with_gepa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-no-use")
    with FaultyServer(faults=(), answer=answer) as there:
        whole = optimize_run(settings(there.url), output=tmp_path / "whole")
        paid = len(there.asked)
        again = optimize_run(settings(there.url), output=tmp_path / "whole")
        assert again == whole and len(there.asked) == paid
        with pytest.raises(BudgetError):
            optimize_run(settings(there.url, max_requests=40), output=tmp_path / "bounded")
        assert len(there.asked) == paid + 40
        found = optimize_run(settings(there.url), output=tmp_path / "bounded")
        assert len(there.asked) == 2 * paid  # nothing is paid for twice
    assert found.test_best == whole.test_best and found.engine == "gepa"
    best = [(tmp_path / name / "best_skill.md").read_bytes() for name in ("whole", "bounded")]
    assert best[0] == best[1] and whole.test_first and whole.test_best and whole.test_best.hard > whole.test_first.hard
    seen = inspect(tmp_path / "whole")
    assert seen.kind == "optimization" and seen.rows[-1][0] == whole.steps == 12
    assert check_start(prepare(settings("http://127.0.0.1:9")), tmp_path / "new").steps == 12
