"""Rules that depend on the machine, and what a rule leaves alone; what a run is refused for is in tests/integration/test_refusals.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import RuntimeConfig, SkillTTRLConfig, load_config
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import BackendFacts
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.rl.parallel.launch import strategy
from skill_ttrl.train.rules import Rules, uncorrected_staleness

SERVERS = ["rollout.backend=vllm", "vllm.mode=server", "vllm.servers=[http://h:1]"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["phases=[sft]", "rl.loss=ppo_clp", "collect.agent=randm"],  # names that no phase uses
        ["phases=[rl]", "rl.max_staleness=2"],
        ["phases=[rl]", "rl.algorithm=dapo", "rl.loss=gspo"],
        ["phases=[rl]", "rl.max_staleness=4", *SERVERS],
        ["phases=[sft]", "rl.max_staleness=1", "runtime.nproc=2", "runtime.device=cpu"],  # nothing is rolled out
        ["phases=[rl]", "runtime.nproc=2", "runtime.device=cpu", *SERVERS],
        ["scale.address=auto", "rollout.prompts_per_batch=1"],
    ],
)
def test_what_can_be_run_is_not_refused(tiny_yaml: Any, overrides: list[str]) -> None:
    assert not [*Rules(load_config(tiny_yaml, overrides)).refusals()]


def test_hf_samples_with_a_copy_ahead_of_the_learner() -> None:
    assert backend_facts(load_config({}, [])) == BackendFacts(is_learner=True, blocking=True, structured=True)
    ahead = load_config({}, ["rl.max_staleness=2"])
    assert backend_facts(ahead) == BackendFacts(is_copy=True, blocking=True, structured=True)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (["rl.max_staleness=1"], False),
        (["rl.max_staleness=1", "rl.rollout_correction=none"], True),
        (["rl.max_staleness=1", "rl.rollout_correction=token_truncate"], False),
        (["rl.rollout_correction=none"], False),
    ],
)
def test_staleness_without_a_correction_is_warned_of(settings: list[str], warned: bool) -> None:
    assert (uncorrected_staleness(load_config({}, settings).rl, ["rl"]) is not None) == warned


def test_ranks_hold_shards_on_gpus_and_everything_on_a_cpu() -> None:
    runtime = RuntimeConfig()
    assert strategy(runtime, 1, on_gpu=True) == "alone"
    assert (strategy(runtime, 2, on_gpu=True), strategy(runtime, 2, on_gpu=False)) == ("fsdp", "ddp")
    assert strategy(RuntimeConfig(parallel="ddp", precision="fp16"), 2, on_gpu=True) == "ddp"


def ranks(**runtime: Any) -> SkillTTRLConfig:
    return SkillTTRLConfig.model_validate({"runtime": runtime})


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
    for device, expected in (("auto", words), ("cuda", "torch finds")):
        rules = Rules(ranks(nproc=8, device=device), asks_ranks=asked)
        assert re.search(expected, " ".join(map(str, rules._of_processes())))


def test_ranks_that_nothing_starts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runtime.nproc is 2, but this process runs alone"):
        train.run(ranks(nproc=2), tmp_path)
