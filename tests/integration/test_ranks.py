"""Whole runs of the real command on several processes: as one trains, so do two and three, also after one was killed.

The processes are forked from a Python that has loaded the libraries; `test_ranks.py` starts them as a user does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from skill_ttrl.llm.models.load import load_checkpoint
from tests.ranks import run_ranks

CLOSE = 1e-5

STEPS = 4

SETTINGS = (
    f"rl.steps={STEPS}", "rl.kl_coef=0.01", "rl.reward=random", "run.save_total_limit=null", "rl.learning_rate=1e-4",
)  # fmt: skip
"""Random rewards: otherwise few samples agree, and nothing is learned."""

LAST = f"rl-{STEPS:06}"


def command(arguments: list[str], die_at: str = "") -> list[Any]:
    """(exit code, stdout, stderr) of the command on this rank; rank 1 kills itself as soon as there is a file `die_at`."""
    from skill_ttrl.cli.main import main

    if die_at and os.environ.get("RANK") == "1":
        threading.Thread(target=_die, args=(Path(die_at),), daemon=True).start()
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["skillttrl", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code: Any = 0
        except SystemExit as leaving:
            code = leaving.code or 0
    return [code, out.getvalue(), err.getvalue()]


def _die(when: Path) -> None:
    while not when.exists():
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)


def train(config: Path, output: Path, ranks: int, *settings: str, **options: Any) -> list[Any]:
    given = [word for each in (*SETTINGS, *settings) for word in ("--set", each)]
    die_at = options.pop("die_at", "")
    arguments = ["train", str(config), "-o", str(output), "--resume", "auto", *given]
    found = run_ranks(command, ranks, arguments, str(die_at), killed=1 if die_at else None, **options)
    return list(found[0])


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in load_checkpoint(checkpoint, device="cpu").model.named_parameters()}


def distance(ours: Path, theirs: Path) -> float:
    left, right = weights(ours / "checkpoints" / LAST), weights(theirs / "checkpoints" / LAST)
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


@pytest.fixture(scope="module")
def alone(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "alone"
    code, _, err = train(tiny_yaml, folder, 1)
    assert code == 0, err
    return folder


@pytest.fixture(scope="module")
def sharded(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two ranks, each with half of the weights."""
    folder = tmp_path_factory.mktemp("ranks") / "sharded"
    code, out, err = train(tiny_yaml, folder, 2, "runtime.parallel=fsdp")
    assert code == 0 and "Results: " in out, err
    return folder


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def tokens(run: Path) -> list[Any]:
    return [[step["completion"]["token_ids"] for step in line["steps"]] for line in lines(run, "trajectories.jsonl")]


WORK = {"computed_tokens", "operations"}


def assert_same_run(ours: Path, alone: Path) -> None:
    assert distance(ours, alone) < CLOSE
    assert tokens(ours) == tokens(alone)
    for mine, other in zip(lines(ours, "metrics.jsonl"), lines(alone, "metrics.jsonl"), strict=True):
        assert mine.keys() == other.keys()
        # What each rank computes depends on which prompts it shares.
        numbers = [name for name, value in other.items() if isinstance(value, float) and name not in WORK]
        assert [mine[name] for name in numbers] == pytest.approx([other[name] for name in numbers], abs=1e-3, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "parallel"), [(2, "ddp"), (3, "fsdp")])
def test_several_processes_train_as_one_does(
    ranks: int, parallel: str, sharded: Path, alone: Path, tiny_yaml: Path, tmp_path: Path
) -> None:
    code, out, err = train(tiny_yaml, tmp_path / "run", ranks, f"runtime.parallel={parallel}")
    assert code == 0 and "Results: " in out, err
    for run in (tmp_path / "run", sharded):
        assert_same_run(run, alone)


@pytest.mark.slow
def test_killed_and_resumed_with_other_numbers_of_processes_it_ends_as_one(
    alone: Path, tiny_yaml: Path, tmp_path: Path
) -> None:
    run, fsdp = tmp_path / "run", "runtime.parallel=fsdp"
    first, third = (run / "checkpoints" / f"rl-{step:06}" for step in (1, 3))
    code, _, err = train(tiny_yaml, run, 2, fsdp, die_at=first)
    assert code == 9 and "killed" in err and "Traceback" not in err
    assert (first / "shards" / ".metadata").is_file() and not list(first.glob("*.safetensors"))
    code, _, err = train(tiny_yaml, run, 3, fsdp, die_at=third)
    assert code == 9, err
    code, _, err = train(tiny_yaml, run, 1)
    assert code == 0, err
    assert_same_run(run, alone)
    with safe_open(run / "checkpoints" / LAST / "model.safetensors", "pt") as whole:
        assert "model.norm.weight" in whole.keys()  # noqa: SIM118  # no mapping


@pytest.mark.slow
def test_a_sharded_checkpoint_is_exported_as_a_plain_folder_and_answers(sharded: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    plain, make = tmp_path / "plain", AutoModelForCausalLM
    assert command(["export", str(sharded), "-o", str(plain)])[0] == 0
    loaded: Any = make.from_pretrained(plain)
    read = dict(loaded.named_parameters())
    assert all(torch.equal(value, read[name]) for name, value in weights(sharded / "checkpoints" / LAST).items())
    assert not (plain / "shards").exists() and (plain / "tokenizer.json").is_file()
    code, out, err = command(["ask", str(sharded), "Compute 1+2."])
    assert code == 0 and out, err


LAUNCHED = ("rl.steps=40", "rl.save_steps=1", "run.save_total_limit=null", "rl.reward=random")

SKILLTTRL = [sys.executable, "-m", "skill_ttrl.cli.entry"]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]

TORCHRUN += ["skill_ttrl.cli.entry"]

NODE = [
    sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--master-addr",
    "127.0.0.1",
]  # fmt: skip


def arguments(config: Path, output: Path, *more: str) -> list[str]:
    settings = [word for each in LAUNCHED for word in ("--set", each)]
    return ["train", str(config), "-o", str(output), "--resume", "auto", *settings, *more]


def start(command: list[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    return subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.01)


def rank_pids(launcher: int) -> list[int]:
    """Process ids of its children, in the order of their start."""
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def checkpoints(run: Path) -> list[str]:
    return sorted(entry.name for entry in (run / "checkpoints").iterdir() if not entry.name.startswith("."))


@pytest.mark.slow
def test_ctrl_c_saves_and_a_killed_rank_ends_all(tiny_yaml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [*SKILLTTRL, *arguments(tiny_yaml, run, "--nproc", "2", "--set", "runtime.parallel=fsdp")]
    process = start(command)
    wait_for(run / "checkpoints" / "rl-000001", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "saved in" in err and "Traceback" not in err
    saved = len(checkpoints(run))

    process = start(command)
    wait_for(run / "checkpoints" / f"rl-{saved:06}", process)
    os.kill(rank_pids(process.pid)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 9 and "Traceback" not in err
    assert "Rank 1 of 2 was killed by SIGKILL" in err and "--resume auto" in err
    assert json.loads((run / "checkpoints" / checkpoints(run)[-4] / "manifest.json").read_text())


@pytest.mark.slow
def test_torchrun_starts_it_too(tiny_yaml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start([*TORCHRUN, *arguments(tiny_yaml, run, "--set", "rl.steps=2")])
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert out.count("Results: ") == 1 and checkpoints(run)[-1].startswith("sft")


@pytest.mark.slow
def test_two_agents_of_torchrun_train_as_one_with_two_processes_does(tiny_yaml: Path, tmp_path: Path) -> None:
    """An agent a machine, one rank each, and a folder that both see; here both are on this one."""
    sharded = ("--set", "rl.steps=2", "--set", "runtime.parallel=fsdp", "--set", "runtime.threads=1")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    words = ["--master-port", port, "-m", "skill_ttrl.cli.entry", *arguments(tiny_yaml, tmp_path / "nodes", *sharded)]
    nodes = [start([*NODE, "--node-rank", rank, *words]) for rank in ("0", "1")]
    alone = start([*TORCHRUN, *arguments(tiny_yaml, tmp_path / "alone", *sharded)])
    for process in (*nodes, alone):
        _, err = process.communicate(timeout=400)
        assert process.returncode == 0, err
    assert (tmp_path / "nodes" / "metrics.jsonl").read_bytes() == (tmp_path / "alone" / "metrics.jsonl").read_bytes()
