"""A real Ray cluster of three nodes on this machine: same bytes as one process, whoever dies; and refusals before anything runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.commands.collect import run, run_policy
from skill_ttrl.config import ScaleConfig, SkillTTRLConfig, load_config
from skill_ttrl.errors import WorkerError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.signals import Interrupted
from skill_ttrl.train.tasks import TaskSelection
from tests.doors import DOORS
from tests.integration.test_cli_commands import refused, skillttrl
from tests.integration.test_collect_command import TINY
from tests.integration.test_imitation import CONFIG as EPISODES
from tests.integration.test_imitation import RUN as DAGGER
from tests.integration.test_rl_runs import REPEATABLE
from tests.mortal import LOCK, MARKS, MORTAL

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


class Heard(SilentProgress):
    """Remembers warnings, and acts once at so many episodes, or steps of a phase."""

    def __init__(self, at: int = -1, act: Callable[[], object] = lambda: None, phase: str | None = None) -> None:
        self.notices: list[str] = []
        self.done: list[int] = []
        self._at, self._act, self._phase = at, act, phase

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        self.done.append(done)
        if done == self._at and self._phase in (None, phase):
            self._act()

    def notice(self, text: str, *, warning: bool = False) -> None:
        if warning:
            self.notices.append(text)


def collected(path: Path, env: str = DOORS, **words: Any) -> bytes:
    kwargs = words.pop("kwargs", {})
    run(TaskSelection(env, kwargs=kwargs, rollouts_per_task=words.pop("rollouts", 1)), output=path, seed=4, **words)
    return path.read_bytes()


def test_a_scripted_agent_writes_the_same_bytes(tmp_path: Path, scale: ScaleConfig) -> None:
    here = collected(tmp_path / "here.jsonl", agent="random", rollouts=3, jobs=1)
    heard = Heard()
    assert collected(tmp_path / "there.jsonl", agent="random", rollouts=3, scale=scale, progress=heard) == here
    assert heard.done == list(range(1, 91))
    run(TaskSelection(DOORS, "test"), agent="tests.doors:Quitter", scale=scale, progress=heard)
    assert not heard.notices  # what leaves Python is an episode's failure, and no worker's death


def test_a_node_that_dies_loses_no_episode_and_doubles_none(tmp_path: Path, cluster: Any, scale: ScaleConfig) -> None:
    kwargs = {"pause": 0.1}
    here = collected(tmp_path / "here.jsonl", agent="random", rollouts=2, jobs=2, kwargs=kwargs)
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    heard = Heard(12, lambda: cluster.remove_node(doomed, allow_graceful=False))
    found = collected(tmp_path / "there.jsonl", agent="random", rollouts=2, scale=scale, progress=heard, kwargs=kwargs)
    assert found == here and found.count(b"\n") == 60 and heard.done == list(range(1, 61))
    assert any(" died: " in text and "is repeated" in text for text in heard.notices), heard.notices


@pytest.mark.parametrize(("agent", "dies"), [("tests.mortal:MortalOpener", False), ("tests.doors:Opener", True)])
def test_a_worker_that_dies_loses_no_episode(
    tmp_path: Path, scale: ScaleConfig, marks: Path, agent: str, dies: bool
) -> None:
    """Its process ends in the middle of an episode: in the agent, and in the environment."""
    for name in ("player", "env"):
        (marks / name).touch()  # whoever would die has died already
    kwargs = {"dies": dies}
    here = collected(tmp_path / "here.jsonl", MORTAL, agent=agent, jobs=1, kwargs=kwargs)
    for mark in marks.iterdir():
        mark.unlink()
    heard = Heard()
    assert collected(tmp_path / "there.jsonl", MORTAL, agent=agent, scale=scale, progress=heard, kwargs=kwargs) == here
    assert [mark.name for mark in marks.iterdir()] == ["env" if dies else "player"]
    assert [text for text in heard.notices if "died: its worker process has died. Part " in text]


def test_a_worker_that_always_dies_is_given_up_and_what_was_played_is_kept(tmp_path: Path, scale: ScaleConfig) -> None:
    with pytest.raises(WorkerError, match=r"ended its worker 4 times in a row, .* its worker process has died"):
        collected(tmp_path / "out.jsonl", agent="tests.doors:Deadly", scale=scale)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(TINY))
    return path


def on(scale: ScaleConfig) -> list[str]:
    return [f"scale.address={scale.address}"]


def test_a_policy_plays_the_same_episodes(tmp_path: Path, scale: ScaleConfig, recipe: Path) -> None:
    """`hf` on a CPU, sampled at temperature 1, in 5 chunks; the second run of it begins within the second chunk."""
    where, there = TaskSelection(DOORS, episodes=38, rollouts_per_task=2), tmp_path / "there.jsonl"
    how: dict[str, Any] = {"config": str(recipe), "chunk": 8, "seed": 1}
    found = run_policy("builtin", where, **how, output=tmp_path / "here.jsonl")
    heard = Heard()
    shared = run_policy("builtin", where, **how, output=there, overrides=on(scale), progress=heard)
    here = (tmp_path / "here.jsonl").read_bytes()
    assert there.read_bytes() == here and shared.tokens == found.tokens and heard.done[-1] == 38
    there.write_bytes(b"".join(here.splitlines(keepends=True)[:11]))
    run_policy("builtin", where, **how, output=there, overrides=on(scale))
    assert there.read_bytes() == here


def test_an_evaluation_and_a_vote_of_a_run_with_skills_have_the_same_samples(
    tmp_path: Path, scale: ScaleConfig, tiny_skills_yaml: Path
) -> None:
    trained = tmp_path / "run"
    assert skillttrl("train", tiny_skills_yaml, "-o", trained).code == 0
    for command in (["evaluate", trained, "-n", 2], ["vote", "--policy", trained, "-n", 4]):
        written = []
        for name, more in (("here", []), ("there", on(scale))):
            out = tmp_path / str(command[0]) / name
            done = skillttrl(
                *command, "--batch-size", 2, "-o", out, *(word for each in more for word in ("--set", each))
            )
            assert done.code == 0, done
            written.append({path.name: path.read_bytes() for path in out.iterdir() if path.name in SAMPLED})
        assert written[0] == written[1] and "samples.jsonl" in written[0]


SAMPLED = ("samples.jsonl", "evaluation.json", "votes.jsonl")


def test_a_node_without_the_data_is_named_before_anything_runs_and_left_out_where_it_joins_later(
    tmp_path: Path, cluster: Any, scale: ScaleConfig, marks: Path
) -> None:
    bare: list[Any] = []

    def join() -> None:
        (marks / LOCK).touch()  # nobody is done before the node has tried
        bare.append(cluster.add_node(num_cpus=1, env_vars={MARKS: ""}))

    class Unlocking(Heard):
        def notice(self, text: str, *, warning: bool = False) -> None:
            super().notice(text, warning=warning)
            if "is skipped" in text:
                (marks / LOCK).unlink()

    kwargs = {"needs": MARKS}
    here = collected(tmp_path / "here.jsonl", MORTAL, agent="random", jobs=2, kwargs=kwargs)
    heard = Unlocking(6, join)
    there = collected(tmp_path / "there.jsonl", MORTAL, agent="random", scale=scale, progress=heard, kwargs=kwargs)
    assert there == here
    assert any("cannot start and is skipped: The doors need data" in text for text in heard.notices), heard.notices
    with pytest.raises(
        WorkerError,
        match=r"(?s)Nothing was run[^:]*:\n  \S+ \([^)]*\): The doors need data\. Set \w+ to their folder\.$",
    ):
        collected(tmp_path / "out.jsonl", MORTAL, agent="random", scale=scale, kwargs=kwargs)
    cluster.remove_node(bare[0])
    assert not (tmp_path / "out.jsonl").exists()


def test_where_there_is_no_cluster_the_command_says_so(tmp_path: Path) -> None:
    where = ["--set", "scale.address=127.0.0.1:1"]
    nobody = skillttrl("collect", "--env", DOORS, "--policy", "random", "-o", tmp_path / "out.jsonl", *where)
    refused(nobody, 9, "Nothing answers at scale.address=127.0.0.1:1", "ray start --head", "scale.address=local")


ALONE = ["rollout.prompts_per_batch=1", "rl.steps=2"]


def content(run: Path) -> dict[str, bytes]:
    """Everything that a run wrote of its rollouts, votes, bank, measurements and weights."""
    names = ("metrics", "trajectories", "votes", "evaluations", "gate", "dagger", "bank/log")
    files = [run / f"{name}.jsonl" for name in names] + sorted(run.glob("checkpoints/*/model.safetensors"))
    return {str(path.relative_to(run)): path.read_bytes() for path in files if path.exists()}


def both(tmp_path: Path, config: Any, settings: Sequence[str], scale: ScaleConfig) -> Path:
    """Run it here and on the cluster, and see that there is no difference."""
    train.run(load_config(config, settings), tmp_path / "here")
    train.run(load_config(config, [*settings, *on(scale)]), tmp_path / "there")
    here, there = content(tmp_path / "here"), content(tmp_path / "there")
    assert here.keys() == there.keys()
    assert [name for name in here if here[name] != there[name]] == []
    return tmp_path / "there"


@pytest.mark.parametrize(
    "settings",
    [["rl.dynamic_sampling=2"], [*REPEATABLE, "rl.save_steps=2"]],
    ids=["rounds", "ahead"],
)
def test_a_run_on_answers_has_the_same_bytes(
    tmp_path: Path, tiny_yaml: Path, scale: ScaleConfig, settings: list[str]
) -> None:
    both(tmp_path, tiny_yaml, [*ALONE, *settings], scale)


@pytest.mark.parametrize(
    "settings",
    [
        ["skills.retrieval=hybrid"],
        ["skills.gate={data: {path: 'synthetic:operators', split: train}, tasks: 2, rollouts_per_task: 1}"],
    ],
    ids=["bank", "gate"],
)
def test_a_run_with_a_bank_has_the_same_bytes(
    tmp_path: Path, tiny_skills_yaml: Path, scale: ScaleConfig, settings: list[str]
) -> None:
    run = both(tmp_path, tiny_skills_yaml, [*ALONE, *settings], scale)
    assert (run / "bank").is_dir()


@pytest.mark.parametrize("config", [EPISODES, DAGGER], ids=["episodes", "dagger"])
def test_a_run_in_an_environment_has_the_same_bytes(tmp_path: Path, scale: ScaleConfig, config: Any) -> None:
    both(tmp_path, config, ["rollout.prompts_per_batch=2"], scale)


def test_a_node_that_dies_in_a_step_changes_nothing(tmp_path: Path, cluster: Any, scale: ScaleConfig) -> None:
    settings = ["rollout.prompts_per_batch=1", "rl.steps=14", "env.kwargs={pause: 0.1}"]
    train.run(load_config(EPISODES, settings), tmp_path / "here")
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    heard = Heard(10, lambda: cluster.remove_node(doomed, allow_graceful=False), "grpo")
    train.run(load_config(EPISODES, [*settings, *on(scale)]), tmp_path / "there", progress=heard)
    assert content(tmp_path / "here") == content(tmp_path / "there")
    assert any(" died: " in text for text in heard.notices), heard.notices


@pytest.mark.parametrize("resumed_there", [True, False])
def test_a_run_that_was_stopped_goes_on_anywhere(
    tmp_path: Path, tiny_yaml: Path, scale: ScaleConfig, resumed_there: bool
) -> None:
    """Stopped on the cluster after a step; gone on with there, or in one process."""
    settings = [*ALONE, "rl.steps=4"]
    train.run(load_config(tiny_yaml, settings), tmp_path / "here")
    shared = load_config(tiny_yaml, [*settings, *on(scale)])
    stopped = Heard(1, lambda: os.kill(os.getpid(), signal.SIGTERM), "grpo")
    with pytest.raises(Interrupted):
        train.run(shared, tmp_path / "there", progress=stopped)
    rest: SkillTTRLConfig = shared if resumed_there else load_config(tiny_yaml, settings)
    train.run(rest, tmp_path / "there", resume="auto")
    assert content(tmp_path / "here") == content(tmp_path / "there")
