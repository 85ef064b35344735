"""Every shipped recipe: valid, and honest on whether anybody has run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skill_ttrl.cli.configs import _verified_on
from skill_ttrl.config import load_config, read_config_text, recipe_names, settings_digest, verified_note


@pytest.mark.parametrize("name", recipe_names())
def test_what_a_recipe_says_of_its_run_is_of_these_very_settings(name: str) -> None:
    config = load_config(name)
    assert config.name == name and ("Waits for:" in read_config_text(name)[0]) == (config.requires is not None)
    if config.verified is not None:
        digest = settings_digest(config)
        assert config.verified["config_digest"] == digest, f"run {name} again, and put in its config_digest: {digest}"
        assert re.fullmatch(
            r"hardware: .+; date: [\d-]{10}; wall time: .+; peak memory: .+; result: .+", verified_note(config)
        )
        assert _verified_on(verified_note(config)) == config.verified["date"]


def test_a_changed_copy_is_not_verified_and_a_run_s_own_config_is(tmp_path: Path) -> None:
    config = load_config("quickstart")
    kept = tmp_path / "config.yaml"
    kept.write_text(config.to_yaml().replace("revision: null", "revision: abc"))
    for same in (load_config(kept), load_config("quickstart", ["seed=3", "name=mine", "run.report_to=tensorboard"])):
        assert verified_note(same) == verified_note(config) != "untested"
    changed = load_config("quickstart", ["rl.steps=21"])
    assert verified_note(changed).startswith("untested with these settings (changed")
    assert verified_note(load_config({})) == "untested"


def test_7b_recipe_has_ttrl_s_published_settings() -> None:
    config = load_config("ttrl_qwen2.5_math_7b")
    rollout, rl, evaluation = config.rollout, config.rl, config.eval
    assert (rollout.n_votes_per_prompt, rollout.n_samples_per_prompt, rollout.temperature) == (64, 32, 1.0)
    assert (rollout.max_new_tokens, config.data.max_prompt_tokens) == (3072, 512)
    assert (rl.prompts_per_step, rl.mini_batch_size, rl.ppo_epochs, rl.learning_rate) == (8, 1, 1, 5e-7)
    assert rl.loss == {"type": "ppo_clip", "clip_ratio": 0.2, "dual_clip": 3.0}
    assert (rl.kl_coef, rl.entropy_coef) == (0.001, 0.0)
    assert (evaluation.samples, evaluation.temperature, evaluation.top_p) == (16, 0.6, 0.95)
    assert (config.runtime.nproc, config.runtime.parallel, config.requires) == (8, "fsdp", None)


@pytest.mark.parametrize("name", ["skillrl_alfworld", "skillrl_webshop"])
def test_skillrl_recipes_have_the_paper_s_settings(name: str) -> None:
    config = load_config(name)
    rl, evolve, sft = config.rl, config.evolve, config.sft
    assert config.model.path == "Qwen/Qwen2.5-7B-Instruct" and config.phases == ["collect", "distill", "sft", "rl"]
    assert (sft.learning_rate, sft.batch_size) == (1e-4, 16)
    assert sft.steps * sft.batch_size == pytest.approx(3 * (config.demonstrations.examples or 0), rel=0.01)
    assert config.demonstrations.examples == (7500 if name == "skillrl_alfworld" else 2400)
    assert (rl.learning_rate, rl.kl_coef, rl.invalid_action_penalty_coef, rl.steps) == (
        1e-6,
        0.01,
        0.1,
        150,
    )
    assert (rl.prompts_per_step, config.rollout.n_samples_per_prompt, rl.eval_steps) == (16, 8, 5)
    assert evolve is not None
    assert (
        evolve.every,
        evolve.threshold,
        evolve.max_failures_below_threshold,
        evolve.max_failures_above_threshold,
        evolve.max_new_skills,
    ) == (5, 0.4, 10, 5, 3)
    assert config.skills is not None
    assert config.skills.min_score == 0.4
    assert (config.agent.history_length, config.agent.max_turns) == (2, 50 if name == "skillrl_alfworld" else 15)
    assert (config.eval.temperature, config.env.kwargs["reward"]) == (0.4, 10.0)
    assert config.requires is None and (config.runtime.nproc, config.runtime.parallel) == (8, "fsdp")
