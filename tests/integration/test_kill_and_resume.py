"""Killed at any point and resumed, a run ends with the same bytes as one that was never stopped.

Starting Python and torch takes seconds, a step here a hundredth of one. So one process has loaded everything and forks a child
for each attempt; the child runs the real command and is really killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skill_ttrl.cli.main import app
from skill_ttrl.commands import train
from skill_ttrl.commands.train import run
from skill_ttrl.config import load_config
from skill_ttrl.errors import RunFolderError, SkillTTRLError, WeightSyncError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.signals import Interrupted
from skill_ttrl.storage.jsonl import parse_json
from tests.conftest import TINY_SKILLS
from tests.preloaded import run_code

SETTINGS = ["sft.steps=24", "rl.steps=8", "sft.save_steps=3", "rl.save_steps=2", "rl.eval_steps=3"]

SETTINGS += ["rl.kl_coef=0.01", "rl.reward=random", "rl.mini_batch_size=1", "run.save_total_limit=2"]

STEPS = 32

KILLS = 6

KEPT = ("rl-000006", "rl-000008", "sft-000021", "sft-000024")
"""Checkpoints that are there in the end."""

HARNESS = '''
import contextlib, json, os, random, signal, sys, time
import skill_ttrl.cli.display, skill_ttrl.commands.train, transformers.models.qwen2.modeling_qwen2, accelerate, peft
from skill_ttrl.cli.main import main
from skill_ttrl.envs import env_tasks

env_tasks("math", {}, count=1)  # a family's problems are put in order once in a process, which takes a good part of an attempt

config, folder, task, *rest = sys.argv[1:]


def start(output):
    child = os.fork()
    if child:
        return child
    with open(output + ".log", "a") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    settings = [word for setting in json.loads(rest[0]) for word in ("--set", setting)]
    sys.argv = ["skillttrl", "train", config, "-o", output, "--resume", "auto", *settings]
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code
    finally:
        sys.stdout.flush()
        os._exit(code or 0)


def lines(output):
    with contextlib.suppress(FileNotFoundError):
        with open(output + "/metrics.jsonl", "rb") as file:
            return file.read().split(b"\\n")[:-1]
    return []


def stop_at(output, step, delay, signum):
    """Signal a new attempt `delay` seconds after it has written `step` lines, or three lines later; its exit status and last phase."""
    child = start(output)
    while len(lines(output)) < step:
        if os.waitpid(child, os.WNOHANG)[0]:
            raise SystemExit(f"an attempt ended before step {step}")
        time.sleep(0.001)
    until = time.monotonic() + delay
    while time.monotonic() < until and len(lines(output)) <= step + 2:  # a fast machine does not run away from the kills
        time.sleep(0.001)
    os.kill(child, signum)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    written = lines(output)
    return status, json.loads(written[-1])["phase"] if written else "none"


def finish(output):
    return os.waitstatus_to_exitcode(os.waitpid(start(output), 0)[1])


rng = random.Random(20)
if task == "reference":
    found = finish(folder)
elif task == "kill":
    steps, kills = map(int, rest[1:])
    found = [stop_at(folder, 0, rng.uniform(0.0, 0.4), signal.SIGKILL) for _ in range(2)]
    for number in range(kills):
        done = len(lines(folder))
        goal = round(steps * (number + rng.random()) / kills)
        found.append(stop_at(folder, max(goal, 1), rng.uniform(0.0, 0.05), signal.SIGKILL))
    found.append((finish(folder), "end"))
else:
    found = [finish(rest[1])]
    for name, step in (("SIGKILL", 4), ("SIGTERM", 8)):
        found.append((name, *stop_at(folder, step, 0.0, getattr(signal, name))))
    found.append(("end", finish(folder), "end"))
print(json.dumps(found))
'''


def harness(config: Path, folder: Path, task: str, *more: object, settings: Sequence[str] = SETTINGS) -> Any:
    arguments = [config, folder, task, json.dumps(settings), *more]
    done = run_code(HARNESS, *arguments, timeout=240)
    log = folder.with_name(f"{folder.name}.log")
    assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
    return json.loads(done.stdout)


def assert_same(stopped: Path, reference: Path, *, steps: int = STEPS, kept: Sequence[str] = KEPT) -> None:
    for name in ("metrics.jsonl", "votes.jsonl", "trajectories.jsonl", "evaluations.jsonl"):
        assert (stopped / name).read_bytes() == (reference / name).read_bytes(), name
    assert len((stopped / "metrics.jsonl").read_text().splitlines()) == steps
    names = [sorted(entry.name for entry in (run / "checkpoints").iterdir()) for run in (stopped, reference)]
    assert names[0] == names[1] == list(kept)
    for name in names[0]:
        for file in ("model.safetensors", "trainer.pt"):
            one, other = (run / "checkpoints" / name / file for run in (stopped, reference))
            assert one.read_bytes() == other.read_bytes(), (name, file)
        states = [json.loads((run / "checkpoints" / name / "state.json").read_text()) for run in (stopped, reference)]
        for state in states:
            del state["offsets"]["timings.jsonl"]  # wall times are no part of the promise
        assert states[0] == states[1]
    summaries = [json.loads((run / "summary.json").read_text()) for run in (stopped, reference)]
    assert {**summaries[0], "seconds": 0} == {**summaries[1], "seconds": 0}


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_bytes(tiny_yaml: Path, tmp_path: Path) -> None:
    assert harness(tiny_yaml, tmp_path / "never-stopped", "reference") == 0
    found = harness(tiny_yaml, tmp_path / "killed", "kill", STEPS, KILLS)
    *kills, end = found
    assert end == [0, "end"]
    assert [status for status, _ in kills] == [-9] * (KILLS + 2)
    phases = [phase for _, phase in kills]
    assert phases.count("sft") >= 2 and phases.count("rl") >= 1, phases
    assert_same(tmp_path / "killed", tmp_path / "never-stopped")


def test_killed_and_told_to_leave_it_ends_with_the_same_bytes(tiny_yaml: Path, tmp_path: Path) -> None:
    """A signal that can be heard saves, and the process leaves with its code."""
    few = [*SETTINGS, "sft.steps=6", "rl.steps=4"]
    never = tmp_path / "never-stopped"
    whole, *stops, end = harness(tiny_yaml, tmp_path / "stopped", "signals", never, settings=few)
    assert whole == 0 and end[1] == 0
    assert stops == [["SIGKILL", -9, "sft"], ["SIGTERM", 128 + 15, "rl"]]
    log = (tmp_path / "stopped.log").read_text()
    assert log.count("; saved in") == 1 and log.count("Continuing from") == 2
    assert_same(tmp_path / "stopped", never, steps=10, kept=("rl-000002", "rl-000004", "sft-000003", "sft-000006"))


@pytest.mark.slow
def test_the_baseline_goes_on_from_its_samples_and_from_its_steps(tiny_yaml: Path, tmp_path: Path) -> None:
    base = ["phases=[sft]", "sft.steps=150", "sft.save_steps=150"]  # enough that it answers at all
    assert harness(tiny_yaml, tmp_path / "base", "reference", settings=base) == 0
    settings = ["phases=[vote_sft]", f"model.path={tmp_path}/base/checkpoints/sft-000150", "run.save_total_limit=2"]
    settings += ["rl.steps=12", "rl.save_steps=4", "vote_sft.batch_size=2", "sft.save_steps=3"]
    settings += ["vote_sft.learning_rate=1e-3", "run.save_trajectories=false"]
    assert harness(tiny_yaml, tmp_path / "never-stopped", "reference", settings=settings) == 0
    rows = (tmp_path / "never-stopped" / "metrics.jsonl").read_text().splitlines()
    steps = len(rows)
    assert steps >= 12 + 9 and '"loss"' in rows[12] and '"loss"' not in rows[11]
    *kills, end = harness(tiny_yaml, tmp_path / "killed", "kill", steps, 4, settings=settings)
    assert end == [0, "end"] and [status for status, _ in kills] == [-9] * 6
    kept = [f"vote_sft-{step:06d}" for step in (12 + (steps - 13) // 3 * 3, steps)]
    assert_same(tmp_path / "killed", tmp_path / "never-stopped", steps=steps, kept=kept)


# One process forks the writers it kills, so that a round costs milliseconds.
_DRIVER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.runs.checkpoint import list_checkpoints, load_tensors, newest, restore_to_checkpoint, save_checkpoint, verify
from skill_ttrl.runs.folder import RunFolder

torch.set_num_threads(1)
path, rounds, last_step = Path(sys.argv[1]), int(sys.argv[2]), 10_000


def write() -> None:
    folder = RunFolder.open(path)
    checkpoint = newest(folder)
    start = restore_to_checkpoint(folder, checkpoint).get("done", 0)
    weights = load_tensors(checkpoint.path)["weights"] if checkpoint else torch.zeros(50_000)
    for step in range(start + 1, last_step):
        weights = weights + step
        folder.append_jsonl("metrics.jsonl", [json.dumps({"step": step, "pad": "x" * 5000})])
        if step % 2 == 0:
            save_checkpoint(folder, "rl", step, write=lambda p: torch.save(weights, p / "model.bin") or {"weights": weights},
                            state={"done": step}, keep=2)


RunFolder.create(path, SkillTTRLConfig()).close()
random.seed(0)
reached, leftovers = 0, 0
for _ in range(rounds):
    child = os.fork()
    if child == 0:
        write()
        os._exit(0)
    time.sleep(random.uniform(0.05, 0.25))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    leftovers += len(list(path.glob("checkpoints/.*")))
    folder = RunFolder.open(path)  # the lock died with its holder
    for checkpoint in list_checkpoints(folder):
        verify(checkpoint.path)
    checkpoint = newest(folder)
    if checkpoint:
        assert checkpoint.step >= reached, "a checkpoint was lost"
        reached = checkpoint.step
        restore_to_checkpoint(folder, checkpoint)
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, reached + 1))
        total = reached * (reached + 1) / 2
        assert torch.equal(load_tensors(checkpoint.path)["weights"], torch.full((50_000,), total))
        assert not list(path.glob("checkpoints/.*"))
    folder.close()
print(reached, leftovers)
"""


@pytest.mark.slow
def test_only_whole_checkpoints_survive_kills(tmp_path: Path) -> None:
    done = run_code(_DRIVER, tmp_path / "run", 9)
    assert done.returncode == 0, done.stderr
    reached, leftovers = map(int, done.stdout.split())
    assert reached > 0, "no round lived long enough to save anything"
    assert leftovers > 0, "no kill fell into a save, so the test showed nothing"


REFUSING = '''
from pathlib import Path

from skill_ttrl.errors import WeightSyncError
from skill_ttrl.llm.hf import HFBackend


class Refusing(HFBackend):
    """Takes every version but the third, as long as the file `refuse` is there."""

    def __init__(self, context):
        super().__init__(context.loaded.model, context.loaded.tokenizer)

    def update_weights(self, policy_version):
        if policy_version == 3 and Path("refuse").exists():
            raise WeightSyncError("old weights")
        super().update_weights(policy_version)
'''


class StopIn(SilentProgress):
    """Sends the process a signal when a phase begins."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        if phase == self.phase:
            os.kill(os.getpid(), signal.SIGTERM)


def check_same(one: Path, other: Path) -> None:
    for name in ("metrics.jsonl", "votes.jsonl", "trajectories.jsonl", "evaluations.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
def test_a_signal_in_an_evaluation(tiny_yaml: Path, tmp_path: Path) -> None:
    settings = ["phases=[rl]", "rl.steps=3", "rl.save_steps=3", "rl.eval_steps=2", "rl.reward=random"]
    config = load_config(tiny_yaml, settings)
    train.run(config, tmp_path / "whole")
    with pytest.raises(Interrupted, match="after rl step 2; saved in"):
        train.run(config, tmp_path / "stopped", progress=StopIn("evaluate step 2"))
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir()] == ["rl-000002"]
    train.run(config, tmp_path / "stopped", resume="auto")
    check_same(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.slow
def test_a_sampler_that_does_not_take_the_weights(
    tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "refusing_backend", raising=False)
    Path("refusing_backend.py").write_text(REFUSING)
    settings = ["rollout.backend=refusing_backend:Refusing", "rl.steps=4", "rl.save_steps=10", "rl.eval_steps=2"]
    config = load_config(tiny_yaml, settings)
    train.run(config, "whole")
    Path("refuse").touch()
    with pytest.raises(WeightSyncError, match="old weights"):
        train.run(config, "stopped")
    assert (Path("stopped") / "checkpoints" / "rl-000003").is_dir()
    Path("refuse").unlink()
    train.run(config, "stopped", resume="auto")
    check_same(Path("stopped"), Path("whole"))


@pytest.mark.slow
def test_more_steps_on_resume(tiny_yaml: Path, tmp_path: Path) -> None:
    settings = ["phases=[rl]", "rl.reward=random", "rl.lr_scheduler=constant", "rl.warmup_steps=1", "rl.eval_steps=2"]
    train.run(load_config(tiny_yaml, settings), tmp_path / "short")
    longer = load_config(tiny_yaml, [*settings, "rl.steps=4"])
    train.run(longer, tmp_path / "short", resume="auto")
    train.run(longer, tmp_path / "long")
    check_same(tmp_path / "short", tmp_path / "long")
    models = [tmp_path / name / "checkpoints" / "rl-000004" / "model.safetensors" for name in ("short", "long")]
    assert models[0].read_bytes() == models[1].read_bytes()
    with RunFolder.open(tmp_path / "short") as folder:
        assert folder.config.rl.steps == 4
    with pytest.raises(RunFolderError, match=r"rl\.steps 4 there, 2 here"):
        train.run(load_config(tiny_yaml, settings), tmp_path / "short", resume="auto")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    file = folder.with_name("tiny.yaml")
    file.write_text(TINY_SKILLS)
    run(load_config(str(file)), folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("depth", [100, 101, 100_000])
@pytest.mark.parametrize("level", ["[]", ('{"a":', "}")], ids=["lists", "objects"])
def test_levels_of_json_are_limited(level: tuple[str, str], depth: int) -> None:
    text = f"{level[0] * depth}1{level[1] * depth}"
    if depth <= 100:
        assert parse_json(text)
    else:
        with pytest.raises(ValueError, match="more than 100 levels of nesting"):
            parse_json(text)


@pytest.mark.slow
def test_json_that_is_nested_without_end_is_a_damaged_file(copied: Path) -> None:
    files = sorted(path for path in copied.rglob("*.json*") if path.suffix in (".json", ".jsonl") and path.is_file())
    assert len(files) > 10
    for file in {file.name: file for file in files}.values():  # one of each kind
        whole = file.read_bytes()
        file.write_bytes(b"[" * 100_000 + b"]" * 100_000 + (b"\n" + whole if file.suffix == ".jsonl" else b""))
        refused(
            ["skills", "list", f"{copied}/bank"] if file.parent.name == "bank" else ["inspect", str(copied)], file.name
        )
        file.write_bytes(whole)


def refused(command: list[str], name: str) -> None:
    """Run a command: it ends well or with a message that names the file, and never with a traceback."""
    error = CliRunner().invoke(app, command).exception
    if isinstance(error, SkillTTRLError):
        assert error.exit_code != 1 and name in str(error), f"{' '.join(command)}: {error!r}"
    else:
        assert error is None or isinstance(error, SystemExit), f"{' '.join(command)} with {name}: {error!r}"
