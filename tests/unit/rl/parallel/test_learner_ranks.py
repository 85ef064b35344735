"""Two and three real processes train as one does: the same weights after the same global batches, to 1e-5."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from skill_ttrl.config import RLConfig, RuntimeConfig, SFTConfig
from skill_ttrl.rl.batch import EncodedDemonstration, RolloutBatch, pack, with_advantages
from skill_ttrl.rl.device import make_accelerator
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.parallel.ranks import Ranks, join, whole
from skill_ttrl.rl.parallel.shard import Sharding
from skill_ttrl.rl.policy import Policy
from skill_ttrl.rl.sft_learner import SFTLearner
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory
from tests.ranks import run_ranks
from tests.unit.rl.conftest import VOCABULARY, Tokenizer, _model

CLOSE = 1e-5


def make_policy(ranks: Ranks, *, fsdp: bool, lora: bool = False) -> Policy:
    model: Any = _model()
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    sharding = Sharding(model, torch.device("cpu"), ranks.size) if fsdp else None
    return Policy(model, Tokenizer(), "cpu", sharding=sharding)


def make_batch(seed: int, prompts: int = 3, samples: int = 4, *, turns: int = 1) -> RolloutBatch:
    """With two turns whole episodes, whose tokens were drawn from a few."""
    draw = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCABULARY - 1) for _ in range(draw.randint(low, high)))

    groups, advantages = [], []
    for index in range(prompts):
        task, prompt, trajectories = Task(id=f"t{index}", env_id="e"), ids(2, 5), []
        for _ in range(samples):
            steps: list[Step] = []
            seen = prompt
            for _ in range(turns):
                response = ids(1, 6)
                sets = tuple(tuple(sorted({token, *ids(3, 3)})) for token in response) if turns > 1 else None
                log_probs = tuple(-3.7 + 0.3 * draw.random() for _ in response)
                completion = Completion("", response, log_probs, "stop", allowed=sets)
                steps.append(Step("", "", 0.0, True, False, prompt_ids=seen, completion=completion))
                seen = (*seen, *response, 7)
            trajectories.append(Trajectory(task, tuple(steps), None, "terminated"))
            advantages.append(draw.gauss(0, 1))
        groups.append(Group(task, tuple(trajectories)))
    return with_advantages(pack(groups, join=True), groups, advantages)


def plain(values: dict[str, Tensor]) -> dict[str, Any]:
    return {name: whole(value.detach()).tolist() for name, value in values.items()}


def distance(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((torch.tensor(ours[name]) - torch.tensor(theirs[name])).abs().max()) for name in ours)


def reinforce(how: dict[str, Any]) -> dict[str, Any]:
    """Three updates of the tiny policy on this rank's share; weights, metrics, scores and whether every weight is sharded."""
    ranks = join()
    policy = make_policy(ranks, **how["policy"])
    plain_: dict[str, Any] = {
        "learning_rate": 1e-3, "warmup_steps": 0, "prompts_per_step": 3, "mini_batch_size": 2, "micro_batch_size": 2, "kl_coef": 0.05,
        "entropy_coef": 0.01, "lr_scheduler": "constant",
    }  # fmt: skip
    config = RLConfig(**plain_ | how.get("rl", {}))
    accelerator = make_accelerator(RuntimeConfig(device="cpu", precision="fp32"))
    policy.gather_weights()  # as after an evaluation
    apart = make_policy(ranks, **how["policy"]) if how.get("critic_model") else None
    learner = LocalLearner(policy, config, accelerator, total_steps=3, ranks=ranks, critic_model=apart)
    metrics: list[dict[str, float]] = []
    skipped: list[list[Any]] = []
    for step in range(3):
        batch = learner.score(
            make_batch(step, turns=how.get("turns", 1)),
            temperature=1.0,
            own=True,
            reference=config.kl_coef > 0,
        )
        if config.critic is not None:
            batch = replace(batch, returns_F=batch.advantages_F)
        if step == how.get("bad_step"):  # one value, which one rank alone computes with
            advantages_F = batch.advantages_F.clone()
            advantages_F[batch.starts_N[5] + batch.prompt_lengths_N[5]] = float("nan")
            batch = replace(batch, advantages_F=advantages_F)
        metrics.append(learner.update(batch, step=step, seed=0, temperature=1.0))
        skipped.append([*learner.skipped])
    sharded = [isinstance(parameter, DTensor) for parameter in policy.model.parameters()]
    moments = learner.state_dict()["optimizer"]["optimizers"][0]["state"]
    return {
        "weights": plain(dict(policy.model.named_parameters())),
        "metrics": metrics,
        "skipped": skipped,
        "old": batch.old_log_probs_F.tolist(),
        "reference": [] if batch.ref_log_probs_F is None else batch.ref_log_probs_F.tolist(),
        "values": [] if batch.values_F is None else batch.values_F.tolist(),
        "sharded": sharded,
        "packs": policy.packs,
        "moments_sharded": [isinstance(each["exp_avg"], DTensor) for each in moments.values()],
    }


CRITIC: dict[str, Any] = {"learning_rate": 1e-3}
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"policy": {"fsdp": False}},
    "fsdp, adapters, whole episodes": {"policy": {"fsdp": True, "lora": True}, "turns": 2},
    "fsdp, a bad value": {"policy": {"fsdp": True}, "bad_step": 1},
    "fsdp, critic apart": {"policy": {"fsdp": True}, "rl": {"critic": CRITIC}, "critic_model": True},
}


THREE = ("ddp",)


def learn_in_each_way(ways: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {way: reinforce(WAYS[way]) for way in ways}
    return found | {optimizer: imitate(fsdp, optimizer) for fsdp, optimizer in IMITATE}


@cache
def on_ranks(size: int) -> list[dict[str, Any]]:
    """The results of every rank, way by way."""
    return run_ranks(learn_in_each_way, size, [*(WAYS if size == 2 else THREE)])


@pytest.mark.slow
@pytest.mark.parametrize(("size", "way"), [*((2, way) for way in WAYS), *((3, way) for way in THREE)])
def test_ranks_train_as_one_does(size: int, way: str) -> None:
    policy = {"fsdp": False, "lora": WAYS[way]["policy"].get("lora", False)}
    alone = reinforce({**WAYS[way], "policy": policy})
    check([found[way] for found in on_ranks(size)], alone, fsdp=WAYS[way]["policy"]["fsdp"])
    assert sum(map(len, alone["skipped"])) == ("bad_step" in WAYS[way])


def check(together: list[dict[str, Any]], alone: dict[str, Any], *, fsdp: bool) -> None:
    for found in together:
        assert found["packs"]
        assert distance(found["weights"], alone["weights"]) < CLOSE
        assert found["skipped"] == alone["skipped"]
        assert found["old"] == pytest.approx(alone["old"], abs=CLOSE)
        assert found["values"] == pytest.approx(alone["values"], abs=CLOSE)
        assert found["reference"] == pytest.approx(alone["reference"], abs=CLOSE)
        assert all(found["sharded"]) if fsdp else not any(found["sharded"])
        assert all(found["moments_sharded"]) if fsdp else not any(found["moments_sharded"])
    for ours, theirs in zip(together[0]["metrics"], alone["metrics"], strict=True):
        for metrics in (ours, theirs):  # these depend on which items are computed together
            assert metrics.pop("computed_tokens") > 0 and metrics.pop("operations") > 0
        assert ours == pytest.approx(theirs, abs=1e-4, rel=1e-4, nan_ok=True)


IMITATE = [(False, "adamw"), (True, "muon")]


def imitate(fsdp: bool, optimizer: Any) -> dict[str, Any]:
    ranks = join()
    policy = make_policy(ranks, fsdp=fsdp)
    config = SFTConfig(steps=3, batch_size=5, micro_batch_size=2, learning_rate=1e-3, optimizer=optimizer)
    learner = SFTLearner(policy, config, make_accelerator(RuntimeConfig(device="cpu", precision="fp32")), ranks)
    draw = random.Random(3)
    metrics = []
    for step in range(3):
        batch = [
            EncodedDemonstration([draw.randrange(39) for _ in range(3)], [draw.randrange(39) for _ in range(1 + place)])
            for place in range(5)
        ]
        metrics.append(learner.step(batch, step))
    return {"weights": plain(dict(policy.model.named_parameters())), "metrics": metrics}


@pytest.mark.slow
def test_ranks_imitate_as_one_does() -> None:
    for _, optimizer in IMITATE:
        alone = imitate(False, optimizer)
        for found in (ranks[optimizer] for ranks in on_ranks(2)):
            assert distance(found["weights"], alone["weights"]) < CLOSE
            for ours, theirs in zip(found["metrics"], alone["metrics"], strict=True):
                assert ours == pytest.approx(theirs, abs=1e-4, rel=1e-4)
