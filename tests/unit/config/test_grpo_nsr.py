"""The published verl command of GRPO-NSR on TTRL: every override is in docs/coming-from.md, and the config says what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.stages.doctor.plan import plan
from skill_ttrl.stages.setup.checks import load_checked, wrong_names

ROOT = Path(__file__).parents[3]
NAME = "grpo_nsr_ttrl_qwen2.5_math_1.5b"
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
# As published, paths left out.
COMMAND = """
data.train_files data.val_files data.max_prompt_length=1024 data.max_response_length=3072 data.train_batch_size=32
data.filter_overlong_prompts=True data.truncation=error
model.path model.enable_gradient_checkpointing=True model.use_remove_padding=True
actor.ppo_mini_batch_size=1 actor.ppo_micro_batch_size_per_gpu=2 actor.use_kl_loss=True actor.optim.lr=5e-7
actor.optim.lr_warmup_steps_ratio=0.03 actor.optim.warmup_style=cosine actor.fsdp_config.param_offload=False
actor.fsdp_config.optimizer_offload=False actor.ppo_max_token_len_per_gpu=4096
ref.log_prob_micro_batch_size_per_gpu=2 ref.fsdp_config.param_offload=True
rollout.name=vllm rollout.n=32 rollout.max_model_len=4096 rollout.max_num_batched_tokens=4096
critic.optim.lr=9e-6 critic.model.use_remove_padding=True critic.model.path critic.model.enable_gradient_checkpointing=True
critic.ppo_micro_batch_size_per_gpu=2
algorithm.kl_ctrl.kl_coef=0.0 algorithm.adv_estimator=grpo_nsr custom_reward_function.path
ttrl.enable=True ttrl.n_votes_per_prompt=64 ttrl.n_samples_per_prompt=32
trainer.logger=[console,wandb] trainer.project_name trainer.experiment_name=test trainer.n_gpus_per_node=8 trainer.nnodes=1
trainer.save_freq=40 trainer.test_freq=5 trainer.default_local_dir trainer.total_epochs=1000
""".split()


def rows() -> list[list[str]]:
    """Cells of the table of overrides."""
    table = PAGE[PAGE.index("### The published command") : PAGE.index("## From skillrl")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| `")
    ]


def test_every_override_of_the_command_has_its_row() -> None:
    named = " ".join(row[0] for row in rows())
    assert [each for each in COMMAND if each not in named] == []


def test_the_config_has_the_values_of_the_table() -> None:
    config = load_config(NAME)
    checked = 0
    for row in rows():
        for key, value in re.findall(r"`([a-z_.]+): ([^`]+)`", row[1]):
            found: Any = config
            for part in key.split("."):
                found = found[part] if isinstance(found, dict) else getattr(found, part)
            if value.startswith("[") or key == "run.report_to":
                continue
            assert str(found) == str(load_value(value)), key
            checked += 1
    assert checked >= 28
    assert config.rl.algorithm["type"] == "grpo_nsr" and config.data.train is not None and config.data.eval is not None


def load_value(text: str) -> Any:
    """A value as YAML has it; 5e-7 is a number."""
    import yaml

    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


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
    found = plan(config)
    gpus, *others = [each for each in found.obstacles if not each.startswith("The model Qwen/Qwen2.5-Math-1.5B is no")]
    assert found.exit_code == 5 and "8 ranks (runtime.nproc), which take a GPU each" in gpus
    if changes:
        assert others == []
    else:
        assert len(others) == 1 and others[0].startswith("vllm server http://127.0.0.1:8000 and 7 more, up to")
    assert found.phases[0].episodes == 1000 * 32 * 64
    assert list(wrong_names(config)) == []
