"""SkillRL's run killed in each of its phases, and resumed: the weights, the bank and the figures of a run that was never killed.

One process has loaded everything and forks a child for each attempt, as in `test_kill_and_resume`. A child is killed by what it does:
when it enters a phase for the nth time, so that no clock decides where.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_skillrl_run import ALFWORLD
from tests.preloaded import run_code

pytestmark = pytest.mark.slow  # in the default suite test_kill_and_resume holds this for the training phases

KEPT = """metrics.jsonl evaluations.jsonl evolve.jsonl trajectories.jsonl collected.jsonl collected.jsonl.json demonstrations.jsonl
coverage.json bank/log.jsonl checkpoints/rl-000003/model.safetensors checkpoints/rl-000003/trainer.pt""".split()
SETTINGS = ["rl.steps=3", "rl.save_steps=2", "sft.steps=4", "sft.save_steps=2", "evolve.every=1"]

HARNESS = '''
import json, os, signal, sys
import skill_ttrl.cli.display, skill_ttrl.commands.train, transformers.models.qwen2.modeling_qwen2, accelerate, peft
import skill_ttrl.rollout.rollout as rollout, skill_ttrl.commands.distill as distill, skill_ttrl.train.imitate as imitate
import skill_ttrl.train.rules as rules, skill_ttrl.train.encode as encode, skill_ttrl.commands.data_phases as gather
import skill_ttrl.runs.checkpoint as checkpoint
from skill_ttrl.cli.main import main
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.sft_learner import SFTLearner
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.commands.collect import EpisodeWriter
from skill_ttrl.envs import env_tasks

for split in ("train", "valid_unseen"):
    env_tasks("alfworld", {"data": "generated", "max_steps": 12}, split, 12)  # listed once, not by every child
config, folder, settings, stops = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
PLACES = {
    "collect": (rollout, "_play_scripted"),
    "kept": (EpisodeWriter, "add"),
    "between": (rules, "make_teacher"),
    "distill": (gather, "distill_into"),
    "distilled": (SkillBank, "apply"),
    "demonstrate": (encode, "coverage"),
    "sft": (SFTLearner, "step"),
    "rl": (LocalLearner, "update"),
    "evolve": (Evolver, "evolve"),
    "evolved": (SkillBank, "apply"),
    "evaluate": (RunFolder, "write_text"),
    "save": (checkpoint, "_seal"),
}


def signalled(place, nth, name, after):
    """The child signals itself when it comes to a place for the nth time, before or after what is done there."""
    owner, attribute = PLACES[place]
    whole, came = getattr(owner, attribute), [0]

    def replaced(*words, **named):
        came[0] += 1
        if came[0] == nth and not after:
            os.kill(os.getpid(), getattr(signal, name))
        found = whole(*words, **named)
        if came[0] == nth and after:
            os.kill(os.getpid(), getattr(signal, name))
        return found

    setattr(owner, attribute, replaced)


def attempt(stop):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    with open(folder + ".log", "a") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    try:
        if stop is not None:
            signalled(*stop)
        more = [word for setting in settings for word in ("--set", setting)]
        sys.argv = ["skillttrl", "train", config, "-o", folder, "--resume", "auto", *more]
        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    finally:
        sys.stdout.flush()
        os._exit(code)


print(json.dumps([attempt(stop) for stop in [*stops, None]]))
'''


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(ALFWORLD)
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "never-stopped"
    assert attempts(recipe, folder) == [0], log_of(folder)
    return folder


def attempts(recipe: Path, folder: Path, *stops: Sequence[Any], settings: Sequence[str] = SETTINGS) -> Any:
    """Exit codes of the attempts, each stopped at (place, nth time, signal, whether after it), and of a last one that is not."""
    done = run_code(HARNESS, recipe, folder, json.dumps(settings), json.dumps(stops), timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def log_of(folder: Path) -> str:
    return " ".join(folder.with_name(f"{folder.name}.log").read_text().split())


def assert_same(stopped: Path, whole: Path) -> None:
    for name in KEPT:
        assert (stopped / name).read_bytes() == (whole / name).read_bytes(), name
    summaries = [json.loads((run / "summary.json").read_text()) for run in (stopped, whole)]
    assert {**summaries[0], "seconds": 0} == {**summaries[1], "seconds": 0}
    assert sorted(entry.name for entry in stopped.iterdir()) == sorted(entry.name for entry in whole.iterdir())


def killed(place: str, nth: int = 1, *, after: bool = False) -> tuple[str, int, str, bool]:
    return place, nth, "SIGKILL", after


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("place", "nth"),
    [
        ("collect", 1),
        ("collect", 13),
        ("collect", 24),
        ("between", 1),
        ("distill", 1),
        ("distilled", 1),
        ("demonstrate", 1),
        ("sft", 1),
        ("sft", 3),
        ("save", 1),
        ("rl", 1),
        ("rl", 2),
        ("evolve", 1),
        ("evolve", 2),
        ("evolved", 3),
        ("save", 3),
    ],
)
def test_killed_anywhere_it_ends_as_if_nothing_had_been(
    place: str, nth: int, after: bool, recipe: Path, whole: Path, tmp_path: Path
) -> None:
    assert attempts(recipe, tmp_path / "run", killed(place, nth, after=after)) == [-9, 0]
    assert_same(tmp_path / "run", whole)
