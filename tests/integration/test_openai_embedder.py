"""Vectors from behind an address: a run whose skills are found with them, its budget, and what is written of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.errors import BudgetError
from skill_ttrl.runs.checkpoint import verify
from skill_ttrl.skills.embedders import make_embedder
from tests.faulty_server import FaultyServer, requests_in, vector_of


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


def endpoint(server: FaultyServer, **fields: Any) -> str:
    return json.dumps({"model": "vectors", "base_url": server.url, **fields})


def settings(server: FaultyServer, *more: str) -> list[str]:
    return [
        "skills.embedder=openai",
        f"endpoints.roles.embeddings={endpoint(server)}",
        "phases=[rl]",
        "rl.steps=4",
        *more,
    ]


def test_vectors_have_length_one_and_the_same_text_has_the_same_bits() -> None:
    texts = [f"skill {number}" for number in range(40)]
    with FaultyServer(["500", "drop in the answer"], seed=4) as server:
        made = make_embedder("openai", endpoint(server))
        rows = made.embed([*texts, "", "  ", "skill 3"])
        asked = len(server.asked)
        assert np.array_equal(made.embed(texts[::-1]), rows[:40][::-1]) and len(server.asked) == asked
    assert made.dimension == 4 and "127.0.0.1" in made.name and made.name.endswith("/vectors:4")
    expected = np.asarray(vector_of("skill 3"))
    assert np.allclose(rows[3], expected / np.linalg.norm(expected), atol=1e-6)
    assert np.allclose(np.linalg.norm(rows[:40], axis=1), 1, atol=1e-6)
    assert not rows[40:42].any() and np.array_equal(rows[42], rows[3])
    sent = [text for each in server.asked for text in each["body"]["input"]]
    assert "" not in sent and "  " not in sent


@pytest.mark.slow
def test_a_spent_budget_ends_a_run_like_a_signal_and_a_larger_one_goes_on_to_the_same_end(
    tiny_skills_yaml: Path, tmp_path: Path
) -> None:
    """Each step's skills are changed, so each asks for vectors anew. The end is that of a run that was never stopped."""
    with FaultyServer([]) as server:
        often = settings(server, "rl.save_steps=3", "skills.episode_notes=false")
        whole = train.run(load_config(tiny_skills_yaml, often), tmp_path / "whole")
        phases = [line["phase"] for line in requests_in(tmp_path / "whole" / "usage.jsonl")]
        assert phases.count("rl") >= 2, phases  # the budget can end between two requests of the phase
        bound = phases.index("rl") + 1
        folder = tmp_path / "bounded"
        with pytest.raises(BudgetError, match="--resume auto"):
            train.run(load_config(tiny_skills_yaml, [*often, f"endpoints.max_requests={bound}"]), folder)
        spent = (folder / "usage.jsonl").read_text()
        checkpoints = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert checkpoints == ["rl-000001"]  # saved at the budget's end, not at a third step
        for name in checkpoints:
            verify(folder / "checkpoints" / name)
        with pytest.raises(BudgetError, match="The budget is spent"):
            train.run(load_config(tiny_skills_yaml, [*often, f"endpoints.max_requests={bound}"]), folder, resume="auto")
        assert (folder / "usage.jsonl").read_text() == spent  # nobody was asked
        more = load_config(tiny_skills_yaml, [*often, "endpoints.max_requests=1000000"])
        done = train.run(more, folder, resume="auto")
    assert (folder / "usage.jsonl").read_text().startswith(spent)
    for name in ("metrics.jsonl", "votes.jsonl", "evaluations.jsonl", "trajectories.jsonl"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert done.accuracy_after == whole.accuracy_after and done.usage["requests"] >= whole.usage["requests"]
    log = "bank/log.jsonl"
    assert (folder / log).is_file() == (tmp_path / "whole" / log).is_file()
