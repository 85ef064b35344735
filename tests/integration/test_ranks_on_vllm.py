"""Two processes with half of the weights each, sampled by vLLM: an engine in each of them, or a server apart.

That the sampler has the learner's weights is seen by its log-probs: those of every token differ by rounding alone.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_ranks import command
from tests.ranks import run_ranks

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

ROUNDING = 1e-4
"""Largest mean difference of log-probs in float32 that is rounding, nats."""
SETTINGS = (
    "rollout.backend=vllm",
    "runtime.parallel=fsdp",
    "rl.steps=2",
    "rl.reward=random",
    "rl.save_steps=1",
    "model.builtin={hidden_size: 64, layers: 2, heads: 2, max_positions: 128}",
)


def train(config: Path, output: Path, *settings: str) -> None:
    given = [word for each in (*SETTINGS, *settings) for word in ("--set", each)]
    arguments = ["train", str(config), "-o", str(output), *given]
    code, _, err = run_ranks(command, 2, arguments, timeout=280)[0]
    assert code == 0, err


def differences(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["sampling/logp_difference/mean"] for row in rows if row["phase"] == "rl"]


def test_each_rank_has_an_engine_that_follows_the_shards(tiny_yaml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny_yaml, run)
    found = differences(run)
    assert len(found) == 2 and max(found) < ROUNDING
    assert (run / "checkpoints" / "rl-000002" / "shards").is_dir()


@pytest.fixture
def server(tiny_yaml: Path, tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = [word for each in SETTINGS for word in ("--set", each)]
    command = [sys.executable, "-m", "skill_ttrl.cli.main", "serve", "--config", str(tiny_yaml), *given]
    command += ["--port", str(port), "--log-dir", str(tmp_path / "logs"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        told: dict[str, Any] = json.loads("".join(lines))
        yield told["servers"][0]["address"]
    finally:
        process.terminate()
        process.wait(60)


def test_a_server_is_given_whole_weights_of_all_ranks(server: str, tiny_yaml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny_yaml, run, "vllm.mode=server", f"vllm.servers=[{server}]")
    found = differences(run)
    assert len(found) == 2 and max(found) < ROUNDING
