"""Episodes of several turns on a real vLLM engine and on a really started server: each asks for itself, and all of it is the policy's.

The policy has learnt the generated shop for a few seconds: it clicks and searches, and seldom wins. One server for the whole file; the
last test kills it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from skill_ttrl.commands import train
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.server_key import key_headers
from skill_ttrl.progress import SilentProgress
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.build import build
from skill_ttrl.train.open_run import bank_in_memory
from skill_ttrl.train.run import TrainingComponents
from skill_ttrl.types import Trajectory
from tests.vllm_server import VLLMServer

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

CLOSE = 1e-4
"""Largest difference of log-probs in float32 that is rounding, nats."""
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
        worst = 0.0
        for step in (step for each in played for step in each.steps):
            assert step.completion is not None
            ids = torch.tensor([[*step.prompt_ids, *step.completion.token_ids]])
            with torch.no_grad():
                logits = self.bench.policy.model(input_ids=ids).logits[0, len(step.prompt_ids) - 1 : -1].float()
            own = torch.log_softmax(logits, -1).gather(1, ids[0, len(step.prompt_ids) :, None]).squeeze(1)
            worst = max(worst, float((own - torch.tensor(step.completion.logprobs)).abs().max()))
        return worst


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
        for path in sorted((run / "checkpoints" / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (run / "checkpoints" / name).rmdir()
    (run / "summary.json").unlink()
    train.run(policy.config(*settings), run, resume="auto")
    _look_at(run)


def _look_at(run: Path) -> None:
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(0 < row["sampling/logp_difference/mean"] < CLOSE and row["grad_norm"] > 0 for row in rows), rows
    assert all(row["failed_rollouts"] == 0 and 1 <= row["episode_steps"] <= TURNS for row in rows)
    versions: dict[int, set[int]] = {}
    for line in read_jsonl(run / "trajectories.jsonl"):
        found = {step["completion"]["policy_version"] for step in line["steps"]}
        versions.setdefault(line["step"], set()).update(found)
    assert versions == {0: {0}, 1: {1}, 2: {2}}
