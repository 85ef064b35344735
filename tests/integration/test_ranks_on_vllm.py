"""Two processes with half of the weights each, sampled by a vLLM server.

That the sampler has the learner's weights is seen by its log-probs: those of every token differ by rounding alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_ranks import command
from tests.ranks import run_ranks
from tests.vllm_server import VLLMServer

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

ROUNDING = 1e-4
"""Largest mean difference of log-probs in float32 that is rounding, nats."""
SETTINGS = (
    "rollout.backend=vllm", "runtime.parallel=fsdp", "rl.steps=2", "rl.reward=random", "rl.save_steps=1",
    "model.builtin={hidden_size: 64, layers: 2, heads: 2, max_positions: 128}",
)  # fmt: skip


def train(config: Path, output: Path, *settings: str) -> None:
    given = [word for each in (*SETTINGS, *settings) for word in ("--set", each)]
    arguments = ["train", str(config), "-o", str(output), *given]
    code, _, err = run_ranks(command, 2, arguments, timeout=280)[0]
    assert code == 0, err


def differences(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["sampling/logp_difference/mean"] for row in rows if row["phase"] == "rl"]


@pytest.fixture
def server(tiny_yaml: Path, tmp_path: Path) -> Iterator[str]:
    given = [word for each in SETTINGS for word in ("--set", each)]
    with VLLMServer("--config", tiny_yaml, *given, "-o", tmp_path / "model", log=tmp_path / "log") as server:
        yield server.address


def test_a_server_is_given_whole_weights_of_all_ranks(server: str, tiny_yaml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny_yaml, run, "vllm.mode=server", f"vllm.servers=[{server}]")
    found = differences(run)
    assert len(found) == 2 and max(found) < ROUNDING
