"""Killed at any point and resumed, a run ends with the same bytes as one that was never stopped.

Starting Python and torch takes seconds, a step here a hundredth of one. So one process has loaded everything and forks a child
for each attempt; the child runs the real command and is really killed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

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
