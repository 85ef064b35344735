"""The benchmark of skills on ALFWorld: its configs are valid, and its figures pair the same games."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs.alfworld.rules import TREATED


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))


@pytest.mark.parametrize("kind", ["clean", "cool", "heat"])
@pytest.mark.usefixtures("folder")
def test_a_cold_start_never_has_the_type_that_is_held_out(kind: str) -> None:
    alfworld_skills = import_module("alfworld_skills")
    config = SkillTTRLConfig.model_validate(alfworld_skills.recipe(kind, 3, 100, Path("data")))
    held_out = alfworld_skills.HELD_OUT[kind]
    assert TREATED[held_out] == kind
    assert held_out not in config.env.kwargs["task_types"] and len(config.env.kwargs["task_types"]) == 5
    assert config.seed == 3 and config.sft.steps == 100


@pytest.mark.usefixtures("folder")
def test_success_over_seeds_is_one_share_of_all_games() -> None:
    def row(seed: int, won: int) -> dict[str, Any]:
        return {"held out": "heat", "seed": seed, "games": "10 train", "skill": "right", "won": won, "of": 10, "success": won / 10, "treated": 1.0}  # fmt: skip

    last = import_module("alfworld_skills").table([row(0, 9), row(1, 6)]).splitlines()[-1]
    assert last.startswith("| heat | 10 train | right | 0.750 | [0.531, 0.888] | 0.900, 0.600 | 1.00 |")


@pytest.mark.usefixtures("folder")
def test_a_difference_pairs_the_games() -> None:
    difference = import_module("alfworld_skills_loop").difference
    before, after = {"of": 4, "lost": ["a", "b", "c"]}, {"of": 4, "lost": ["c", "d"]}
    found, low, high = difference(before, after)
    assert found == 0.25 and low < 0 < high
    assert difference(before, before)[0] == 0
