"""Runs that sample with vLLM: on ranks, with all weights or adapters, and in episodes, in this process and through a server."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from skill_ttrl.commands import evaluate, train
from skill_ttrl.commands.play import ask
from skill_ttrl.commands.resolve import find_trained
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import ModelError, WeightSyncError
from skill_ttrl.llm.backend import BackendContext, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.backends import make_backend
from skill_ttrl.llm.models.builtin import build_tokenizer
from skill_ttrl.llm.models.load import LoadedModel, load_model, save_model
from skill_ttrl.llm.server_key import key_headers
from skill_ttrl.llm.vllm.checks import compare, learner_logprobs
from skill_ttrl.llm.vllm.engine import DUMP, score
from skill_ttrl.progress import SilentProgress
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.build import build
from skill_ttrl.train.open_run import bank_in_memory
from skill_ttrl.train.run import TrainingComponents
from skill_ttrl.types import Message, Trajectory
from tests.integration.test_ranks import command
from tests.ranks import run_ranks
from tests.vllm_server import CLOSE, VLLMServer, versions_of, worst_gap

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

SETTINGS = (
    "rollout.backend=vllm", "runtime.parallel=fsdp", "rl.steps=2", "rl.reward=random", "rl.save_steps=1",
    "model.builtin={hidden_size: 64, layers: 2, heads: 2, max_positions: 128}",
)  # fmt: skip


def train_on_ranks(config: Path, output: Path, *settings: str) -> None:
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
    train_on_ranks(tiny_yaml, run, "vllm.mode=server", f"vllm.servers=[{server}]")
    found = differences(run)
    assert len(found) == 2 and max(found) < CLOSE


STEPS = 3

TRAINING = [
    "rollout.backend=vllm",
    "model.builtin={hidden_size: 128, heads: 4, layers: 2, max_positions: 128}",
    "sft.steps=30", "sft.data.limit=512", f"rl.steps={STEPS}", "rl.prompts_per_step=8", "rl.save_steps=1",
    "rollout.n_votes_per_prompt=8", "rollout.n_samples_per_prompt=8", "data.train.limit=32", "data.eval.limit=16",
    "eval.samples=4", "runtime.threads=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cold start and a few steps of reinforcement."""
    folder = tmp_path_factory.mktemp("runs") / "weights"
    train.run(load_config("quickstart", TRAINING), folder)
    return folder


def lora_config(trained: Path, updates: str, *more: str) -> SkillTTRLConfig:
    """Reinforcement of adapters on the cold-started model."""
    cold = trained / "checkpoints" / "sft-000030"
    assert cold.is_dir()
    return load_config(
        "quickstart",
        [*TRAINING, "phases=[rl]", f"model.path={cold}", "model.lora={r: 4}", f"vllm.weight_sync={updates}", *more],
    )


def look_at(folder: Path) -> None:
    """Every step sampled from the weights of the step before, and the learner found the sampler's log-probs to be its own."""
    steps = [row for row in read_jsonl(folder / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in steps] == list(range(STEPS))
    assert all(
        0 < row["sampling/logp_difference/mean"] < 1e-4 and row["sampling/logp_difference/max"] < 1e-3 for row in steps
    )
    assert all(row["grad_norm"] > 0 for row in steps)
    assert versions_of(folder) == [{step} for step in range(STEPS)]


def test_a_run_follows_all_weights(trained: Path) -> None:
    look_at(trained)


@pytest.mark.parametrize("updates", ["lora", "full"])
def test_a_run_follows_adapters(updates: str, trained: Path, tmp_path: Path) -> None:
    config = lora_config(trained, updates, "vllm.enable_sleep_mode=true", "rl.learning_rate=1e-2")
    train.run(config, tmp_path / "run")
    look_at(tmp_path / "run")
    reply = ask(find_trained(tmp_path / "run"), "12+34", samples=2, temperature=1.0)  # from the adapters' folder
    assert len(reply.texts) == 2


def test_a_trained_policy_is_measured_without_a_learner(trained: Path) -> None:
    measured = evaluate.run(trained, ["eval.samples=8", "eval.top_p=0.9"])
    same = evaluate.run(trained, ["eval.samples=8", "eval.top_p=0.9", "rollout.backend=hf"])
    assert measured.problems == 16 and measured.greedy == same.greedy


SHAPE = {
    "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.1, "bos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "tied", "settings"),
    [("llama", False, []), ("llama", False, ["model.lora={r: 3}", "vllm.weight_sync=lora"]), ("qwen3", True, [])],
)
def test_other_models_are_followed_too(family: str, tied: bool, settings: list[str], tmp_path: Path) -> None:
    tokenizer: Any = build_tokenizer(["Compute 12+34."] * 20)
    shape: Any = AutoConfig.for_model(
        family,
        **SHAPE,
        vocab_size=len(tokenizer),
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    make: Any = AutoModelForCausalLM
    save_model(make.from_config(shape), tokenizer, tmp_path / "model")
    limits = ["data.max_prompt_tokens=100", "rollout.max_new_tokens=40", "rollout.backend=vllm"]
    config = load_config({}, [*limits, f"model.path={tmp_path / 'model'}", *settings])
    loaded = load_model(config.model, device="cpu")
    backend: Any = make_backend(BackendContext(config, lambda: loaded, trains=True))
    try:
        for version in range(3):
            backend.update_weights(version)
            assert backend.last_logprob_diff.largest < 1e-3  # else `sync` would have raised, but by the mean alone
            wait_for(backend.generate([Request(token_ids=(5, 6, 7), n=2)], Sampling(max_new_tokens=20), seed=0))
            move(loaded, "lora_" if settings else "")
            assert compare(*scores(backend, loaded)).mean > 1e-2
    finally:
        backend.close()


def scores(backend: Any, loaded: LoadedModel) -> tuple[list[list[float]], list[list[float]]]:
    """What learner and engine give the same tokens now."""
    sequences = [tuple(range(20, 60))]
    return learner_logprobs(loaded.model, sequences), score(backend.engine(), sequences, backend._lora)


@pytest.fixture
def adapted(trained: Path) -> Iterator[tuple[Any, LoadedModel]]:
    config = lora_config(trained, "lora", "vllm.enable_sleep_mode=true")
    loaded = load_model(config.model, device="cpu")
    backend = make_backend(BackendContext(config, lambda: loaded, trains=True))
    yield backend, loaded
    backend.close()


def move(loaded: LoadedModel, kind: str = "lora_") -> None:
    """A step of the learner."""
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if kind in name:
                parameter.add_(
                    (0.3 if kind else 0.05)
                    * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
                )


def test_adapters_that_were_not_swapped_end_the_run(
    adapted: tuple[Any, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, loaded = adapted
    for version in (1, 2):
        move(loaded)
        backend.update_weights(version)
        assert backend.last_logprob_diff.mean < 1e-4
        backend.sleep()
        with pytest.raises(RuntimeError, match="asleep"):
            wait_for(backend.generate([Request(token_ids=(5,))], Sampling(), seed=0))
    backend.update_weights(2)
    assert wait_for(backend.generate([Request(token_ids=(5,))], Sampling(max_new_tokens=4), seed=0))
    assert len(backend.engine().call(lambda llm: llm.llm_engine.list_loras())) == 1  # the old ones are gone
    assert len(list(Path(backend._folder.name).iterdir())) == 1  # from the disk as well
    move(loaded)
    monkeypatch.setattr(type(backend), "_swap_adapters", lambda *_: None)
    with pytest.raises(WeightSyncError, match=r"vllm\.weight_sync=lora"):
        backend.update_weights(3)
    assert backend.policy_version == 2


def test_an_engine_that_breaks_tells_everybody_who_waits(
    adapted: tuple[Any, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, _ = adapted

    def broken() -> Any:
        raise ValueError("the kernel is gone")

    monkeypatch.setattr(backend.engine()._llm.llm_engine, "step", broken)

    async def ask_twice() -> list[Any]:
        asked = [
            backend.generate([Request((Message("user", "1+2"),), n=2)], Sampling(max_new_tokens=8), seed=seed)
            for seed in (1, 2)
        ]
        return await asyncio.gather(*asked, return_exceptions=True)

    failed: list[list[Generation] | ModelError] = asyncio.run(ask_twice())
    assert all(isinstance(each, ModelError) and "the kernel is gone" in str(each) for each in failed)
    assert not logging.getLogger(DUMP).isEnabledFor(logging.ERROR), "vLLM would write every prompt of the step"
    with pytest.raises(ModelError, match="failed before"):
        wait_for(backend.generate([Request(token_ids=(5,))], Sampling(), seed=0))


TURNS = 6

SHOP: dict[str, Any] = {
    "name": "shop",
    "env": {"id": "webshop", "kwargs": {"data": "generated", "max_steps": TURNS}, "train_tasks": 200},
    "agent": {
        "template": "episode",
        "prompts": "tiny",
        "context_mode": "window",
        "history_length": 3,
        "max_observation_tokens": 1,
    }
    | {"actions": "numbered", "action_order": "words", "action_parser": "action", "max_turns": TURNS},
    "data": {"max_prompt_tokens": 600},
    "model": {
        "path": "builtin",
        "builtin": {"hidden_size": 64, "layers": 2, "heads": 2, "max_positions": 1024, "merges": 600, "numbers": 80},
    },
    "skills": {"embedder": "hash", "index": "memory", "prompt_top_k": 2, "prompt_max_tokens": 100, "max_retrievals": 0}
    | {"update": "none"},
    "rollout": {"n_votes_per_prompt": 4, "n_samples_per_prompt": 4, "max_new_tokens": 8},
    "eval": {"samples": 1, "extra_temperatures": [], "greedy": False},
    "runtime": {"device": "cpu", "threads": 1},
}

LEARNS: dict[str, Any] = {
    "env": SHOP["env"] | {"eval_split": "test", "eval_tasks": 8},
    "collect": {"agent": "careful", "episodes": 300, "rollouts_per_task": 2, "epsilon": 0.1},
    "demonstrations": {"examples": 1200, "label": "expert"},
    "sft": {"steps": 60, "batch_size": 16, "micro_batch_size": 8, "optimizer": "muon", "learning_rate": 4e-3}
    | {"muon_learning_rate": 0.02},
}

REINFORCES: dict[str, Any] = {
    "phases": ["rl"],
    "env": SHOP["env"] | {"eval_split": "test", "eval_tasks": 8},
    "rl": {
        "reward": "env",
        "steps": 3,
        "prompts_per_step": 4,
        "mini_batch_size": None,
        "invalid_action_penalty_coef": 0.1,
    }
    | {"kl_coef": 0.0, "learning_rate": 3e-4, "save_steps": 1},
}

GREEDY = Sampling(temperature=0, max_new_tokens=8)


@dataclass(frozen=True)
class Policy:
    """What was cold-started."""

    weights: Path
    bank: Path

    def bench(self, *overrides: str) -> Bench:
        config = self.config(*overrides)
        assert config.skills is not None
        return Bench(build(config, SilentProgress(), bank=bank_in_memory(config.skills))[0])

    def config(self, *overrides: str, **sections: Any) -> SkillTTRLConfig:
        own = [f"model.path={self.weights}", f"skills.bank={self.bank}"]
        return load_config(SHOP | REINFORCES | sections, [*own, "rollout.backend=vllm", *overrides])


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    run = tmp_path_factory.mktemp("cold") / "run"
    train.run(load_config(SHOP | LEARNS | {"phases": ["collect", "distill", "sft"]}), run)
    return Policy(run / "checkpoints" / "sft-000060", run / "bank")


@dataclass
class Served:
    server: VLLMServer
    transfer: Path

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def settings(self) -> tuple[str, ...]:
        return "vllm.mode=server", f"vllm.servers=[{self.address}]", f"vllm.weight_transfer_dir={self.transfer}"

    @property
    def running(self) -> int:
        """Requests that it has and has not answered."""
        text = httpx.get(f"{self.address}/metrics", headers=key_headers(self.address), trust_env=False, timeout=60).text
        names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        found = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(names)]
        assert len(found) == 2
        return int(sum(found))

    @property
    def pid(self) -> int:
        return self.server.pid


@pytest.fixture(scope="module")
def served(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    keys = ("vllm.max_model_len=1024", "vllm.max_num_seqs=64", f"vllm.weight_transfer_dir={folder / 'transfer'}")
    words = [word for key in keys for word in ("--set", key)]
    with VLLMServer(policy.weights, *words, log=folder / "log") as server:
        yield Served(server, folder / "transfer")


@pytest.fixture(params=["engine", "server"])
def settings(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Of either kind of sampler."""
    return () if request.param == "engine" else request.getfixturevalue("served").settings


@dataclass
class Bench:
    """Components whose sampler is looked at."""

    bench: TrainingComponents
    asking: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        generate = self.bench.backend.generate

        async def counted(requests: Any, *rest: Any, **more: Any) -> Any:
            self.asking += 1
            self.most = max(self.most, self.asking)
            try:
                return await generate(requests, *rest, **more)
            finally:
                self.asking -= 1

        self.bench.backend.generate = counted  # type: ignore[method-assign]

    def play(self, sampling: Sampling, count: int = 12, tries: int = 1) -> list[Trajectory]:
        worker = self.bench.worker.with_bank(self.bench.bank_view())
        groups = worker.generate_rollouts(self.bench.train_tasks[:count], tries, sampling, seed=0)
        return [each for group in groups for each in group.trajectories]

    def gap(self, played: Sequence[Trajectory]) -> float:
        """The largest difference between what was said of a token and what the learner computes for it."""
        steps = [(step.prompt_ids, step.completion) for each in played for step in each.steps]
        found = [Generation(ids, (completion,)) for ids, completion in steps if completion is not None]
        return worst_gap(self.bench.policy, found)


@pytest.fixture
def bench(policy: Policy, settings: tuple[str, ...]) -> Iterator[Bench]:
    made = policy.bench(*settings)
    yield made
    made.bench.close()


def done(groups: Sequence[Trajectory]) -> list[tuple[str, list[str]]]:
    return [(each.stop_reason, [step.action for step in each.steps]) for each in groups]


@pytest.fixture(scope="module")
def by_hf(policy: Policy) -> list[tuple[str, list[str]]]:
    """What the learner's own model does in lockstep, greedily."""
    made = policy.bench("rollout.backend=hf")
    try:
        return done(made.play(GREEDY))
    finally:
        made.bench.close()


def test_episodes_that_ask_for_themselves_do_what_the_learner_would(
    bench: Bench, by_hf: list[tuple[str, list[str]]]
) -> None:
    bench.bench.backend.update_weights(3)
    assert done(bench.play(GREEDY)) == by_hf and len({str(each) for each in by_hf}) > 3
    played = bench.play(Sampling(max_new_tokens=8), tries=4)
    assert bench.most > 8, "they ask side by side"
    assert len(played) == 48 and not [each.error for each in played if each.error]
    steps = [step for each in played for step in each.steps]
    assert bench.gap(played[::4]) < CLOSE
    assert {step.completion.policy_version for step in steps if step.completion} == {3}
    assert sum(step.action_status == "valid" for step in steps) > len(steps) / 2
    assert any(each.skills_in_prompt for each in played), "of the bank that was distilled"
    decode = bench.bench.policy.tokenizer.decode
    for each in played[:8]:
        for before, step in zip(each.steps, each.steps[1:], strict=False):
            shown = before.action_status != "valid" or before.action[:12] in decode(list(step.prompt_ids))
            assert shown, "the window shows what was done"


def test_who_is_out_of_time_leaves_nothing_behind_in_the_sampler(
    policy: Policy, settings: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    made = policy.bench(*settings, "rollout.rollout_timeout_s=0.5")
    backend: Any = made.bench.backend
    endless = Sampling(temperature=2.0, max_new_tokens=400)
    try:
        late = made.play(endless, tries=8)
        assert [each.stop_reason for each in late].count("timeout") > 48
        until = time.monotonic() + 10
        while (left := _unanswered(backend, request)) and time.monotonic() < until:
            time.sleep(0.1)
        assert left == 0
        made.bench.config.rollout.rollout_timeout_s = 60
        played = made.play(Sampling(max_new_tokens=8), count=4, tries=2)
        assert {each.stop_reason for each in played} <= {"terminated", "truncated"} and made.gap(played) < CLOSE
    finally:
        made.bench.close()


def _unanswered(backend: Any, request: pytest.FixtureRequest) -> int:
    if hasattr(backend, "engine"):
        return int(backend.engine().call(lambda llm: llm.llm_engine.get_num_unfinished_requests()))
    served: Served = request.getfixturevalue("served")
    return served.running


def test_reinforced_by_the_shop_it_follows_and_goes_on(
    policy: Policy, settings: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train.run(policy.config(*settings), run)
    _look_at(run)
    for name in ("rl-000003", "rl-000002"):
        shutil.rmtree(run / "checkpoints" / name)
    (run / "summary.json").unlink()
    train.run(policy.config(*settings), run, resume="auto")
    _look_at(run)


def _look_at(run: Path) -> None:
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(0 < row["sampling/logp_difference/mean"] < CLOSE and row["grad_norm"] > 0 for row in rows), rows
    assert all(row["failed_rollouts"] == 0 and 1 <= row["episode_steps"] <= TURNS for row in rows)
    assert versions_of(run) == [{0}, {1}, {2}]
