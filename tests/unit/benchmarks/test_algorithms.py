"""The benchmark over algorithms: every registered one has an arm that a run would take, and the tables pair seeds and problems."""

from __future__ import annotations

import json
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.rl.algorithms import ALGORITHMS
from skill_ttrl.rl.algorithms.contract import TrainingSamples
from skill_ttrl.rl.algorithms.votes import TTPO, TTPOOptions
from skill_ttrl.stages.setup.checks import load_checked
from skill_ttrl.stages.setup.defaults import with_defaults
from skill_ttrl.types import Group, Step, Task, Trajectory, VoteResult

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OTHER_NAMES = {"ppo": "gae"}
"""Algorithms that have an arm by their other name."""


@pytest.fixture
def algorithms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("algorithms")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("algorithms_tables")


def test_every_registered_algorithm_has_an_arm(algorithms: ModuleType) -> None:
    settings = [each for recipe in algorithms.RECIPES for each in algorithms.arms_of(recipe, None).values()]
    measured = {load_config("quickstart", list(each)).rl.algorithm["type"] for each in settings}
    assert {name for name in measured if ":" not in name} == set(ALGORITHMS) - set(OTHER_NAMES)


def test_an_arm_is_followed_by_its_control_whose_reward_is_a_coin(algorithms: ModuleType) -> None:
    arms = algorithms.arms_of("quickstart", None)
    names = list(arms)
    coins = [name for name in names if name.endswith(algorithms.COIN)]
    assert {"grpo, random reward", "psr, random reward", "vote_sft, random reward", "ttpo, random reward"} <= {*coins}
    for coin in coins:
        arm = coin.removesuffix(algorithms.COIN)
        assert names.index(coin) == names.index(arm) + 1
        assert arms[coin][: len(arms[arm])] == arms[arm] and "rl.reward=random" in arms[coin]


def test_the_coin_of_ttpo_replaces_who_agrees_and_nothing_else(algorithms: ModuleType) -> None:
    arms = import_module("algorithms_arms")
    agrees = (True, False, True)
    task, step = Task("t", "e"), Step("", "a", 0.0, True, False)
    rollouts = tuple(Trajectory(task, (step,), None, "terminated", float(heads)) for heads in agrees)
    group = Group(task, rollouts)
    coin = arms.CoinTTPO(TTPOOptions()).advantages(TrainingSamples([group]))
    voted = TTPO(TTPOOptions()).advantages(TrainingSamples([group], votes=[VoteResult(None, 0.0, agrees)]))
    assert coin.advantages == voted.advantages and coin.advantages[0] == [1.0]


def test_greedy_rollouts_count_among_the_samples(algorithms: ModuleType, tmp_path: Path) -> None:
    rows = [{"step": step, "task": {"id": task}} for step in (0, 1) for task in "ab" for _ in range(3)]
    (tmp_path / "trajectories.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n')
    assert algorithms.samples_drawn(tmp_path) == 12
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "greedy_tokens": 9.0}\n')
    assert algorithms.samples_drawn(tmp_path) == 16


def test_every_arm_is_a_config_that_a_run_takes_with_the_loss_that_its_algorithm_brings(algorithms: ModuleType) -> None:
    for recipe, own in algorithms.RECIPES.items():
        for arm, settings in algorithms.arms_of(recipe, None).items():
            rl = with_defaults(load_checked(recipe, [*own, *settings])).rl
            brought = ALGORITHMS.get(rl.algorithm["type"]).defaults
            for key, value in brought.items():
                found, value = getattr(rl, key), getattr(type(rl)(**{key: value}), key)
                if key == "loss":
                    assert {**found, "dual_clip": None} == {**value, "dual_clip": None}, (recipe, arm)
                elif key != "kl_coef" and f"rl.{key}=null" not in settings:
                    assert found == value, (recipe, arm, key)


def cell(tables: ModuleType, arm: str, seed: int, before: list[float], after: list[float]) -> object:
    return tables.Cell("quickstart", seed, arm, [], {"accuracy": before}, {"accuracy": after}, 1024, 2.0, [])


def test_differences_are_paired_within_a_seed_and_pooled_over_seeds(tables: ModuleType) -> None:
    easy_hard, better = [0.9] * 40 + [0.1] * 40, [0.95] * 40 + [0.15] * 40
    cells = [
        cell(tables, "grpo", 0, [0.5] * 80, easy_hard),
        cell(tables, "grpo", 1, [0.5] * 80, easy_hard),
        cell(tables, "other", 0, [0.5] * 80, better),
        cell(tables, "other", 1, [0.5] * 80, easy_hard),
    ]
    start, grpo, other = tables.rows_of(cells)
    assert (start.arm, grpo.arm, other.arm) == ("no training", "grpo", "other")
    assert grpo.difference is None and grpo.after == {"accuracy": pytest.approx(0.5)}
    assert other.difference[0] == pytest.approx(0.025) and 0 < other.difference[1] < other.difference[2] < 0.1
    assert (other.better, other.worse, other.seeds) == (1, 0, 2)
    assert start.gain is None and other.gain[0] == pytest.approx(0.025) and (other.rose, other.fell) == (0, 0)
    assert (other.lowest, other.highest) == (pytest.approx(0.5), pytest.approx(0.55))


def test_results_are_written_as_table_json_and_plot(tables: ModuleType, tmp_path: Path) -> None:
    cells = [cell(tables, arm, 0, [0.2, 0.4], [value, 1.0]) for arm, value in (("grpo", 0.5), ("psr", 1.0))]
    text = tables.write_results(cells, tmp_path)
    assert "| psr | 1.000 |" in text and text + "\n" == (tmp_path / "table.md").read_text()
    assert "psr" in (tmp_path / "table.json").read_text()
    assert (tmp_path / "plot.svg").read_text().count("<circle") == 1  # psr; the start is not drawn


def test_the_plot_draws_what_lies_far_off_at_its_edge_and_a_weak_base_by_its_change(tables: ModuleType) -> None:
    near = [(-0.01, -0.02, 0.01), (0.01, 0.0, 0.02), (0.0, -0.01, 0.01)]
    low, high = tables._axis([*near, (-0.4, -0.5, -0.3)])
    assert -0.03 < low < -0.02 and 0.02 < high < 0.03
    cells = [cell(tables, arm, 0, [0.2, 0.4], [value, 1.0]) for arm, value in (("grpo", 0.5), ("psr", 1.0))]
    rows = tables.rows_of(cells)
    assert "quickstart: avg@k, less that of grpo" in tables.plot({"quickstart": rows})
    drawn = tables.plot({"collapse": rows})
    assert "collapse: avg@k, change from the start" in drawn and drawn.count("<circle") == 2


def test_a_cell_that_was_run_is_not_missing_unless_its_settings_changed(
    algorithms: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Namespace(seeds=[0], algorithms=["grpo", "psr"], settings=[], output=tmp_path)
    wanted = algorithms.missing(asked, "quickstart")
    assert [arm for _, _, arm, _, _ in wanted] == ["grpo", "psr"]
    recipe, seed, arm, settings, _ = wanted[0]
    row = {"recipe": recipe, "seed": seed, "arm": arm, "settings": list(settings), "before": {"accuracy": [0.0]},
           "after": {"accuracy": [1.0]}, "samples": 1, "seconds": 1.0, "warnings": []}  # fmt: skip
    (tmp_path / algorithms.CELLS).write_text(json.dumps(row) + "\n")
    assert [arm for _, _, arm, _, _ in algorithms.missing(asked, "quickstart")] == ["psr"]
    asked.settings = ["rl.steps=1"]
    assert len(algorithms.missing(asked, "quickstart")) == 2


def test_unknown_arms_are_refused_before_anything_runs_and_an_empty_folder_has_no_table(
    algorithms: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        monkeypatch.setattr(
            "sys.argv", ["algorithms.py", "--output", str(tmp_path / "new"), "--recipes", "quickstart", *words]
        )
        with pytest.raises(SystemExit) as ended:
            algorithms.main()
        assert ended.value.code not in (0, None)
        return capsys.readouterr().err + str(ended.value.code)

    assert "tpo" in said("--algorithms", "tpo") and not (tmp_path / "new").exists()
    assert "have no arm 'gigpo'" in said("--algorithms", "gigpo", "--tables-only")
    assert "have no arm 'ttpo'" in said("--algorithms", "grpo", "--against", "ttpo")
    assert "Run without --tables-only" in said("--algorithms", "grpo", "--tables-only")
