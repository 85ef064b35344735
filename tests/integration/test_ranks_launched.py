"""Runs on several processes as a user starts them: `skillttrl train --nproc` and `torchrun`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SETTINGS = ("rl.steps=40", "rl.save_steps=1", "run.save_total_limit=null", "rl.reward=random")
SKILLTTRL = [sys.executable, "-m", "skill_ttrl.cli.entry"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
TORCHRUN += ["skill_ttrl.cli.entry"]
NODE = [
    sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--master-addr",
    "127.0.0.1",
]  # fmt: skip


def arguments(config: Path, output: Path, *more: str) -> list[str]:
    settings = [word for each in SETTINGS for word in ("--set", each)]
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
