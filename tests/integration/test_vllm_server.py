"""A real vLLM server under `skillttrl serve`: it samples what the learner has, also when it is killed in the middle and started again.

One server for the whole file, with a key. Order matters in two places, and the tests say so.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from skill_ttrl.cli.main import app
from skill_ttrl.config import BuiltinConfig, LoraConfig, SkillTTRLConfig
from skill_ttrl.errors import EndpointError, WeightSyncError
from skill_ttrl.llm.backend import BackendContext, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.load import LoadedModel, add_lora, save_model
from skill_ttrl.llm.models.weights import full_weights
from skill_ttrl.llm.vllm.servers import VLLMServerBackend
from skill_ttrl.types import Message
from tests.vllm_server import CLOSE, VLLMServer, versions_of, worst_gap

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

KEY = "a-key-for-this-test-alone"
SHAPE = BuiltinConfig(hidden_size=128, layers=2, heads=4, max_positions=512)
QUESTIONS = [f"Compute {number}+{3 * number}." for number in range(11, 43)]


@dataclass
class Served:
    """The server of this file, and what was said about it."""

    server: VLLMServer
    model: Path
    folder: Path
    notices: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def pid(self) -> int:
        return self.server.pid

    @property
    def client(self) -> httpx.Client:
        # After a 500 vLLM drops the connection: the next request on it would fail.
        headers = {"Authorization": f"Bearer {KEY}", "Connection": "close"}
        return httpx.Client(base_url=self.address, headers=headers, trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    tokenizer = build_tokenizer(QUESTIONS)
    save_model(build_model(SHAPE, tokenizer, seed=0), tokenizer, folder / "model")
    transfer = folder / "transfer"
    lengths = ["vllm.max_model_len=512", "vllm.max_num_seqs=64", "vllm.enable_sleep_mode=true"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKILLTTRL_SERVER_KEY", KEY)
        words = [word for each in (f"vllm.weight_transfer_dir={transfer}", *lengths) for word in ("--set", each)]
        with VLLMServer(folder / "model", *words, log=folder / "log") as server:
            yield Served(server, folder / "model", transfer)
            pid = server.pid
        assert not Path("/proc", str(pid)).exists()
        assert KEY not in (folder / "log").read_text()


def config_for(served: Served, **vllm: Any) -> SkillTTRLConfig:
    config = SkillTTRLConfig.model_validate({"model": {"path": str(served.model)}})
    options = {"servers": [served.address], "weight_transfer_dir": str(served.folder), **vllm}
    return config.model_copy(update={"vllm": config.vllm.model_validate({"mode": "server", **options})})


def learner(served: Served, scale: float = 0.0, lora: bool = False) -> LoadedModel:
    """A learner; with `scale` its weights have moved away from those that the server started with."""
    tokenizer = build_tokenizer(QUESTIONS)
    model: Any = build_model(SHAPE, tokenizer, seed=0)
    if lora:
        model = add_lora(model, LoraConfig(r=4, alpha=8), seed=0)
    move(model, scale)
    return LoadedModel(model, tokenizer)


def move(model: Any, scale: float) -> None:
    generator = torch.Generator().manual_seed(int(scale * 1e4))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def backend_for(
    served: Served, loaded: LoadedModel, *, config: SkillTTRLConfig | None = None, trains: bool = True
) -> VLLMServerBackend:
    context = BackendContext(config or config_for(served), lambda: loaded, trains=trains, notice=served.notices.append)
    return VLLMServerBackend(context)


def sampled(backend: Any, sampling: Sampling, n: int = 2, seed: int = 0, **how: Any) -> list[Generation]:
    requests = [Request((Message("user", question),), n=n, **how) for question in QUESTIONS]
    return wait_for(backend.generate(requests, sampling, seed=seed))


def refuse_to_load() -> LoadedModel:
    raise AssertionError("the learner's model was loaded")


def test_a_model_that_is_only_measured_is_not_loaded_here(served: Served) -> None:
    """First: the server has the weights that it started with."""
    context = BackendContext(config_for(served), refuse_to_load, trains=False)
    backend = VLLMServerBackend(context)
    found = sampled(backend, Sampling(max_new_tokens=12))
    assert backend.max_model_len == 512
    assert worst_gap(learner(served), found) < CLOSE


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_the_learners_at_the_sampling_temperature(served: Served, temperature: float) -> None:
    loaded = learner(served, 0.05)
    backend = backend_for(served, loaded)
    backend.update_weights(3)
    assert backend.last_logprob_diff is not None and backend.last_logprob_diff.mean < 1e-5
    sampling = Sampling(temperature=temperature, max_new_tokens=24)
    found = sampled(backend, sampling, n=3)
    assert worst_gap(loaded, found, temperature) < CLOSE
    assert len({done.token_ids for each in found for done in each.completions}) > 90  # of 96
    assert {done.policy_version for each in found for done in each.completions} == {3}
    assert all(done.completion_mask == (True,) * len(done.token_ids) for each in found for done in each.completions)
    assert sampled(backend, sampling, n=3) == found
    assert sampled(backend, sampling, n=3, seed=1) != found


def test_each_update_changes_what_is_sampled(served: Served) -> None:
    loaded = learner(served)
    backend = backend_for(served, loaded)
    texts = []
    for version in range(1, 4):
        move(loaded.model, 0.02 * version)
        backend.update_weights(version)
        found = sampled(backend, Sampling(max_new_tokens=16))
        assert worst_gap(loaded, found) < CLOSE
        texts.append([done.text for each in found for done in each.completions])
    assert texts[0] != texts[1] != texts[2]
    assert list(served.folder.iterdir()) == []


def test_weights_that_did_not_arrive_end_the_run(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = learner(served)
    backend = backend_for(served, loaded)
    backend.update_weights(1)
    old = {name: value.clone() for name, value in full_weights(loaded.model)}
    move(loaded.model, 0.05)
    with monkeypatch.context() as patch:
        patch.setattr("skill_ttrl.llm.vllm.servers.full_weights", lambda model: iter(old.items()))
        with pytest.raises(WeightSyncError, match="does not sample from the trained policy"):
            backend.update_weights(2)
    backend.update_weights(2)
    assert worst_gap(loaded, sampled(backend, Sampling(max_new_tokens=8))) < CLOSE


def test_adapters_are_folded_in(served: Served) -> None:
    loaded = learner(served, lora=True)
    backend = backend_for(served, loaded)
    for version in (1, 2):
        move(loaded.model, 0.1 * version)
        backend.update_weights(version)
        found = sampled(backend, Sampling(max_new_tokens=16))
        assert worst_gap(loaded, found) < CLOSE


def test_what_another_run_left_is_not_sampled_from(served: Served) -> None:
    mine, other = learner(served, 0.03), learner(served, 0.06)
    first, second = backend_for(served, mine), backend_for(served, other)
    first.update_weights(1)
    second.update_weights(1)
    assert worst_gap(mine, sampled(first, Sampling(max_new_tokens=8))) < CLOSE
    assert "again" in served.notices[-1]


def test_a_server_that_slept_samples_with_the_new_weights(served: Served) -> None:
    loaded = learner(served, 0.02)
    backend = backend_for(served, loaded, config=config_for(served, enable_sleep_mode=True))
    backend.update_weights(1)
    backend.sleep()
    move(loaded.model, 0.03)
    backend.update_weights(2)
    assert worst_gap(loaded, sampled(backend, Sampling(max_new_tokens=8))) < CLOSE


def test_nobody_gets_in_without_the_key_or_beyond_what_is_needed(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "weights.safetensors"
    outside.write_bytes(b"x")
    with served.client as client:
        assert not client.post("/update_weights", json={"update_info": {"path": str(outside)}}).is_success
        assert client.post("/collective_rpc", json={"method": "reload_weights"}).status_code == 403
        client.headers.pop("authorization")
        assert client.get("/health").status_code == 200
        assert client.get("/weight_info").status_code == client.get("/v1/models").status_code == 401
    command = Path("/proc", str(served.pid), "cmdline").read_bytes()
    assert KEY.encode() not in command
    monkeypatch.setenv("SKILLTTRL_SERVER_KEY", "another")
    with pytest.raises(EndpointError, match="SKILLTTRL_SERVER_KEY"):
        backend_for(served, learner(served))


def trained_through(served: Served, config: Path, run: Path, *more: str) -> list[dict[str, Any]]:
    """A whole run whose sampler is the server; gives its metrics of the phase rl."""
    options = [f"model.builtin={json.dumps(SHAPE.model_dump())}", "rollout.backend=vllm", "vllm.mode=server", *more]
    options += [f"vllm.servers=[{served.address}]", f"vllm.weight_transfer_dir={served.folder}"]
    words = ["train", str(config), "--output", str(run), *(word for each in options for word in ("--set", each))]
    # The corpus decides how many tokens there are; the server's model has so many.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skill_ttrl.llm.models.load.build_tokenizer", lambda *_: build_tokenizer(QUESTIONS))
        app(words, standalone_mode=False)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == "rl"]


def test_rollouts_run_ahead_through_a_server(served: Served, tmp_path: Path, tiny_yaml: Path) -> None:
    ahead = ["rl.max_staleness=2", "rl.steps=4", "rl.save_steps=4", "rl.reward=random", "rl.warmup_steps=0"]
    rows = trained_through(served, tiny_yaml, tmp_path / "run", *ahead)
    versions = versions_of(tmp_path / "run")
    assert versions[0] == {0} and all(0 <= step - each <= 2 for step, row in enumerate(versions) for each in row)
    assert [row["staleness/max"] for row in rows] == [step - min(row) for step, row in enumerate(versions)]
    for row in rows:
        assert (row["sampling/logp_difference/mean"] < CLOSE) == (row["staleness/max"] == 0)
        assert 0.5 < row["rollout_corr/rollout_is_eff_sample_size"] <= 1


def killed_in_the_middle(served: Served, work: Callable[[], Any], after: float) -> Any:
    timer = threading.Timer(after, served.server.kill_and_start_again)
    timer.start()
    try:
        return work()
    finally:
        timer.join()


def test_a_server_that_is_killed_loses_nothing(served: Served) -> None:
    """Last: the server is started again, once."""
    loaded = learner(served, 0.05)
    backend = backend_for(served, loaded)
    backend.update_weights(5)
    sampling = Sampling(max_new_tokens=128)
    began = time.monotonic()
    undisturbed = sampled(backend, sampling, n=8)
    took = time.monotonic() - began
    before = served.pid
    found = killed_in_the_middle(served, lambda: sampled(backend, sampling, n=8), 0.4 * took)
    assert served.pid != before
    assert [[done.token_ids for done in each.completions] for each in found] == [
        [done.token_ids for done in each.completions] for each in undisturbed
    ]
    assert worst_gap(loaded, found) < CLOSE
    assert any("sent again" in text for text in served.notices)
    assert any("receives the weights" in text for text in served.notices)
    move(loaded.model, 0.02)
    backend.update_weights(6)
    assert worst_gap(loaded, sampled(backend, Sampling(max_new_tokens=8))) < CLOSE
