"""`--dry-run` ends with what keeps a run from starting, and an environment's own tasks are counted where that is quick."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from typer.testing import CliRunner

from skill_ttrl.cli.main import app
from skill_ttrl.config import load_config
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.stages.doctor.dry_run import DryRun, PhaseSize, dry_run
from skill_ttrl.stages.train import run

HOUSE = """
import gymnasium
from skill_ttrl.envs.text_env import TextEnv
from skill_ttrl.types import Task


class House(TextEnv):
    '''A door.'''

    def __init__(self, slow: bool = False) -> None:
        super().__init__()

    @classmethod
    def prepare(cls, progress, slow: bool = False) -> None:
        if slow:
            progress(1, 9000)
            raise AssertionError("went on")

    def tasks(self, split=None):
        count = {"train": 6, "test": 4}[split or "train"]
        return [Task(f"{split}-{n}", "House-v0", options={"question": f"{split} {n}"}, split=split) for n in range(count)]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "A door.", {"won": False}

    def step(self, action):
        return "Open.", 1.0, True, False, {"won": True}


gymnasium.register("House-v0", entry_point=House)
"""
ROOM = ["model.builtin.max_positions=2048", "data.max_prompt_tokens=600"]
OWN = ["data.train=null", "data.eval=null", "env.id=preflight_house:House-v0"]


@pytest.fixture(autouse=True)
def _without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "preflight_house.py").write_text(HOUSE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    gymnasium.registry.pop("House-v0", None)
    sys.modules.pop("preflight_house", None)


def planned(path: Path, *overrides: str) -> DryRun:
    return dry_run(load_config(path, overrides))


@pytest.mark.usefixtures("house")
def test_tasks_of_an_environment_are_counted_where_that_is_quick(tiny_yaml: Path) -> None:
    found = planned(tiny_yaml, *OWN)
    assert found.exit_code == 0, found.obstacles
    assert (found.train_tasks, found.phases[-1]) == (6, PhaseSize("evaluate", prompts=4, samples=12))
    few = planned(tiny_yaml, *OWN, "rl.prompts_per_step=7")
    assert few.exit_code == 2 and "there are only 6 training tasks" in few.obstacles[0]


@pytest.mark.usefixtures("house")
def test_where_counting_takes_long_that_is_said_and_not_done(tiny_yaml: Path) -> None:
    slow = [*OWN, "env.kwargs.slow=true"]
    found = planned(tiny_yaml, *slow)
    assert found.exit_code == 0 and found.phases[-1] == PhaseSize("evaluate") and found.train_tasks is None
    assert any("in the split test is not known: 9,000 tasks would have to be" in text for text in found.notes)
    said = planned(tiny_yaml, *slow, "env.train_tasks=5", "env.eval_tasks=3")
    assert not any("not known" in text for text in said.notes)


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (["env={id: alfworld, kwargs: {data: ./none}}", "data.train=null", "data.eval=null"], 3, "no games in none"),
        (["data.eval={path: 'synthetic:add', split: train, limit: 4}"], 3, "tasks of data.eval are also in data.train"),
        (["data.eval={path: 'synthetic:add', split: demos, limit: 4}"], 3, "are also in sft.data"),
        (["sft.data=null"], 2, "needs something to imitate"),
        (["requires=the moon"], 2, "requires the moon"),
        (
            ["skills={embedder: hash, index: memory, merger: openai}", "endpoints.merger.model=m", *ROOM],
            2,
            "OPENAI_API_KEY is not set",
        ),
        (["skills={bank: ./none, embedder: hash, index: memory}"], 4, "there is nothing at none"),
    ],
)
def test_a_dry_run_ends_with_what_a_run_is_refused_for(
    overrides: list[str], code: int, words: str, tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = planned(tiny_yaml, *overrides)
    assert found.exit_code == code and words in found.obstacles[0]
    with pytest.raises(SkillTTRLError) as refused:
        run(load_config(tiny_yaml, overrides), tmp_path / "run")
    assert refused.value.exit_code == code and str(refused.value).rstrip(".") == found.obstacles[0]


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [("env.id=no_such_module:House-v0", 3, "no such module"), ("rl.loss=ppo_clp", 2, "Did you mean 'ppo_clip'")],
)
def test_a_dry_run_stops_at_a_wrong_name_as_a_run_does(
    wrong: str, code: int, words: str, tiny_yaml: Path, tmp_path: Path
) -> None:
    for attempt in (lambda: planned(tiny_yaml, wrong), lambda: run(load_config(tiny_yaml, [wrong]), tmp_path / "run")):
        with pytest.raises(SkillTTRLError, match=words) as refused:
            attempt()
        assert refused.value.exit_code == code


def test_too_little_memory_is_a_refusal(tiny_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skill_ttrl.stages.doctor.memory.device_memory", lambda device: 1_000_000)
    found = planned(tiny_yaml)
    assert found.exit_code == 5 and "GB at its peak" in found.obstacles[0]


def test_prompts_that_the_model_has_no_positions_for_are_a_refusal(tiny_yaml: Path) -> None:
    found = planned(tiny_yaml, "data.max_prompt_tokens=60")
    assert found.exit_code == 2 and "70 tokens" in found.obstacles[0]


def test_a_package_that_is_missing_is_a_refusal(tiny_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else find(name, *rest))
    found = planned(tiny_yaml, "rollout.backend=vllm")
    assert found.exit_code == 5 and "needs vLLM" in found.obstacles[0]


def test_every_refusal_is_printed_with_the_sizes(tiny_yaml: Path) -> None:
    asked = ["requires=the moon", "rl.prompts_per_step=7"]
    done = CliRunner().invoke(
        app, ["train", str(tiny_yaml), "--dry-run", *(w for each in asked for w in ("--set", each))]
    )
    shown = " ".join(done.output.split())
    assert done.exit_code == 2 and "rl 2 7 " in shown
    assert all(f"It would not start: {part}" in shown for part in ("The config", "rl.prompts_per_step is 7"))


def test_the_sizes_of_each_phase_are_stated() -> None:
    found = dry_run(load_config("quickstart"))
    assert (found.train_tasks, found.evaluated_tasks, found.exit_code) == (256, 128, 0)
    assert found.phases[:2] == [PhaseSize("sft", 500, 64, 32_000), PhaseSize("rl", 20, 32, 20_480)]
    assert 0.2e6 < found.parameters < 0.3e6 and 0 < found.peak < found.available


def test_a_run_is_refused_before_it_collects(tmp_path: Path) -> None:
    wrong = ["agent.observations=webshop", "agent.action_order=words", "collect.episodes=40"]
    config = load_config("quickstart_webshop", wrong)
    found = dry_run(config)
    assert found.exit_code == 2
    with pytest.raises(SkillTTRLError) as refused:
        run(config, tmp_path / "run")
    assert str(refused.value).rstrip(".") == found.obstacles[0] and not (tmp_path / "run").exists()
