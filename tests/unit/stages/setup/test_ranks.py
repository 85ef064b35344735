from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.config import RuntimeConfig, SkillTTRLConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.rl.parallel.environment import strategy
from skill_ttrl.stages.setup.checks import PROCESS_BYTES, check_gpus, check_ranks, check_started, planned_ranks


def test_ranks_hold_shards_on_gpus_and_everything_on_a_cpu() -> None:
    runtime = RuntimeConfig()
    assert strategy(runtime, 1, on_gpu=True) == "alone"
    assert (strategy(runtime, 2, on_gpu=True), strategy(runtime, 2, on_gpu=False)) == ("fsdp", "ddp")
    assert strategy(RuntimeConfig(offload="all"), 2, on_gpu=False) == "fsdp"
    assert strategy(RuntimeConfig(parallel="ddp"), 2, on_gpu=True) == "ddp"


def test_fp16_is_refused_where_ranks_would_scale_the_loss_each_by_itself() -> None:
    with pytest.raises(ConfigError, match="Use bf16"):
        strategy(RuntimeConfig(precision="fp16"), 2, on_gpu=True)
    assert strategy(RuntimeConfig(precision="fp16", parallel="ddp"), 2, on_gpu=True) == "ddp"


def config(**changes: Any) -> SkillTTRLConfig:
    return SkillTTRLConfig.model_validate({"runtime": {"nproc": 2, "device": "cpu"}} | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runtime": {"nproc": 2, "device": "cuda:1"}}, "a single device"),
        ({"runtime": {"nproc": 2, "device": "mps"}}, "a single device"),
        ({"rollout": {"backend": "vllm"}}, "vllm.mode=server"),
        (
            {"runtime": {"nproc": 2, "device": "cpu", "parallel": "fsdp"}, "rollout": {"backend": "my.own:Backend"}},
            "runtime.parallel=ddp",
        ),
    ],
)
def test_what_several_ranks_cannot_do_is_refused_with_the_way_out(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_ranks(config(**changes))


def test_what_they_can_do_passes() -> None:
    server = {"mode": "server", "servers": ["http://127.0.0.1:8000"]}
    for changes in ({}, {"rollout": {"backend": "vllm"}, "vllm": server}, {"rollout": {"backend": "my.own:Backend"}}):
        assert planned_ranks(config(**changes)) == 2
        check_ranks(config(**changes))


@pytest.mark.parametrize(
    ("gpus", "asked", "words"),
    [
        (0, False, "8 ranks .* one GPU each, and torch finds no CUDA device .* --nproc 1 --set runtime.parallel=auto"),
        (1, True, "torch finds one GPU .* --nproc 1 --set runtime.parallel=auto"),
        (3, True, "torch finds 3 GPUs .* --nproc 3;"),
    ],
)
def test_ranks_without_a_gpu_each_are_refused(
    gpus: int, asked: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skill_ttrl.rl.device.gpu_count", lambda: gpus)
    with pytest.raises(ModelError, match=words):
        check_gpus(config(runtime={"nproc": 8}), asked=asked)
    with pytest.raises(ModelError, match="torch finds"):
        check_gpus(config(runtime={"nproc": 8, "device": "cuda"}), asked=asked)


def test_ranks_that_are_asked_for_share_the_cpu_as_far_as_its_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skill_ttrl.rl.device.gpu_count", lambda: 0)
    monkeypatch.setattr("skill_ttrl.stages.setup.checks.free_memory", lambda: 8 * PROCESS_BYTES)
    check_gpus(config(runtime={"nproc": 8}), asked=True)
    check_gpus(config(runtime={"nproc": 8, "device": "cpu"}))
    with pytest.raises(
        ModelError, match=r"9 ranks on the CPU .* need 4.0 GB of memory even without a model; 3.6 GB are free"
    ):
        check_gpus(config(runtime={"nproc": 9}), asked=True)


def test_ranks_that_nothing_starts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"runtime.nproc is 2, but this process runs alone"):
        check_started(config())
    check_started(config(runtime={"nproc": 1}))
