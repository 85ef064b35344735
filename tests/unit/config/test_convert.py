"""Configs of the two published systems become configs of ours: values, defaults of theirs, and every key that has no counterpart."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.compat.convert import convert
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.train.defaults import with_defaults

FIRST = """
data: {train_files: [a.json, b.json], val_files: [], max_prompt_length: 600, train_batch_size: 4, shuffle: true}
model: {path: Qwen/Qwen2.5-Math-1.5B, dtype: float16, lora_rank: 8, lora_alpha: 16}
rollout: {engine: hf, temperature: 0.7, top_p: 0.95, max_tokens: 2048, n_votes_per_prompt: 8, n_samples_per_prompt: 4}
algorithm: {adv_estimator: reinforce_pp, clip_ratio: 0.1, clip_ratio_high: 4.0, use_kl_loss: false, kl_coef: 0.5}
skill_bank: {retrieval_mode: keyword, top_k_retrieve: 5, eviction_window: 40, enable_retrieve: false, enable_evolve: false}
merger: {model: gpt-4o, api_key: very-secret, api_base: "http://localhost:1/v1"}
trainer: {total_epochs: 40, save_freq: 5, learning_rate: 1e-6, output_dir: out, n_gpus: 2, lerning_rate: 1}
"""
RUST = """
{"sft": {"learning_rate": 2e-4, "batch_size": 16, "epochs": 3},
 "rl": {"batch_size": 32, "group_size": 4, "kl_coeff": 0.02, "clip_epsilon": 0.1, "training_epochs": 9},
 "skill_retrieval": {"top_k": 3, "similarity_threshold": 0.5},
 "evolution": {"validation_interval": 7, "max_analysis_deep": 9},
 "model": {"policy_api_base": "http://localhost:8000/v1", "policy_model_id": "m", "teacher_model_id": "t", "teacher_api_key": "very-secret"}}
"""


@pytest.fixture
def first(tmp_path: Path) -> Path:
    (tmp_path / "first one.yaml").write_text(FIRST)
    return tmp_path / "first one.yaml"


@pytest.fixture
def rust(tmp_path: Path) -> Path:
    (tmp_path / "rust.json").write_text(RUST)
    return tmp_path / "rust.json"


def test_the_first_skill_ttrl(first: Path) -> None:
    found = convert(first)
    config = found.config
    assert config.name == "first_one" and found.system == "the first Skill-TTRL" and config.seed == 42
    assert config.data.train is not None and config.data.train.path == ["a.json", "b.json"]
    assert config.data.eval is None and config.data.max_prompt_tokens == 600 and config.rl.prompts_per_step == 4
    assert config.model.lora is not None and (config.model.lora.r, config.model.lora.alpha) == (8, 16)
    assert config.runtime.precision == "fp16" and config.runtime.nproc == 2
    rollout = config.rollout
    assert (rollout.backend, rollout.temperature, rollout.top_p, rollout.max_new_tokens) == ("hf", 0.7, 1.0, 2048)
    assert (config.eval.temperature, config.eval.top_p, config.eval.samples) == (0.7, 0.95, 8)
    assert config.rl.algorithm == {"type": "reinforce_plus_plus"}
    assert config.rl.loss == {"type": "ppo_clip", "clip_ratio": 0.1, "dual_clip": 4.0} and config.rl.kl_coef == 0
    skills = config.skills
    assert skills is not None and (skills.retrieval, skills.fallback, skills.prompt_top_k) == (
        "keyword",
        "most_useful",
        5,
    )
    assert (skills.stale_after_steps, skills.max_retrievals) == (40, 0)
    assert (skills.merger, skills.on_failure) == ("openai", "heuristic")
    merger = config.endpoints.of("merger")
    assert merger is not None and (merger.model, merger.max_tokens, merger.temperature) == ("gpt-4o", 2048, 0.3)
    assert config.rl.total_epochs == 40 and config.rl.warmup_steps == 0.05 and config.rl.learning_rate == 1e-6


def test_keys_without_a_counterpart_are_named_and_no_key_of_a_server_is_written(first: Path) -> None:
    found = convert(first)
    missing = found.without_counterpart
    assert [*missing] == [
        "data.shuffle",
        "skill_bank.enable_evolve",
        "merger.api_key",
        "trainer.save_freq",
        "trainer.output_dir",
        "trainer.lerning_rate",
    ]
    assert "Did you mean 'trainer.learning_rate'" in missing["trainer.lerning_rate"]
    assert {*found.different} == {"rollout.top_p", "algorithm.clip_ratio_high"}
    assert "very-secret" not in found.text() + repr(found)


def test_skillrl_in_rust(rust: Path) -> None:
    found = convert(rust)
    config, skills, evolve = found.config, found.config.skills, found.config.evolve
    assert config.phases == ["collect", "distill", "sft", "rl"] and config.env.id == "alfworld"
    assert (config.sft.learning_rate, config.sft.batch_size, config.sft.steps) == (2e-4, 16, 1407)  # 3 x 7500 / 16
    assert (config.rl.prompts_per_step, config.rl.steps, config.rl.kl_coef, config.rl.reward) == (32, 9, 0.02, "env")
    assert config.rollout.n_votes_per_prompt == config.rollout.n_samples_per_prompt == 4
    assert config.rl.loss["clip_ratio"] == 0.1 and config.rl.invalid_action_penalty_coef == 0.1
    assert skills is not None and (skills.prompt_top_k, skills.min_score) == (3, 0.5)
    assert evolve is not None and (
        evolve.every,
        evolve.max_failures_below_threshold,
        evolve.max_failures_above_threshold,
        evolve.threshold,
    ) == (7, 9, 5, 0.4)
    policy, teacher = config.endpoints.of("policy"), config.endpoints.of("teacher")
    assert (
        policy is not None
        and (policy.model, config.model.path) == ("m", "m")
        and teacher is not None
        and teacher.model == "t"
    )
    assert [*found.without_counterpart] == ["model.teacher_api_key"] and "very-secret" not in found.text()


@pytest.mark.parametrize("name", ["first", "rust"])
def test_what_is_written_is_the_config_and_names_these_keys(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    file: Path = request.getfixturevalue(name)
    found = convert(file, tmp_path / "ours.yaml")
    assert load_config(tmp_path / "ours.yaml") == found.config
    head = [line for line in (tmp_path / "ours.yaml").read_text().splitlines() if line.startswith("# ")]
    assert len(head) == 1 + len(found.without_counterpart) + len(found.different)
    with pytest.raises(RunFolderError, match="exists already"):
        convert(file, tmp_path / "ours.yaml")


def test_defaults_of_theirs_count_where_a_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("skill_bank: {}\ntrainer: {seed: 1}\nmerger: {model: null}\n")
    found = convert(tmp_path / "a.yaml")
    assert [*found.without_counterpart] == ["data.train_files"]
    config = found.config
    assert config.rollout.backend == "vllm" and config.rollout.temperature == 0.6 and config.rl.total_epochs == 80
    assert config.skills is not None and config.skills.merger == "heuristic" and config.endpoints.of("merger") is None
    assert config.model.lora is None and config.runtime.nproc is None and config.skills.fallback == "none"
    (tmp_path / "b.yaml").write_text("algorithm: {adv_estimator: gae}\n")
    assert convert(tmp_path / "b.yaml").config.rl.critic is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rl: {steps: 3}", "found the keys: rl"),
        ("rollout: {temperature: hot}\ntrainer: {seed: 1}", "rollout.temperature"),
        ("trainer: {total_epochs: 0}", "rl.total_epochs"),
        ("algorithm: {adv_estimator: nothing}", "nothing"),
        ("algorithm: {norm_adv_by_std: [1]}", "scale_rewards"),
        ("merger: {api_base: 'http://me:secret@host/v1'}", "merger.base_url"),
        ("- a", "must contain keys and values"),
    ],
)
def test_bad_files_are_refused_and_nothing_is_written(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"(?s){problem}") as raised:
        convert(tmp_path / "a.yaml", tmp_path / "ours.yaml")
    assert "secret" not in str(raised.value) and not (tmp_path / "ours.yaml").exists()


def test_epochs_become_steps() -> None:
    config = load_config(
        {"data": {"train": {"path": "synthetic:add"}}, "rl": {"total_epochs": 3, "prompts_per_step": 8}}
    )
    done = with_defaults(config)
    tasks = with_defaults(
        load_config({"data": {"train": {"path": "synthetic:add"}}, "rl": {"total_epochs": 1, "prompts_per_step": 1}})
    ).rl.steps
    assert done.rl.steps == 3 * (tasks // 8) and done.rl.total_epochs is None and with_defaults(done) == done
    few = load_config({"data": {"train": {"path": "synthetic:add", "limit": 2}}, "rl": {"total_epochs": 3}})
    assert with_defaults(few).rl.steps == 3
    with pytest.raises(ConfigError, match=r"Set rl\.steps"):
        with_defaults(load_config({"data": {"train": {"path": "hf:a/b"}}, "rl": {"total_epochs": 3}}))
