"""WebShop by command: the test goals once each with score and success, kept, inspected, measured of a policy, and played."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs import make_env
from skill_ttrl.statistics import mean_interval, wilson_interval
from skill_ttrl.types import Trajectory, from_json
from tests.faulty_server import FaultyServer
from tests.integration.test_cli_commands import skillttrl as command
from tests.integration.test_openai_backend import at
from tests.preloaded import run_script

SOURCE = "generated, 1,000 products, synthetic goals by goal, nouns by rule"


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The catalogue is made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("WEBSHOP_DATA", raising=False)
        patch.setenv("COLUMNS", "80")
        yield


@pytest.fixture(scope="module")
def goals(one_cache: None) -> list[Any]:
    """The test goals that ask for two options."""
    with closing(make_env("webshop", data="generated", split="test")) as env:
        found = [env.unwrapped.goals[number] for number in range(500)]  # type: ignore[attr-defined]
    return [goal for goal in found if len(goal.options) == 2]


def kept(file: Path) -> list[Trajectory]:
    return [from_json(Trajectory, line) for line in file.read_bytes().splitlines()]


@pytest.mark.slow
def test_the_500_test_goals_are_played_once_each_with_score_and_success_by_category(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    words = ("evaluate", "random", "--env", "webshop", "--num-workers", 1, "-o", file)
    done = command(*words, "--split", "test", "--json")
    assert done.code == 0, done
    found, lines = done.json, kept(file)
    assert len({line.task.id for line in lines}) == len(lines) == 500 and found["split"] == "test"
    scores = [line.steps[-1].info["score"] for line in lines]
    won = [line.steps[-1].info["won"] for line in lines]
    assert any(0 < score < 1 for score in scores), "somebody bought what is wrong in part"
    overall = found["overall"]
    assert overall["score"] == pytest.approx(sum(scores) / 500)
    assert overall["score_interval"] == pytest.approx(list(mean_interval(scores)))
    assert overall["success"] == sum(won) / 500 and overall["interval"] == list(wilson_interval(sum(won), 500))
    assert overall["steps"] == sum(len(line.steps) for line in lines) / 500 and found["source"] == SOURCE
    kinds = {line.task.task_type for line in lines}
    assert kinds == set(found["by_type"]) and "fashion" in kinds
    assert all({"score", "score_interval", "success", "interval"} <= set(each) for each in found["by_type"].values())
    again = command(*words)
    assert "episodes are in" in again.err and f"Source: {SOURCE}." in again.out
    header = next(line for line in again.out.splitlines() if "task type" in line)
    columns = [word.strip() for word in header.strip("┃").split("┃")]
    assert columns == ["task type", "episodes", "score", "success", "steps", "failed"]
    assert max(map(len, again.out.splitlines()[1:-1])) <= 80
    inspected = command("inspect", file, "--json").json["facts"]
    assert f", score {overall['score']:.3f}, " in inspected["success"]


def shops(body: Mapping[str, Any], draw: random.Random) -> str:
    """Searches for the instruction, opens the first product, buys it."""
    seen = str(body["messages"][-1]["content"])
    if "[SEP] Search" in seen:
        return "search[" + seen.partition("Instruction: [SEP] ")[2].partition(" [SEP] ")[0].partition(" with ")[0] + "]"
    asin = re.search(r"Next > \[SEP\] (\w{10}) ", seen)
    return f"click[{asin[1].lower()}]" if asin else "click[buy now]"


def test_a_policy_is_measured_by_score_and_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = ("evaluate", "openai:buyer", "--env", "webshop", "--limit", 5, "-o", tmp_path / "kept")
    with FaultyServer(answer=shops, faults=()) as server:
        done = command(*words, "--json", *at(server, "eval.samples=1", "agent.template=plain"))
        assert done.code == 0, done
        more = command(*words, "--full", *at(server, "eval.samples=1", "agent.template=plain"))
    shown = " ".join(more.out.split())
    found = done.json
    rows = [json.loads(line) for line in (tmp_path / "kept" / "samples.jsonl").read_text().splitlines()]
    drawn = [row["samples"][0] for row in rows if row["draw"] == "sample"]
    assert [sample["is_correct"] for sample in drawn] == [sample["score"] == 1 for sample in drawn]
    assert 0 < found["score"] < 1 and found["score"] == pytest.approx(sum(each["score"] for each in drawn) / 5)
    assert found["accuracy"] == sum(each["is_correct"] for each in drawn) / 5 < found["score"]
    assert found["score_interval"][0] <= found["score"] <= found["score_interval"][1]
    assert found["source"] == f"webshop test ({SOURCE})"
    assert f"score, T = 0.6 │ {found['score']:.3f} [" in shown and "score, greedy" in shown and "generated" in shown


@pytest.mark.slow
def test_the_example_shops_with_nothing_but_the_package() -> None:
    done = run_script(Path(__file__).parents[2] / "examples" / "shop_webshop.py", "7")
    assert done.returncode == 0 and done.stdout.startswith(f"{SOURCE}\nFind me "), done
    assert "\n> search[" in done.stdout and "\nscore " in done.stdout and "\nr_type " in done.stdout
