"""Collecting episodes: by the command, and of a policy on its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands.collect import collect_into, run_policy
from skill_ttrl.commands.train import run
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.errors import DataError, RunFolderError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.episode_logs import read_identity
from skill_ttrl.train.tasks import TaskSelection
from skill_ttrl.types import Trajectory, from_json
from tests.doors import DOORS, opens
from tests.faulty_server import FaultyServer, at
from tests.integration.test_cli_commands import Done, refused, skillttrl

TINY: dict[str, Any] = {
    "name": "tiny",
    "env": {"id": DOORS},
    "agent": {"template": "plain", "max_turns": 3},
    "data": {"max_prompt_tokens": 400},
    "model": {"path": "builtin", "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 512}},
    "rollout": {"n_votes_per_prompt": 2, "n_samples_per_prompt": 2, "max_new_tokens": 4},
    "runtime": {"device": "cpu", "threads": 1},
}

PLAIN = ("agent.template=plain",)

TESTS, TRAINS = TaskSelection(DOORS, "test"), TaskSelection(DOORS)


def settings(server: FaultyServer, *more: str) -> list[str]:
    return [word for word in at(server, *PLAIN, *more) if word != "--set"]


def lines(path: Path) -> list[Trajectory]:
    return [from_json(Trajectory, line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(TINY))
    return path


def test_a_policys_episodes_are_kept_as_a_players_and_counted_by_type(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.jsonl"
    command = (
        "collect", "--env", DOORS, "--split", "test", "--policy", "openai:opener", "--rollouts-per-task", 2, "-o",
        out,
    )  # fmt: skip
    with FaultyServer(answer=opens, faults=()) as server:
        words = [*command, *at(server, *PLAIN, "endpoints.price_out=1000000")]
        done = skillttrl(*words)
        assert done.code == 0, done
        asked = len(server.asked)
        found = skillttrl(*words, "--json")
        assert len(server.asked) == asked and "episodes are in" in found.err
    played = lines(out)
    assert [each.task.id for each in played] == [f"test/{place}" for place in range(6) for _ in range(2)]
    assert [step.action for step in played[0].steps] == ["wait", "left"]
    assert all(step.completion is not None for each in played for step in each.steps)
    cells = ([cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "│" in line)
    rows = {first: rest for first, *rest in cells}
    assert rows["left"][:2] == ["6", "1.000 [0.439, 1.000]"] and rows["all"][0] == "12"
    assert rows["right"][0] == "6" and rows["right"][1].startswith("0.667 [")
    assert "12 episodes of 6 tasks" in done.out and "Source: joinery." in done.out and "generated tokens" in done.out
    assert "play 12/12" in done.err and "success 0.833" in done.err and "cost" in done.err and "tokens/s" in done.err
    assert found.json["overall"]["episodes"] == 12 and found.json["played"] == 0
    inspected = skillttrl("inspect", out, "--json").json["facts"]
    assert inspected["complete"] == "yes" and inspected["success"].startswith("0.833 [")


def test_cut_anywhere_it_ends_with_the_same_bytes(tmp_path: Path, recipe: Path) -> None:
    selection = TaskSelection(DOORS, episodes=17, rollouts_per_task=3)

    def collect(path: Path, **more: Any) -> int:
        found = run_policy("builtin", selection, config=str(recipe), chunk=6, output=path, **more)
        return found.played

    whole = tmp_path / "whole.jsonl"
    assert collect(whole) == 17 and len({each.task.id for each in lines(whole)}) == 6
    content = whole.read_bytes().splitlines(keepends=True)
    for kept, torn in ((12, b""), (8, b'{"task":{"id":"tra'), (16, content[16][:50])):
        cut = tmp_path / f"{kept}.jsonl"
        cut.write_bytes(b"".join(content[:kept]) + torn)
        (tmp_path / f"{kept}.jsonl.json").write_bytes((tmp_path / "whole.jsonl.json").read_bytes())
        assert collect(cut) == 17 - kept
        assert cut.read_bytes() == whole.read_bytes()
    assert collect(tmp_path / "other.jsonl", seed=1) == 17
    assert (tmp_path / "other.jsonl").read_bytes() != whole.read_bytes()
    for change in ({"overrides": ["rollout.temperature=0.4"]}, {"seed": 1}, {"overrides": ["seed=1"]}):
        with pytest.raises(RunFolderError, match=r"temperature 1\.0 there, 0\.4 here|seed"):
            collect(whole, **change)


SKILLS = {**TINY, "skills": {"bank": "bank.json", "embedder": "hash", "prompt_top_k": 1, "max_retrievals": 0}}


def test_the_skills_of_its_bank_stand_in_its_prompts_unless_they_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bank = {
        "general_skills": [
            {"skill_id": "g1", "title": "Knock", "principle": "Open the door that is named.", "when_to_apply": "a"}
        ]
    }
    (tmp_path / "bank.json").write_text(json.dumps({**bank, "task_specific_skills": {}, "common_mistakes": []}))
    (tmp_path / "skilled.yaml").write_text(json.dumps(SKILLS))
    where: dict[str, Any] = {"selection": TaskSelection(DOORS, "test", episodes=2), "config": "skilled.yaml"}
    with FaultyServer(answer=opens, faults=()) as server:
        overrides = [word for word in at(server) if word != "--set"]
        run_policy("openai:opener", overrides=overrides, output=tmp_path / "with.jsonl", **where)
        run_policy("openai:opener", overrides=overrides, output=tmp_path / "without.jsonl", use_bank=False, **where)
    assert {each.skills_in_prompt != () for each in lines(tmp_path / "with.jsonl")} == {True}
    assert {each.skills_in_prompt for each in lines(tmp_path / "without.jsonl")} == {()}
    made_with = read_identity(tmp_path / "with.jsonl")["made_with"]["policy"]
    assert made_with["skill_bank"] and made_with["model"] == "openai:opener"


def phase(**changes: Any) -> SkillTTRLConfig:
    return load_config({**TINY, "seed": 3, **changes})


def test_the_phase_collect_of_a_run_plays_tasks_that_it_trains_on(tmp_path: Path) -> None:
    """Of ten training tasks, six episodes; the same file when it is called again."""
    out = tmp_path / "collected.jsonl"
    asked = {"agent": "tests.doors:Opener", "episodes": 6, "epsilon": 0.25}
    config = phase(env={"id": DOORS, "train_tasks": 10}, collect=asked)
    found = collect_into(out, config, SilentProgress())
    assert found.played == 6 and found.seed == 3 and found.explore == 0.25
    played = lines(out)
    trained = {f"train/{place}" for place in (0, 1, 6, 7, 12, 13, 18, 19, 24, 25)}
    assert {each.task.id for each in played} < trained and len({each.task.task_type for each in played}) == 2
    assert all("expert_action" in step.info for each in played for step in each.steps)
    before = out.read_bytes()
    assert collect_into(out, config, SilentProgress()).played == 0 and out.read_bytes() == before


ROOT = Path(__file__).parents[2]

COMMAND = (
    "collect", "--env", DOORS, "--policy", "random", "--rollouts-per-task", "10", "--set", "env.kwargs.pause=0.003",
)  # fmt: skip

EPISODES = 300
"""Of the command above: more than a second of playing."""


def collecting(output: Path, *more: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    code = "from skill_ttrl.cli.main import main; main()"
    command = [sys.executable, "-c", code, *COMMAND, "-o", str(output), *more]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_lines(path: Path, process: subprocess.Popen[str]) -> int:
    """Until the process has written some."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        if path.is_file() and (lines := path.read_bytes().count(b"\n")):
            return lines
        time.sleep(0.01)
    raise AssertionError("nothing was written in a minute")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the command writes when nothing stops it."""
    file = tmp_path_factory.mktemp("whole") / "out.jsonl"
    done = skillttrl(*COMMAND, "--num-workers", 1, "-o", file)
    assert done.code == 0, done
    assert file.read_bytes().count(b"\n") == EPISODES
    return file.read_bytes()


@pytest.mark.slow
def test_stopped_anywhere_and_called_again_it_ends_with_the_same_bytes(tmp_path: Path, whole: bytes) -> None:
    file = tmp_path / "out.jsonl"
    process = collecting(file, "--num-workers", "2")
    there = wait_for_lines(file, process)
    process.kill()
    process.communicate(timeout=20)
    kept = file.read_bytes()
    assert process.returncode == -signal.SIGKILL
    assert there <= kept.count(b"\n") < EPISODES and whole.startswith(kept)
    with file.open("ab") as stream:
        stream.write(b'{"task":{"id":"train')
    done = skillttrl(*COMMAND, "--num-workers", 2, "-o", file)
    assert done.code == 0, done
    assert f"Continuing after {kept.count(bytes([10]))} of {EPISODES} episodes" in done.err.replace("\n", " ")
    assert file.read_bytes() == whole
    again = skillttrl(*COMMAND, "-o", file)
    assert again.code == 0 and "episodes are in" in again.err


def test_success_is_shown_by_type_with_intervals_and_the_source_is_named(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    command = ("collect", "--env", DOORS, "--policy", "tests.doors:Clumsy", "-o", file)
    done = skillttrl(*command)
    assert done.code == 0, done
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "│" in line]
    rows = {name: cells for name, *cells in lines}
    assert next(iter(rows)) == "all" and rows["all"][0] == "30" and rows["all"][1].startswith("0.900 [")
    assert rows["left"] == ["15", "1.000 [0.796, 1.000]", "2.0", "0"]
    assert rows["right"] == ["15", "0.800 [0.548, 0.930]", "1.0", "3"]
    assert "Source: joinery." in done.out and "3 episodes failed" in done.out and "dropped the key" in done.out
    found = skillttrl(*command, "--json").json
    assert found["overall"]["success"] == 0.9 and found["by_type"]["right"]["failed"] == 3
    assert found["source"] == "joinery" and found["played"] == 0 and found["output"] == str(file)
    assert all(from_json(Trajectory, line).task.split == "train" for line in file.read_bytes().splitlines())


def test_bad_input_is_one_clear_message(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"

    def collect(*words: object, env: str = DOORS, output: Path = out) -> Done:
        return skillttrl("collect", "--env", env, "-o", output, *words)

    refused(collect("--policy", "exprt"), 2, "There is no policy 'exprt'", "Did you mean 'expert'?")
    refused(collect(), 3, "no agent 'expert'")
    refused(collect("--policy", "random", "--types", "up,left"), 3, "no tasks of type 'up'", "left, right")
    refused(collect("--policy", "random", "--set", "rl.steps=3"), 2, "has no effect")
    remote = ("--policy", "openai:m", "--set", "data.train.path=mine.jsonl")
    refused(collect(*remote), 2, "whose own tasks are played")
    refused(collect("--policy", "random", output=tmp_path), 4, "name an ordinary file")
    refused(collect("--policy", "random", "--limit", 3, env="math"), 3, "All 3 episodes failed", "admissible_commands")
    refused(collect("--policy", "tests.doors:Wordless"), 3, "episodes failed", "action must be a str, found int")
    for option in ("--limit", "--rollouts-per-task", "--num-workers"):
        assert collect("--policy", "random", option, 0).code == 2
    assert list(tmp_path.iterdir()) == []


HOUSES = ("collect", "--env", "alfworld", "--mock", "--limit", "4")


def test_episodes_are_collected_into_an_array_and_read_from_it(tmp_path: Path) -> None:
    array = tmp_path / "trajectories.json"
    done = skillttrl(*HOUSES, "-o", str(array), "--json")
    assert done.code == 0 and json.loads(done.out)["output"] == str(array)
    assert json.loads(done.out)["source"] == "alfworld-generated"
    items, lines = json.loads(array.read_text()), (tmp_path / "trajectories.jsonl").read_text().splitlines()
    assert items == [json.loads(line) for line in lines] and len(items) == 4
    assert [*read_episodes(array)] == [*read_episodes(tmp_path / "trajectories.jsonl")]
    assert read_identity(array)["made_with"]["episodes"] == 4
    again = skillttrl(*HOUSES, "-o", str(array))
    assert again.code == 0 and "episodes are in" in again.err and json.loads(array.read_text()) == items


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[]", "found an empty list"), ("{}", "found dict"), ("[", "is not JSON"), ("[{}]", "entry 1 cannot be read")],
)
def test_an_array_that_holds_no_episodes(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=problem):
        list(read_episodes(tmp_path / "a.json"))


def test_mock_and_data_are_one_choice(tmp_path: Path) -> None:
    both = skillttrl(*HOUSES, "--env-data", "official", "-o", tmp_path / "a.jsonl")
    refused(both, 2, "--mock means --env-data generated, but --env-data official is set too")
    done = skillttrl("train", "quickstart_alfworld", "--mock", "--dry-run", "--json")
    assert done.code == 0


def test_convert_prints_writes_and_names_keys(tmp_path: Path) -> None:
    (tmp_path / "default.yaml").write_text(
        "data: {train_files: [a.json]}\nskill_bank: {retrieval_mode: keyword}\ntrainer: {log_freq: 1}\n"
    )
    ours, theirs = str(tmp_path / "ours.yaml"), str(tmp_path / "default.yaml")
    printed = skillttrl("configs", theirs, "--convert")
    assert printed.code == 0 and "# No counterpart: trainer.log_freq. Every step is logged.\n" in printed.out
    done = skillttrl("configs", theirs, "--convert", "-o", ours)
    assert done.code == 0 and "No counterpart: trainer.log_freq." in done.out
    assert Path(ours).read_text() == printed.out
    found = json.loads(skillttrl("configs", theirs, "--convert", "--json").out)
    assert found["output"] is None and found["config"]["skills"]["retrieval"] == "keyword"
    assert [*found["without_counterpart"]] == ["trainer.log_freq"] and found["different"] == {}
    refused(skillttrl("configs", theirs, "--convert", "-o", ours), 4, "exists already")


TINY_GAMES = [
    "phases=[collect,sft]", "env.kwargs.data=generated", "collect.data=null", "collect.episodes=6", "sft.steps=2",
    "sft.save_steps=2", "sft.warmup_steps=1",
]  # fmt: skip

TINY_GAMES += ["env.eval_tasks=2", "eval.controls=[]", "runtime.threads=1"]


@pytest.mark.slow
def test_a_run_imitates_episodes_of_each_of_its_data(tmp_path: Path) -> None:
    run(load_config("webshop_official", [*TINY_GAMES, "collect.data=[generated,'generated:1500']"]), tmp_path / "run")
    own, further = ([*read_episodes(tmp_path / "run" / f"collected{end}.jsonl")] for end in ("", "-2"))
    assert len(own) == len(further) == 6
    assert {episode.task.split for episode in (*own, *further)} == {"train_both"}
    assert not {episode.task.id for episode in own} & {episode.task.id for episode in further}
    demonstrations = (tmp_path / "run" / "demonstrations.jsonl").read_text().splitlines()
    assert len(demonstrations) == 12
    file = tmp_path / "run" / "collected.jsonl"
    assert [*read_episodes([file, str(file)])] == [*own, *own]
    with pytest.raises(DataError, match=r"absent\.jsonl"):
        list(read_episodes([file, tmp_path / "absent.jsonl"]))
