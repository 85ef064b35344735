"""Seconds of a step's parts: measured figures come out again, and formulas are held against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.models.model_config import published_config
from skill_ttrl.rl.memory import DecoderShape, read_shape
from skill_ttrl.rl.speed import DEVICES, PLANNED
from skill_ttrl.stages.planning.cost import (
    communication_seconds,
    decoding,
    training_operations,
    training_share,
    transfer_seconds,
    update_seconds,
)
from skill_ttrl.stages.planning.machine import Machine, arrange, find_gpu
from skill_ttrl.stages.planning.workload import Lengths, bounds, count

SHAPE = DecoderShape(2, 8, 16, 8, 4, 2, 100, 1000, 600, 0)
"""2 layers of width 8, 1,000 parameters."""


def config(*overrides: str) -> SkillTTRLConfig:
    return load_config("ttrl_qwen2.5_math_7b", list(overrides))


def test_operations_of_a_token_are_six_a_weight_and_those_of_attention() -> None:
    assert training_operations(SHAPE, 10.0) == 6 * 1000 + 6 * 2 * 8 * 10
    assert training_operations(replace(SHAPE, adapters=10), 10.0) == 4 * 1000 + 6 * 2 * 8 * 10


@pytest.mark.parametrize(("model", "tokens_per_second"), [("0.5B-Instruct", 38_300), ("1.5B-Instruct", 26_200)])
def test_measured_updates_of_the_h100_come_out_again(model: str, tokens_per_second: float) -> None:
    """docs/speed-results.md, "On a GPU"; the attention of 1,040 tokens is on top of the 6 N that the share is measured with."""
    shape = read_shape(published_config(f"Qwen/Qwen2.5-{model}"), None)
    settings = config(
        "rl.kl_coef=0", "model.gradient_checkpointing=false", "rl.mini_batch_size=null", "rl.prompts_per_step=1"
    )
    work = count(settings, Lengths(1, 512, (528.0,), 1040))
    assert work.trained == 32 and work.passes == 1
    found = work.trained_tokens / update_seconds(settings, shape, Machine(PLANNED, 1), work)
    assert found == pytest.approx(tokens_per_second, rel=0.15)


def test_decoding_with_hf_is_as_slow_as_it_was_measured() -> None:
    """256 rounds of 24 layers took 18.6 s on an H100."""
    settings = config()
    round_ = decoding(settings, replace(SHAPE, layers=24), Machine(PLANNED, 1), count(settings, bounds(settings)))
    assert 256 * round_.fixed == pytest.approx(18.6, rel=0.02)


def test_a_round_reads_the_weights_once_and_each_row_its_cache() -> None:
    settings = config("rollout.backend=vllm")
    work = count(settings, bounds(settings, tokens=100))
    found = decoding(settings, SHAPE, Machine(PLANNED, 8, tensor_parallel=2), work)
    memory = 0.5 * 3.35e12 * 2
    assert found.fixed == 0
    assert found.read == pytest.approx(2 * 1000 / memory)
    assert found.row_read == pytest.approx(2 * 4 * 2 * 2 * (512 + 50) / memory)
    assert found.row_compute == pytest.approx(2 * 1000 / (0.5 * 989e12 * 2))
    assert found.row_prompt * 100 * 64 == pytest.approx(2 * 1000 * 512 / (0.5 * 989e12 * 2))  # a group reads it once


def test_sharded_ranks_gather_twice_and_scatter_once_a_micro_batch() -> None:
    machine = Machine(PLANNED, 8, nodes=1)
    sharded = communication_seconds(config(), SHAPE, machine, micro_batches=3, updates=2)
    assert sharded == pytest.approx(3 * (2 * 2 + 4) * 1000 * 7 / 8 / (0.5 * 450e9))
    once = communication_seconds(config("runtime.reshard_after_forward=false"), SHAPE, machine, 3, 2)
    assert once == pytest.approx(sharded * 6 / 8)
    ddp = communication_seconds(config("runtime.parallel=ddp"), SHAPE, machine, 3, 2)
    assert ddp == pytest.approx(2 * 2 * 4 * 1000 * 7 / 8 / (0.5 * 450e9))
    assert communication_seconds(config(), SHAPE, Machine(PLANNED, 1), 3, 2) == 0
    across = communication_seconds(config(), SHAPE, Machine(PLANNED, 8, nodes=2), 3, 2)
    assert across == pytest.approx(sharded * 450 / 50)


def test_new_weights_travel_over_the_slowest_link() -> None:
    apart = Machine(PLANNED, 16, nodes=2, rollout_gpus=8)
    assert transfer_seconds(config(), SHAPE, Machine(PLANNED, 1)) == 0
    gathered = transfer_seconds(config(), SHAPE, Machine(PLANNED, 8))
    assert gathered == pytest.approx(2 * 1000 * 7 / 8 / (0.5 * 450e9))
    assert transfer_seconds(config(), SHAPE, apart) == pytest.approx(gathered + 2 * 1000 / (0.5 * 50e9))
    lora = config("model.lora={}", "rollout.backend=vllm", "vllm.weight_sync=lora")
    assert transfer_seconds(lora, replace(SHAPE, adapters=10), apart) == pytest.approx(2 * 10 / (0.5 * 50e9))


def test_a_mini_batch_of_fewer_sequences_than_ranks_gains_nothing_from_more_ranks() -> None:
    settings = config("rl.kl_coef=0", "runtime.parallel=ddp")
    work = count(settings, bounds(settings))  # 8 updates of 32 sequences
    times = [update_seconds(settings, SHAPE, Machine(PLANNED, gpus), work) for gpus in (1, 2, 32, 64)]
    assert times[0] == pytest.approx(2 * times[1], rel=0.01) and times[2] <= times[3]


def test_shares_of_sizes_that_nobody_measured_are_those_of_the_nearest() -> None:
    assert training_share(10**6) == training_share(494_000_000) == pytest.approx(0.114)
    assert training_share(10**11) == pytest.approx(0.245)
    assert 0.114 < training_share(10**9) < 0.245


@pytest.mark.parametrize("name", ["h100", "H200", "a100-80", "A100 80GB", "rtx 4090", "4090", "l40s", "b200"])
def test_gpus_are_found_by_what_users_call_them(name: str) -> None:
    found = find_gpu(name)
    assert found is not None and found.name.split()[-1].lower() in name.lower()


def test_a_gpu_that_is_not_in_the_table_is_an_error_with_those_that_are() -> None:
    assert find_gpu("cpu") is None
    with pytest.raises(ConfigError, match=r"tpu.*H200, H100, A100"):
        find_gpu("tpu")
    assert all(device.link > 0 for device in DEVICES)


def test_gpus_are_shared_out_as_asked_or_as_the_config_has_servers() -> None:
    assert arrange(config(), PLANNED, 8, 2, None) == Machine(PLANNED, 8, 2)
    assert arrange(config(), PLANNED, 8, 2, 6).replicas == 6
    served = ["rollout.backend=vllm", "vllm.mode=server", "vllm.servers=['http://a:1','http://b:1']"]
    machine = arrange(config(*served, "vllm.tensor_parallel_size=2"), PLANNED, 8, 1, None)
    assert (machine.rollout_gpus, machine.learner_gpus, machine.replicas) == (4, 4, 2)
    with pytest.raises(ConfigError, match=r"vllm.servers names 2 replicas of 4 GPUs.*--gpus 8"):
        arrange(config(*served, "vllm.tensor_parallel_size=4"), PLANNED, 8, 1, None)


@pytest.mark.parametrize(
    ("gpus", "nodes", "rollout_gpus", "words"),
    [
        (0, 1, None, "at least 1"),
        (8, 0, None, "at least 1"),
        (8, 3, None, "--nodes 3 does not divide it"),
        (8, 1, 8, "--rollout-gpus 8 and the learner do not fit"),
        (8, 1, 9, "at most 7"),
        (8, 1, -1, "--rollout-gpus -1"),
    ],
)
def test_gpus_that_cannot_be_shared_out_are_refused(
    gpus: int, nodes: int, rollout_gpus: int | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        arrange(config(), PLANNED, gpus, nodes, rollout_gpus)


def test_replicas_that_do_not_come_out_even_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size"):
        arrange(config("rollout.backend=vllm", "vllm.tensor_parallel_size=2"), PLANNED, 9, 1, 3)
    with pytest.raises(ConfigError, match="share the cores"):
        arrange(config(), None, 2, 1, 1)
