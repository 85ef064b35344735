"""The published verl command of GRPO-NSR on TTRL: the config has the values of its overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands.dry_run import dry_run
from skill_ttrl.config import load_config, parse_override
from skill_ttrl.train.defaults import load_checked

ROOT = Path(__file__).parents[3]
NAME = "grpo_nsr_ttrl_qwen2.5_math_1.5b"
VALUES = """
data.max_prompt_tokens: 1024
rollout.max_new_tokens: 3072
rl.prompts_per_step: 32
model.gradient_checkpointing: true
model.packing: auto
rl.mini_batch_size: 1
rl.micro_batch_size: 2
rl.kl_coef: 0.001
rl.learning_rate: 5e-7
rl.warmup_steps: 0.03
rl.lr_scheduler: cosine
rollout.backend: vllm
vllm.mode: server
rollout.n_samples_per_prompt: 32
vllm.max_model_len: 4096
rl.kl_in_reward: null
rl.algorithm.type: grpo_nsr
env.id: math
rl.reward: majority
rollout.n_votes_per_prompt: 64
runtime.nproc: 8
runtime.parallel: fsdp
rl.save_steps: 40
rl.eval_steps: 5
rl.steps: 1000
"""
"""Our settings for the overrides of the command, as published."""


def test_the_config_has_the_values_of_the_command() -> None:
    config = load_config(NAME)
    for line in filter(None, VALUES.split("\n")):
        keys, value = parse_override(line.replace(": ", "=", 1))
        found: Any = config
        for key in keys:
            found = found[key] if isinstance(found, dict) else getattr(found, key)
        assert found == value, keys
    assert config.rl.algorithm["type"] == "grpo_nsr" and config.data.train is not None and config.data.eval is not None


@pytest.fixture
def in_a_folder_with_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder has problems in verl's layout where the config looks for them."""
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path / "data" / "MATH-TTT"
    folder.mkdir(parents=True)
    for name, questions in (("train", ["Compute 6*7."] * 32), ("test", [f"Compute {n}+5." for n in range(20)])):
        chats = [[{"role": "user", "content": each}] for each in questions]
        table = {"prompt": chats, "reward_model": [{"style": "rule", "ground_truth": "42"}] * len(chats)}
        pyarrow.parquet.write_table(pyarrow.Table.from_pydict(table), folder / f"{name}.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("changes", [[], ["rollout.backend=hf"]])
def test_the_config_passes_the_checks_and_a_dry_run_names_what_is_not_here(
    changes: list[str], in_a_folder_with_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skill_ttrl.rl.device.gpu_count", lambda: 0)
    config = load_checked(NAME, changes)
    found = dry_run(config)
    gpus, *others = [each for each in found.obstacles if "'Qwen/Qwen2.5-Math-1.5B'" not in each]
    assert found.exit_code == 5 and "8 ranks (runtime.nproc) need one GPU each" in gpus
    if changes:
        assert others == []
    else:
        assert len(others) == 8 and all(each.startswith("vllm server http://127.0.0.1:80") for each in others)
    assert found.phases[0].samples == 1000 * 32 * 64
