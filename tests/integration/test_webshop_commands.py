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
from tests.integration.test_cli_commands import refused
from tests.integration.test_cli_commands import skillttrl as command
from tests.integration.test_openai_backend import at
from tests.integration.test_play_command import Terminal
from tests.integration.test_play_command import skillttrl as play_command
from tests.preloaded import run_script

PLAY = ("envs", "play", "webshop", "--env-data", "generated")
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
    assert "nothing is played" in again.err and f"Source: {SOURCE}." in again.out
    header = next(line for line in again.out.splitlines() if "task type" in line)
    columns = [word.strip() for word in header.strip("┃").split("┃")]
    assert columns == ["task type", "episodes", "score", "success", "steps", "failed"]
    assert max(map(len, again.out.splitlines()[1:-1])) <= 80
    inspected = command("inspect", file, "--json").json["facts"]
    assert f", score {overall['score']:.3f}, " in inspected["success"]


def test_a_partial_reward_of_any_size_gives_the_same_score(tmp_path: Path) -> None:
    words = ("evaluate", "random", "--env", "webshop", "--limit", 60, "--json")
    plain = command(*words).json["overall"]
    tenfold = command(*words, "--set", "env.kwargs.reward=10", "--set", "env.kwargs.partial=false").json["overall"]
    assert plain == tenfold and plain["episodes"] == 60


def test_the_oracle_reaches_what_can_be_reached_and_progress_tells_score_and_success() -> None:
    done = command("evaluate", "walkthrough", "--env", "webshop", "--limit", 20)
    assert done.code == 0 and "play 20/20" in done.err and "success 1.000  score 1.000" in done.err
    found = command(
        *("evaluate", "walkthrough", "--env", "webshop", "--limit", 5, "--json"),
        *("--set", "env.kwargs.split_by=product"),
    )
    assert found.json["overall"]["score"] == 1 and "goals by product" in found.json["source"]


def test_without_an_agent_the_expert_is_measured_and_the_rule_agent_by_its_name() -> None:
    expert = command("evaluate", "--env", "webshop", "--limit", 20, "--json").json
    rule = command("evaluate", "rule", "--env", "webshop", "--limit", 20, "--json").json
    assert expert["agent"] == "expert" and rule["agent"] == "rule"
    assert expert["overall"]["score"] > rule["overall"]["score"] > rule["overall"]["success"]


def test_what_is_collected_is_reported_with_its_score(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = ("collect", "--env", "webshop", "--policy", "random", "--split", "dev", "--types", "garden")
    done = command(*words, "--limit", 7, "-o", out, "--json")
    assert done.code == 0 and done.json["overall"]["episodes"] == 7 and done.json["overall"]["score"] is not None
    assert {line.task.task_type for line in kept(out)} == {"garden"}


def test_a_split_a_type_or_data_that_is_not_there_is_one_clear_message(tmp_path: Path) -> None:
    def evaluate(*words: object) -> Any:
        return command("evaluate", "random", "--env", "webshop", *words)

    refused(evaluate("--split", "tset"), 3, "WebShop has no split 'tset'", "dev, test, train")
    refused(evaluate("--split", "validation"), 3, "is 'dev'")
    refused(evaluate("--set", "env.kwargs.split_by=day"), 3, "by goal or by product")
    refused(evaluate("--env-data", tmp_path), 3, str(tmp_path))
    refused(
        command("collect", "--env", "webshop", "--policy", "random", "--types", "fashon", "-o", tmp_path / "o"),
        3,
        "Did you mean 'fashion'?",
    )


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


def shopping(*words: object, typed: str = "") -> tuple[int, str, str]:
    return play_command(*PLAY, *words, typed=typed)


def test_a_person_shops_with_words_names_and_numbers() -> None:
    code, out, err = shopping("--split", "test", "--seed", 1, typed="lipstick\nno such thing\n1\nlipstick\n3\n")
    assert code == 0 and "[1/15] > search[lipstick]\n" in out, err
    assert "[2/15] > click[back to search]\n" in out, "what means nothing is told and costs no step"
    assert "Nothing here is called so." in out
    opened = re.search(r"\[4/15\] > click\[(\w+)\]\n", out)
    assert opened and f"  3 {opened[1].upper()}  $" in out and "  6 Buy Now" in out
    assert out.count("\nInstruction: Find me") == 5, "it stands on every page"
    assert "No products here: other words, or a page before this one.\n" in shopping(typed="qqzx\n")[1]
    first, again = (
        out.splitlines()[0],
        re.search(r"\nThe same goal again: --split test --task (\S+)\nLeft after 4 ", out),
    )
    assert again and "Nothing was bought: score 0.\n" in out
    assert first.startswith("SkillTTRL/WebShop-v0: goal ") and again[1] not in first, "the id names the product"
    assert shopping("--split", "test", "--task", again[1])[1].splitlines()[0] == first


def test_a_page_shows_results_as_a_list_options_in_groups_and_what_is_chosen(goals: list[Any]) -> None:
    goal = goals[0]
    code, out, _ = shopping("--task", goal.id, "--walkthrough")
    assert code == 0 and " [SEP] " not in out and f"goal 0 ({goal.category}, {SOURCE})" in out
    last = out.split("click[buy now]")[0].rpartition("\n[")[0].rpartition("\n[")[2]
    for name, value in goal.options.items():
        group = re.search(rf"\n\n{re.escape(name)}:\n((?: +\d+ .*\n)+)\n", last)
        assert group and f" {value} (chosen)" in group[1], last
    ending = out.partition("[5/15] > click[buy now]\n")[2].splitlines()
    assert ending[0] == "Thank you for shopping with us!"
    assert ending[1] == f"Bought: {goal.asin}, options {json.dumps(dict(sorted(goal.options.items())))}"
    assert ending[2] == "Score 1.000 of 1 = kind × (attributes + options + price)"
    assert [line.split()[0] for line in ending[3:7]] == ["kind", "attributes", "options", "price"]
    assert ending[7] == f"The same goal again: --split test --task {goal.id}"
    assert ending[8] == f"Won after 5 steps, reward 1 ({SOURCE})."


def test_only_what_a_shop_takes_reaches_it() -> None:
    """Numbers, names and bare words are the screen's; the trajectory has the environment's own actions and observations."""
    typed = "search[red lipstick]\nNEXT >\n1\n search red\nclick[nothing]\n"
    code, out, _ = shopping("--seed", 2, "--json", typed=typed)
    played = from_json(Trajectory, out)
    assert code == 0 and [step.action for step in played.steps] == [
        "search[red lipstick]",
        "click[next >]",
        "click[back to search]",
        "search[search red]",
        "click[nothing]",
    ]
    assert played.steps[1].observation.startswith("Instruction: [SEP] ") and played.env_return == 0


def test_the_slot_for_a_search_is_no_search() -> None:
    code, out, _ = shopping("--seed", 2, typed="1\nsearch[<your query>]\nquit\n")
    assert code == 0 and out.count("Type the words that are to be searched for.") == 2 and "Left after 0 steps" in out


@pytest.mark.parametrize(
    ("words", "starts"),
    [(("--types", "garden", "--seed", 4), "(garden, "), (("--split", "dev", "--seed", 4), "generated")],
)
def test_goals_are_drawn_by_category_and_split(words: tuple[object, ...], starts: str) -> None:
    first = shopping(*words)[1].splitlines()[0]
    assert starts in first and first == shopping(*words)[1].splitlines()[0]


def test_any_goal_is_found_by_its_id_whatever_its_split(goals: list[Any]) -> None:
    with closing(make_env("webshop", data="generated", split="test")) as env:
        every: list[Any] = [env.unwrapped.goals[number] for number in range(len(env.unwrapped.goals))]  # type: ignore[attr-defined]
    ids = {goal.id for goal in every}
    begun = next(goal.id for goal in goals if f"{goal.id}0" in ids)  # the beginning of others
    for name in (goals[1].id, every[600].id, every[1600].id, begun):
        assert shopping("--task", name)[1].splitlines()[-2].endswith(f" --task {name}")
    code, _, err = shopping("--task", goals[0].asin)
    assert code == 3 and f"tasks have {goals[0].asin!r} in the id" in err
    code, _, err = shopping("--task", "nothing")
    assert code == 3 and "has 'nothing' in the id" in err


@pytest.mark.parametrize("mode", ["text_rich", "url"])
def test_other_observations_are_shown_as_they_are(mode: str) -> None:
    code, out, _ = shopping("--seed", 2, "--set", f"env.kwargs.observation_mode={mode}", typed="lipstick\n")
    assert code == 0 and "[1/15] > search[lipstick]" in out
    assert ("[button] Next > [button_]" in out) if mode == "text_rich" else ("search_results" in out)


@pytest.mark.parametrize("agent", ["random", "rule", "expert"])
def test_somebody_else_is_watched(agent: str) -> None:
    code, out, _ = shopping("--policy", agent, "--seed", 3, "--set", "env.kwargs.max_steps=2")
    assert code == 0 and "[2/2] > " in out and "Not won after 2 steps" in out


def test_at_a_terminal_tab_completes_what_can_be_clicked(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "--seed", "1", game=PLAY)
    try:
        told = terminal.wait_for("[1/15] > ")
        assert "Type words to search for" in told and "Instruction: " in told
        terminal.type("lipstick\n")
        terminal.wait_for("[2/15] > ")
        terminal.type("click[ba\t")
        terminal.wait_for("click[back to search]")
        terminal.type("\n")
        terminal.wait_for("[3/15] > ")
        terminal.type("lipstick\n")
        terminal.wait_for("[4/15] > ")
        terminal.type("nex\t\n")
        assert "Page 2 (Total results: " in terminal.wait_for("[5/15] > ")
        assert terminal.leave("\x04") == 0 and "Left after 4 steps" in terminal.shown
    finally:
        terminal.close()


def test_the_example_shops_with_nothing_but_the_package() -> None:
    done = run_script(Path(__file__).parents[2] / "examples" / "shop_webshop.py", "7")
    assert done.returncode == 0 and done.stdout.startswith(f"{SOURCE}\nFind me "), done
    assert "\n> search[" in done.stdout and "\nscore " in done.stdout and "\nr_type " in done.stdout
