"""One bad value: a run says what it met and where, and goes on, or ends with an exit code of its own and everything saved."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.main import main
from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.errors import TrainingError
from skill_ttrl.runs.checkpoint import list_checkpoints
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.train import state
from skill_ttrl.types import Trajectory, from_json

OWN = """
import torch

from skill_ttrl.config import Section


class Nan:
    options_type = Section

    def __init__(self, options):
        pass

    def __call__(self, inputs):
        return inputs.log_probs * float("nan"), {}


class NanGradient(Nan):
    # 0 everywhere, and so is what the square root is taken of: its derivative there is infinite.
    def __call__(self, inputs):
        return (inputs.log_probs - inputs.log_probs.detach()).abs().sqrt(), {}


class Broken(Nan):
    def __call__(self, inputs):
        raise IndexError("no such token")


class OneNumber(Nan):
    def __call__(self, inputs):
        return -(inputs.log_probs * inputs.advantages).mean(), {}



class NanAdvantages(Nan):
    def advantages(self, samples):
        return [float("nan") if place == 1 else 1.0 for place, _ in enumerate(samples.trajectories)]


class TooFew(Nan):
    def advantages(self, samples):
        return [1.0]

"""


ENV = '''
import sys
import gymnasium
from skill_ttrl.envs import TextEnv
from skill_ttrl.types import Task


class Bad(TextEnv):
    """Fails at some of its tasks, each in another way."""

    def tasks(self, split=None):
        numbers = range(6) if split == "train" else range(10, 13)
        return [Task(str(number), "Bad-v0", {"number": number}, split=split) for number in numbers]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = (options or {"number": 0})["number"]
        if self.number == 3:
            sys.exit()
        return "half \\ud800", {"word": "\\udfff"}

    def step(self, action):
        if self.number == 4:
            raise RuntimeError("stuck")
        reward = {2: "1.0", 5: 1e300}.get(self.number, float(len(action)))
        return "\\ud800", reward, True, False, {"answer": "\\ud800", "graded": True}

    def close(self):
        sys.exit("no way out")


gymnasium.register("Bad-v0", Bad)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_bad_values.py").write_text(OWN)
    (tmp_path / "own_bad_env.py").write_text(ENV)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_bad_values"


@pytest.fixture(scope="module")
def base(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to start from: the checkpoint of a cold start."""
    path = tmp_path_factory.mktemp("base") / "run"
    train.run(load_config(tiny_yaml, ["phases=[sft]"]), path)
    return path / "checkpoints" / "sft-000012"


def settings(base: Path, *more: str) -> list[str]:
    return ["phases=[rl]", f"model.path={base}", "rl.reward=random", *more]


def test_a_run_whose_updates_are_all_left_out_fails_and_says_so(
    base: Path, own: str, tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_SKIPPED", 2)
    given = settings(base, f"rl.loss={own}:Nan", "rl.steps=3")
    words = "The last 2 updates of the phase rl were skipped"
    with pytest.raises(TrainingError, match=words) as caught:
        train.run(load_config(tiny_yaml, given), tmp_path / "run")
    assert caught.value.exit_code == 8
    summary = read_summary(tmp_path / "run")
    assert summary.stopped == str(caught.value) and summary.steps == {"rl": 2} and summary.accuracy_after is None
    assert len([text for text in summary.warnings if "first in step 0 of rl" in text]) == 1
    monkeypatch.setattr(state, "MAX_SKIPPED", 20)
    with pytest.raises(TrainingError, match="All updates of the phase rl were skipped"):
        train.run(load_config(tiny_yaml, given), tmp_path / "run", resume="auto")
    with RunFolder.open(tmp_path / "run") as folder:
        assert [checkpoint.step for checkpoint in list_checkpoints(folder)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("key", "reason", "skipped"),
    [
        ("rl.loss={own}:NanGradient", r"the loss is 0, the norm of its gradient (nan|inf)\.", 2),
        ("rl.algorithm={own}:NanAdvantages", "the loss is nan; not finite before it: advantages_F at", 1),
    ],
)
def test_an_update_that_is_skipped_is_explained(
    base: Path, own: str, tiny_yaml: Path, tmp_path: Path, key: str, reason: str, skipped: int
) -> None:
    given = settings(base, key.format(own=own), "rl.steps=1", "rl.mini_batch_size=1", "rl.prompts_per_step=2")
    with suppress(TrainingError):  # all updates were skipped
        train.run(load_config(tiny_yaml, given), tmp_path / "run")
    assert any(re.search(f"first in step 0 of rl: {reason}", text) for text in read_summary(tmp_path / "run").warnings)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert row["skipped_updates"] == skipped and row["updates"] == 2 - skipped


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rl.loss={own}:Broken", "IndexError: no such token"),
        ("rl.loss={own}:OneNumber", "a loss of shape ()"),
        ("rl.algorithm={own}:TooFew", "ValueError"),
    ],
)
def test_a_function_of_the_users_that_raises_is_one_line_and_an_exit_code(
    base: Path, own: str, tiny_yaml: Path, tmp_path: Path, capsys: Any, monkeypatch: Any, key: str, words: str
) -> None:
    given = [word for each in settings(base, key.format(own=own)) for word in ("--set", each)]
    monkeypatch.setattr(sys, "argv", ["skillttrl", "train", str(tiny_yaml), "-o", str(tmp_path / "run"), *given])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert left.value.code == 2 and words.format(own=own) in said.err and "Traceback" not in said.err + said.out


def test_what_an_environment_gets_wrong_is_on_its_trajectories_and_the_run_goes_on(
    base: Path, own: str, tiny_yaml: Path, tmp_path: Path
) -> None:
    env = ["env={id: 'own_bad_env:Bad-v0', eval_split: test}", "data.train=null", "data.eval=null"]
    config = load_config(tiny_yaml, settings(base, *env, "rl.reward=env", "rl.steps=2", "eval.greedy=false"))
    said = "Bad could not be closed: SystemExit: no way out"
    with pytest.warns(UserWarning, match=said):
        train.run(config, tmp_path / "run")
    with pytest.warns(UserWarning, match=said):
        again = train.run(config, tmp_path / "run", resume="auto")
    assert again.accuracy_after is not None
    lines = [from_json(Trajectory, line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    assert {line.task.id: line.error for line in lines} == {
        "0": None,
        "1": None,
        "2": "ValueError: the environment's reward is '1.0', a text",
        "3": "SystemExit: ",
        "4": "RuntimeError: stuck",
        "5": "ValueError: the environment's reward is 1e+300",
    }
    assert {step.observation for line in lines for step in line.steps} == {"half \ufffd"}
