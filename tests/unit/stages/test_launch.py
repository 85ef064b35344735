"""`train`, `sft` and `rl` with a bank, a model or an environment can be called without the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.errors import ConfigError
from skill_ttrl.stages.launch import Options, free_folder, launch, launch_rl, launch_sft


def test_options_come_after_overrides_and_a_phase_stands_alone(tiny_yaml: Path) -> None:
    found = launch(str(tiny_yaml), Options(["seed=4", "rl.steps=2"], seed=5), phase="rl")
    config = found.load()
    assert (config.seed, config.rl.steps, config.phases) == (5, 2, ["rl"])
    assert found.folder(config) == Path("runs") / config.name


def test_without_a_recipe_something_must_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="what to learn from"):
        launch_sft(None, Options())
    with pytest.raises(ConfigError, match="folder has no episodes"):
        launch_sft(None, Options(), bank=tmp_path / "bank")
    with pytest.raises(ConfigError, match="folder has no run of skillttrl sft"):
        launch_rl(None, Options(), bank=tmp_path / "bank")


def test_a_bank_s_runs_stand_in_its_folder_and_are_numbered(tiny_skills_yaml: Path, tmp_path: Path) -> None:
    found = launch_rl(str(tiny_skills_yaml), Options(), bank=tmp_path / "bank")
    assert found.folder(found.load()) == tmp_path / "rl"
    (tmp_path / "rl").mkdir()
    assert free_folder(tmp_path / "rl", None) == tmp_path / "rl-2"
    assert free_folder(tmp_path / "rl", "auto") == tmp_path / "rl"
