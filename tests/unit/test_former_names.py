"""Former names in what users wrote themselves: each is answered by an error that names the present one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skill_ttrl.envs.lookup import make_env
from skill_ttrl.errors import ConfigError, EnvError
from skill_ttrl.llm.backends import BACKENDS, make_backend
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.runs.episode_logs import read_identity
from skill_ttrl.voting import requires
from skill_ttrl.voting.strategies import STRATEGIES


def test_an_option_of_reset() -> None:
    with pytest.raises(EnvError, match="no option 'reference': it is now 'ground_truth'"):
        make_env("math").reset(options={"question": "1+1?", "reference": "2"})


def test_members_of_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(**dict.fromkeys(("generate", "encode", "count", "sync", "rest", "close")))
    context: Any = SimpleNamespace(settings=SimpleNamespace(rollout=SimpleNamespace(backend="old")))
    monkeypatch.setattr(BACKENDS, "get", lambda name: lambda context: old)
    with pytest.raises(ConfigError, match=r"sync is now update_weights; rest is now sleep\."):
        make_backend(context)


def test_an_attribute_of_a_voting_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(ballot: Any) -> Any: ...

    mine.needs = ("logprobs",)  # type: ignore[attr-defined]
    monkeypatch.setattr(STRATEGIES, "get", lambda name: mine)
    with pytest.raises(ConfigError, match="attribute needs, which is now requires"):
        requires("mine")


@pytest.mark.parametrize(("old", "new"), [("skills_cold", "skills_empty"), ("nothing_found", "no_results")])
def test_a_prompt_template(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / f"{old}.md").write_text("$question")
    with pytest.raises(ConfigError, match=f"{old} is now {new}"):
        Templates(str(tmp_path))


def test_an_identity_file_is_read_under_the_present_names(tmp_path: Path) -> None:
    made = '{"tries": 3, "kwargs": {"tries": 2}, "draws": {"sample": {"tries": 4}}}'
    (tmp_path / "samples.json").write_text(f'{{"schema_version": 1, "made_with": {made}}}')
    found = read_identity(tmp_path)["made_with"]
    assert found["rollouts_per_task"] == 3 and found["draws"]["sample"] == {"rollouts_per_task": 4}
    assert found["kwargs"] == {"tries": 2}, "arguments of an environment are not ours"
