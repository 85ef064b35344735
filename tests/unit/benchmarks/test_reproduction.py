"""A run is held against the interval of published ones: it agrees, it does not, and what cannot be compared is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skill_ttrl.config import load_config
from skill_ttrl.runs.folder import describe_environment
from skill_ttrl.runs.summary import Summary
from skill_ttrl.statistics import wilson_interval
from skill_ttrl.train.defaults import with_env_defaults
from skill_ttrl.train.results import Evaluation, ProblemResult, SamplingResult, TypeResult
from skill_ttrl.types import to_json

GAMES = 40
UNSEEN = "valid_unseen: greedy"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    return import_module("reproduce_alfworld")


@pytest.fixture
def reproduce(script: Any) -> Callable[..., int]:
    """The script without its further evaluations, which would play games."""
    benchmark = replace(script.BENCHMARK, further={})
    return lambda *words: script.main(benchmark, [str(word) for word in words])


def evaluation(won: int, label: str = "after") -> Evaluation:
    share, interval = won / GAMES, wilson_interval(won, GAMES)
    results = [ProblemResult(f"game {n}", int(n < won), 1, None, 0.0, None, n < won) for n in range(GAMES)]
    return Evaluation(
        label, "valid_unseen", GAMES, 1, 0.4, share, interval, {"1": share}, None, None, share, interval, {}, None, None, tuple(results),
        controls={"random": TypeResult(GAMES, 0.0, wilson_interval(0, GAMES))},
        by_sampling={"greedy": SamplingResult(share, interval)},
    )  # fmt: skip


def finished_run(folder: Path, seed: int, *won: int, **changed: Any) -> Path:
    """The files of a run that has ended: of two figures the first is before its reinforcement."""
    config = with_env_defaults(load_config("alfworld_official", [f"seed={seed}"])).model_copy(update=changed)
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    (folder / "run.json").write_text(json.dumps(describe_environment()))
    labels = ("before", "after")[-len(won) :]
    lines = [to_json(evaluation(each, label)) for each, label in zip(won, labels, strict=True)]
    (folder / "evaluations.jsonl").write_text("".join(f"{line}\n" for line in lines))
    summary = Summary("alfworld_official", seed, "env", False, GAMES, 1, 0.4, seconds={"sft": 600.0, "sft.part": 9.0})
    (folder / "summary.json").write_text(to_json(summary))
    return folder


@pytest.fixture
def published(tmp_path: Path, reproduce: Callable[..., int]) -> Path:
    runs = [finished_run(tmp_path / f"run-{seed}", seed, won) for seed, won in enumerate((38, 37, 39))]
    assert reproduce("--publish", *runs, "--published", tmp_path / "alfworld.json") == 0
    return tmp_path / "alfworld.json"


def test_a_like_run_agrees_and_another_does_not(
    tmp_path: Path, published: Path, reproduce: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = json.loads(published.read_text())
    assert (stored["seeds"], stored["minutes"]) == ([0, 1, 2], [10.0] * 3)
    assert stored["figures"][0]["name"] == UNSEEN and stored["figures"][0]["decides"]

    like = finished_run(tmp_path / "like", 3, 36)
    assert reproduce("--published", published, "--output", like) == 0  # its seed, 3, is the first that is not published
    shown = capsys.readouterr().out
    assert f"{UNSEEN} *" in shown and "0.950" in shown and "0.900" in shown and " NO" not in shown

    worse = finished_run(tmp_path / "worse", 4, 27)
    assert reproduce("--published", published, "--output", worse, "--seed", 4, "--json") == 1
    raw = json.loads(capsys.readouterr().out)
    assert raw["agrees"] is False and raw["other_versions"] == {}
    assert {row["name"]: row["agrees"] for row in raw["figures"]}["valid_unseen: control random"]


def test_of_equal_repetitions_the_problems_alone_give_the_interval_of_the_next(script: Any) -> None:
    """By hand: three repetitions at .9, half of each interval .098, so .05 a standard deviation; t(.975, 4) = 2.776 from a table."""
    half = 2.776445 * math.sqrt(0.05**2 * 2 / 4 * (1 + 1 / 3))
    prediction_interval = import_module("reproduction_figures").prediction_interval
    low, high = prediction_interval([0.9] * 3, [(0.9 - 0.0979982, 0.9 + 0.0979982)] * 3)
    assert (low, high) == pytest.approx((0.9 - half, 0.9 + half), abs=1e-5)
    with pytest.raises(ValueError, match="3 values and 1 intervals"):
        prediction_interval([0.9] * 3, [(0.8, 1.0)])


@pytest.mark.parametrize(
    ("success", "games", "spread"), [(0.97, 134, 0.0), (0.97, 134, 0.5), (0.75, 500, 0.0), (0.75, 500, 0.1)]
)
def test_the_next_repetition_lies_in_its_interval_as_often_as_promised(
    success: float, games: int, spread: float, script: Any
) -> None:
    """Seeds shift the log-odds of every game by a normal number; three are published, the fourth is to lie inside."""
    prediction_interval = import_module("reproduction_figures").prediction_interval
    rng, inside, repeats = np.random.default_rng(0), 0, 400
    for _ in range(repeats):
        odds = math.log(success / (1 - success)) + rng.normal(0, spread, 4)
        *won, new = rng.binomial(games, 1 / (1 + np.exp(-odds))).tolist()
        low, high = prediction_interval([each / games for each in won], [wilson_interval(each, games) for each in won])
        inside += low <= new / games <= high
    assert inside / repeats >= 0.93
