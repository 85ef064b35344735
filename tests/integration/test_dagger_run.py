"""The phase dagger: rounds that a policy plays under an expert's eye, the same when stopped and gone on with, and kinds of it refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.storage.jsonl import read_jsonl
from tests.doors import DOORS
from tests.preloaded import run_code

RUN: dict[str, Any] = {
    "name": "doors",
    "phases": ["collect", "sft", "dagger"],
    "env": {"id": DOORS, "kwargs": {"apart": True}, "train_split": "train", "eval_split": "test"},
    "agent": {"template": "plain", "context_mode": "episode", "max_turns": 3},
    "data": {"max_prompt_tokens": 400},
    "model": {"path": "builtin", "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 512}},
    "collect": {"agent": "tests.doors:Opener", "episodes": 20, "rollouts_per_task": 2, "epsilon": [0.0, 0.4]},
    "demonstrations": {"label": "expert", "examples": None},
    "sft": {"steps": 4, "batch_size": 4, "micro_batch_size": 4, "optimizer": "muon", "learning_rate": 4e-3},
    "dagger": {"rounds": 2, "episodes": 5, "steps": [2, 3]},
    "rollout": {"n_votes_per_prompt": 1, "n_samples_per_prompt": 1, "max_new_tokens": 3},
    "eval": {"samples": 1, "greedy": False, "controls": []},
    "runtime": {"device": "cpu", "threads": 1},
}
KEPT = (
    "metrics.jsonl", "evaluations.jsonl", "dagger.jsonl", "demonstrations.jsonl",
    "checkpoints/dagger-000005/model.safetensors",
)  # fmt: skip


def config(**changes: Any) -> SkillTTRLConfig:
    return load_config({**RUN, **changes})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "run"
    train.run(config(), path)
    return path


def kept(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in KEPT}


def test_a_round_is_played_labelled_and_learnt_from(reference: Path) -> None:
    episodes = list(read_episodes(reference / "dagger.jsonl"))
    assert len(episodes) == 10 and len({each.task.id for each in episodes}) == 10, "no task comes twice before all have"
    for each in episodes:
        for step in each.steps:
            assert step.completion is not None and step.info["expert_action"] in ("left", "right", "wait")
    rows = read_jsonl(reference / "metrics.jsonl")
    rounds = [row for row in rows if row["phase"] == "dagger_round"]
    assert [row["step"] for row in rounds] == [0, 1] and all(0 <= row["expert_agreement"] <= 1 for row in rounds)
    assert [row["step"] for row in rows if row["phase"] == "dagger"] == [0, 1, 2, 3, 4]
    labels = [row["label"] for row in read_jsonl(reference / "evaluations.jsonl")]
    assert labels == ["after"]
    card = (reference / "checkpoints" / "dagger-000005" / "README.md").read_text()
    assert "this checkpoint is of `dagger`" in card and "rounds: 2" in card
    chats = read_jsonl(reference / "demonstrations.jsonl")
    assert len(chats) == 20 and {row["messages"][-1]["role"] for row in chats} == {"assistant"}
    assert sum(len(row["learnt"]) for row in chats) == json.loads((reference / "coverage.json").read_text())["examples"]


HARNESS = """
import json, os, signal, sys
import skill_ttrl.rl.sft_learner as learner, skill_ttrl.runs.checkpoint as checkpoint
from skill_ttrl.config import load_config
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.commands import train
from skill_ttrl.train import imitate

config, folder, stops = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
PLACES = {
    "played": (imitate, "play_chunk"),
    "appended": (RunFolder, "append_jsonl"),
    "learn": (learner.SFTLearner, "step"),
    "seal": (checkpoint, "_seal"),
}


def attempt(stop):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if stop is not None:
        (owner, name), nth, came = PLACES[stop[0]], stop[1], [0]
        whole = getattr(owner, name)

        def replaced(*words, **named):
            found = whole(*words, **named)
            came[0] += 1
            if came[0] == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        setattr(owner, name, replaced)
    code = 1
    try:
        train.run(load_config(config), folder, resume="auto")
        code = 0
    finally:
        os._exit(code)


print(json.dumps([attempt(stop) for stop in [*stops, None]]))
"""


@pytest.mark.slow
def test_killed_again_and_again_within_rounds_and_between_them(reference: Path, tmp_path: Path) -> None:
    """After a chunk, in the middle of what a round appends, after an update, and while a checkpoint is written."""
    # Each number counts from where the attempt goes on: at the end of the cold start, then within the first round, then in the second.
    stops = [("played", 1), ("learn", 1), ("appended", 3), ("seal", 1), ("played", 2), ("learn", 2)]
    run = {**RUN, "sft": {**RUN["sft"], "save_steps": 1}}
    done = run_code(HARNESS, json.dumps(run), tmp_path / "run", json.dumps(stops), timeout=240)
    assert done.returncode == 0 and json.loads(done.stdout) == [-9] * len(stops) + [0], (done.stdout, done.stderr)
    assert kept(tmp_path / "run") == kept(reference)


def test_other_memories_learn_step_by_step(reference: Path, tmp_path: Path) -> None:
    changes: Mapping[str, Any] = {
        "phases": ["dagger"],
        "rollout": {**RUN["rollout"], "max_new_tokens": 12},
        "agent": {"template": "plain", "max_turns": 2, "structured_actions": True},
        "demonstrations": {"trajectories": str(reference / "collected.jsonl"), "label": "expert", "examples": None},
        "dagger": {"rounds": 1, "episodes": 4, "steps": 2},
    }
    train.run(config(**changes), tmp_path / "run")
    episodes = list(read_episodes(tmp_path / "run" / "dagger.jsonl"))
    assert all(
        len(each.steps) <= 2 and step.action in step.admissible_actions for each in episodes for step in each.steps
    )
