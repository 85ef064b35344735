"""Weights broadcast to real vLLM servers, without a folder: the same as by file, also where a server is killed over it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from skill_ttrl.config import BuiltinConfig, SkillTTRLConfig
from skill_ttrl.errors import WeightSyncError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.context import BackendContext
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.load import LoadedModel, save_model
from skill_ttrl.llm.vllm.plugin import skillttrl_group
from skill_ttrl.llm.vllm.plugin.skillttrl_group import WeightGroup
from skill_ttrl.llm.vllm.servers import broadcast
from skill_ttrl.llm.vllm.servers.backend import VLLMServerBackend
from tests.integration.test_vllm_replicas import two_free_ports
from tests.integration.test_vllm_server import (
    CLOSE,
    QUESTIONS,
    SHAPE,
    Served,
    largest_difference,
    move,
    sampled,
    trained_through,
)

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

SAMPLING = Sampling(max_new_tokens=24)


class Servers:
    """Two servers, and what was said about them."""

    def __init__(self, model: Path, logs: Path) -> None:
        self.model, self.folder, self.state = model, logs / "weights", logs / "servers.json"
        self.notices: list[str] = []

    @property
    def addresses(self) -> list[str]:
        return [each["address"] for each in json.loads(self.state.read_text())["servers"]]

    @property
    def pids(self) -> list[int | None]:
        return [each["pid"] for each in json.loads(self.state.read_text())["servers"]]

    def backend(self, loaded: LoadedModel, servers: list[str] | None = None, **how: Any) -> VLLMServerBackend:
        how = {"mode": "server", "servers": servers or self.addresses, "start_timeout": 240} | how
        config = SkillTTRLConfig.model_validate({"model": {"path": str(self.model)}, "vllm": how})
        return VLLMServerBackend(BackendContext.of(config, lambda: loaded, trains=True, notice=self.notices.append))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    model, logs = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("logs")
    tokenizer = build_tokenizer(QUESTIONS)
    save_model(build_model(SHAPE, tokenizer, seed=0), tokenizer, model)
    found = Servers(model, logs)
    command = [sys.executable, "-m", "skill_ttrl.cli.main", "serve", model, "--replicas", 2, "--port", two_free_ports()]
    command += ["--max-model-len", 512, "--max-num-seqs", 64, "--log-dir", logs, "--weight-transfer-dir", found.folder]
    process = subprocess.Popen([*map(str, command), "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert any(line == "}\n" for line in process.stdout)
        yield found
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


def learner(scale: float = 0.0, shape: BuiltinConfig = SHAPE) -> LoadedModel:
    tokenizer = build_tokenizer(QUESTIONS)
    model: Any = build_model(shape, tokenizer, seed=0)
    move(model, scale)
    return LoadedModel(model, tokenizer)


def test_broadcast_weights_are_those_of_a_file(servers: Servers) -> None:
    first, second = learner(0.03), learner(0.06)
    by_file = servers.backend(first, weight_transfer_dir=str(servers.folder))
    by_file.update_weights(1)
    expected = sampled(by_file, SAMPLING)
    other, same = (servers.backend(each, weight_transfer="broadcast") for each in (second, first))
    other.update_weights(1)
    assert sampled(other, SAMPLING) != expected
    same.update_weights(1)
    assert sampled(same, SAMPLING) == expected
    assert same.last_logprob_diff == by_file.last_logprob_diff
    # The first learner's groups gave way to the second's, and are opened again.
    move(second.model, 0.01)
    other.update_weights(2)
    assert largest_difference(second, sampled(other, SAMPLING)) < CLOSE
    assert not servers.folder.exists() or list(servers.folder.iterdir()) == []


def test_a_group_is_kept_for_all_updates(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, opened = learner(0.02), list[str]()
    made = WeightGroup.__init__

    def counted(self: WeightGroup, name: str, *args: Any, **how: Any) -> None:
        opened.append(name)
        made(self, name, *args, **how)

    monkeypatch.setattr(WeightGroup, "__init__", counted)
    backend = servers.backend(loaded, weight_transfer="broadcast")
    for version in range(1, 4):
        move(loaded.model, version / 100)
        backend.update_weights(version)
        assert backend.last_logprob_diff is not None and backend.last_logprob_diff.mean < 1e-5
    assert len(opened) == 2
    assert largest_difference(loaded, sampled(backend, SAMPLING)) < CLOSE
    backend.close()


def test_training_is_the_same_by_broadcast_and_by_file(servers: Servers, tmp_path: Path, tiny_yaml: Path) -> None:
    served = Served(servers.addresses[0], servers.model, servers.folder, servers.state, None)  # type: ignore[arg-type]
    by_file = trained_through(served, tiny_yaml, tmp_path / "file", "rl.steps=2")
    over_network = trained_through(
        served, tiny_yaml, tmp_path / "network", "rl.steps=2", "vllm.weight_transfer=broadcast"
    )
    for mine, theirs in zip(over_network, by_file, strict=True):
        assert {key for key in mine if mine[key] != theirs[key]} <= {"seconds"}
    assert max(row["sampling/logp_difference/mean"] for row in over_network) < CLOSE


def test_two_ranks_gather_each_tensor_and_broadcast_what_a_file_would_hold(
    servers: Servers, tmp_path: Path, tiny_yaml: Path
) -> None:
    rows = []
    for way in ("file", "broadcast"):
        settings = [f"model.path={servers.model}", "rollout.backend=vllm", "vllm.mode=server", "runtime.parallel=fsdp"]
        settings += [f"vllm.servers=[{servers.addresses[0]}]", f"vllm.weight_transfer={way}", "rl.reward=random"]
        settings += [f"vllm.weight_transfer_dir={servers.folder}"]
        words = [
            "train",
            tiny_yaml,
            "-o",
            tmp_path / way,
            "--nproc",
            2,
            *(x for each in settings for x in ("--set", each)),
        ]
        command = [sys.executable, "-m", "skill_ttrl.cli.main", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        lines = map(json.loads, (tmp_path / way / "metrics.jsonl").read_text().splitlines())
        rows.append([line for line in lines if line["phase"] == "rl"])
    by_file, over_network = rows
    assert len(by_file) == 2
    for mine, theirs in zip(over_network, by_file, strict=True):
        assert {key for key in mine if mine[key] != theirs[key]} <= {"seconds"}
        assert mine["sampling/logp_difference/mean"] < CLOSE


def at_tensor(number: int, action: Callable[[], None]) -> Callable[..., Any]:
    """`broadcast` that does something before it sends the tensor of this number."""
    sent = 0

    def sending(groups: Any, tensor: torch.Tensor) -> Any:
        nonlocal sent
        sent += 1
        if sent == number:
            action()
        return skillttrl_group.broadcast(groups, tensor)

    return sending


def test_a_learner_that_fails_half_way_does_no_harm(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = learner(0.04)
    backend = servers.backend(loaded, weight_transfer="broadcast")

    def fail() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(broadcast, "broadcast", at_tensor(5, fail))
        with pytest.raises(KeyboardInterrupt):
            backend.update_weights(1)
    backend.update_weights(1)
    assert largest_difference(loaded, sampled(backend, SAMPLING)) < CLOSE


def test_a_server_that_is_killed_over_a_broadcast_gets_the_weights_when_it_is_back(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = learner(0.05)
    backend = servers.backend(loaded, weight_transfer="broadcast")
    backend.update_weights(1)
    move(loaded.model, 0.02)
    victim, began = servers.pids[1], time.monotonic()
    assert victim is not None
    with monkeypatch.context() as patch:
        patch.setattr(broadcast, "broadcast", at_tensor(5, lambda: os.kill(victim, signal.SIGKILL)))
        backend.update_weights(2)
    assert time.monotonic() - began < 30, "the other server was not held up"
    assert any("to be given the weights later" in text for text in servers.notices)
    while servers.pids[1] in (victim, None):
        time.sleep(0.2)
    alone = servers.backend(loaded, servers.addresses[1:], weight_transfer="broadcast")  # waits until it is up
    alone.close()
    for server in backend._pool.servers:
        backend._pool.ensure_current(server)
    assert any("is given the weights" in text for text in servers.notices)
    assert largest_difference(loaded, sampled(backend, SAMPLING)) < CLOSE
    move(loaded.model, 0.01)
    backend.update_weights(3)
    assert largest_difference(loaded, sampled(backend, SAMPLING)) < CLOSE
    servers.notices.clear()


def test_a_server_that_dies_after_a_broadcast_gets_the_weights_when_it_is_back(servers: Servers) -> None:
    loaded = learner(0.05)
    backend = servers.backend(loaded, servers.addresses[1:], weight_transfer="broadcast")
    backend.update_weights(1)
    victim = servers.pids[1]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    assert largest_difference(loaded, sampled(backend, SAMPLING)) < CLOSE
    assert any("is given the weights" in text for text in servers.notices)


def test_a_model_of_another_shape_is_refused(servers: Servers) -> None:
    """Last: what a refused update leaves behind in a server is not to be sampled from."""
    other = learner(shape=BuiltinConfig(hidden_size=64, layers=2, heads=2, max_positions=512))
    began = time.monotonic()
    with pytest.raises(WeightSyncError, match="could not be handed"):
        servers.backend(other, servers.addresses[:1], weight_transfer="broadcast").update_weights(1)
    assert time.monotonic() - began < 30
