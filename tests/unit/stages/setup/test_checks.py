"""What a config calls by name: all that nothing has is said at once, before anything is loaded."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skill_ttrl.cli.main import app
from skill_ttrl.config import InvalidConfigError, load_config
from skill_ttrl.errors import ConfigError, EnvError
from skill_ttrl.stages.setup.checks import check_constrained, check_episodes, check_names, with_wrong_names, wrong_names
from skill_ttrl.stages.train import run
from tests.scripted_backend import ScriptedBackend

WRONG = {
    "rl.loss": ("ppo_clp", "ppo_clip"),
    "rl.algorithm": ("grpoo", "grpo"),
    "rl.reward": ("majorty", "majority"),
    "rl.stop_rule": ("entrpy", "entropy"),
    "vote.strategy": ("majorit", "majority"),
    "agent.template": ("boxd", "boxed"),
    "rollout.backend": ("hff", "hf"),
    "skills.embedder": ("hsh", "hash"),
    "skills.merger": ("heuristi", "heuristic"),
    "skills.extractor": ("heurstic", "heuristic"),
    "collect.agent": ("randm", "random"),
    "distill.teacher": ("heuristik", "heuristic"),
    "evolve.teacher": ("heuristc", "heuristic"),
    "eval.controls": ("frst", "first"),
    "data.eval.path": ("synthetic:ad", "add"),
}
"""Key → (a name that nothing has, the one that was meant)."""


def _set(key: str) -> str:
    name = WRONG[key][0]
    return f"{key}=[{name}]" if key == "eval.controls" else f"{key}={name}"


@pytest.mark.parametrize("key", WRONG)
def test_a_name_that_nothing_has_is_answered_with_the_one_that_was_meant(key: str, tiny_skills_yaml: Path) -> None:
    config = load_config(tiny_skills_yaml, ["phases=[collect, distill, sft, rl]", "evolve={}", _set(key)])
    with pytest.raises(
        ConfigError, match=f"'{WRONG[key][0].removeprefix('synthetic:')}'.*Did you mean '{WRONG[key][1]}'"
    ):
        check_names(config)


def test_a_run_says_all_of_them_before_it_makes_a_folder(tiny_skills_yaml: Path, tmp_path: Path) -> None:
    asked = ["phases=[collect, distill, sft, rl]", "evolve={}", *map(_set, WRONG)]
    with pytest.raises(ConfigError, match=f"has {len(WRONG)} problems") as caught:
        run(load_config(tiny_skills_yaml, asked), tmp_path / "run")
    assert all(f"Did you mean '{meant}'" in str(caught.value) for _, meant in WRONG.values())
    assert not (tmp_path / "run").exists()


def test_names_that_no_phase_uses_are_not_looked_up(tiny_yaml: Path) -> None:
    check_names(load_config(tiny_yaml, ["phases=[sft]", _set("rl.loss"), _set("collect.agent")]))


def test_an_environment_that_is_not_there_is_said_with_the_other_names(tiny_yaml: Path) -> None:
    with pytest.raises(EnvError, match="Did you mean 'math'"):
        check_names(load_config(tiny_yaml, ["env.id=maht"]))
    found = [str(error) for error in wrong_names(load_config(tiny_yaml, ["env.id=maht", _set("rl.loss")]))]
    assert len(found) == 2 and "maht" in found[0] and "ppo_clp" in found[1]


def test_the_command_says_wrong_values_and_wrong_names_together(tiny_yaml: Path, tmp_path: Path) -> None:
    asked = ["seed=-1", "rl.stepz=3", _set("rl.loss"), _set("vote.strategy"), "env.id=maht"]
    words = [word for each in asked for word in ("--set", each)]
    done = CliRunner().invoke(app, ["train", str(tiny_yaml), "-o", str(tmp_path / "run"), *words])
    assert isinstance(done.exception, InvalidConfigError) and "has 5 problems" in str(done.exception)
    for part in ("seed: ", "rl.stepz: unknown key", "'ppo_clp'", "'majorit'", "'maht'"):
        assert part in str(done.exception)


@pytest.mark.parametrize(
    "data",
    [
        {"agent": {"context_mode": "windw", "template": "episode"}},  # a template of a turn
        {"agent": {"action_parser": "actions"}, "rl": {"invalid_action_penalty_coef": 0.1}},
        {"phases": ["distill", "rl"]},  # contradicts: no skills section
    ],
)
def test_a_wrong_value_invents_no_wrong_name(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_config(data)
    assert caught.value.rest is not None
    assert str(with_wrong_names(caught.value)) == str(caught.value)


def test_names_of_a_run_s_own_config_that_is_wrong_are_not_looked_up(tmp_path: Path) -> None:
    """They may import code, and nobody has looked whose run it is."""
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("seed: -1\nenv: {id: 'evil:Evil-v0'}\n")
    with pytest.raises(InvalidConfigError) as caught:
        load_config(tmp_path)
    assert caught.value.rest is None


@pytest.mark.parametrize(
    ("name", "supports_structured_outputs", "trains", "words"),
    [
        ("hf", True, True, None),
        ("vllm", True, False, None),
        ("vllm", True, True, "vllm works for evaluation only"),
        ("openai", False, False, "openai cannot. Use hf or vllm"),
    ],
)
def test_what_the_learner_samples_itself_may_be_constrained_in_training(
    tiny_yaml: Path, name: str, supports_structured_outputs: bool, trains: bool, words: str | None
) -> None:
    config = load_config(tiny_yaml, ["agent.structured_actions=true", f"rollout.backend={name}"])
    backend = ScriptedBackend(["go"])
    backend.supports_structured_outputs = supports_structured_outputs
    with nullcontext() if words is None else pytest.raises(ConfigError, match=words):
        check_constrained(config, backend, trains)


def test_whole_actions_are_drawn_where_no_rl_learns_from_them(tiny_yaml: Path, tiny_model: tuple[Any, Any]) -> None:
    from skill_ttrl.llm.hf import HFBackend

    settings = ["agent.structured_actions=true", "agent.structured_by=actions"]
    backend = HFBackend(*tiny_model)
    check_constrained(load_config(tiny_yaml, settings), backend, trains=False)
    check_constrained(load_config(tiny_yaml, [*settings, "phases=[sft]"]), backend, trains=True)
    with pytest.raises(ConfigError, match="without RL only"):
        check_constrained(load_config(tiny_yaml, [*settings, "phases=[rl]"]), backend, trains=True)
    with pytest.raises(ConfigError, match="Use hf, or"):
        check_constrained(load_config(tiny_yaml, settings), ScriptedBackend(["go"]), trains=False)


def test_a_teacher_s_thoughts_are_for_single_steps() -> None:
    own = ["demonstrations.rationale=openai"]
    check_episodes(load_config("quickstart_skills_alfworld", own))
    with pytest.raises(ConfigError, match="needs single steps"):
        check_episodes(load_config("quickstart_alfworld", own))
