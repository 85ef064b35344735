"""Names that a config calls, and rules that need a backend; what a run is refused for is in tests/integration/test_refusals.py."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import BackendFacts
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.stages.setup.checks import check_ahead, check_constrained, check_names, uncorrected_staleness
from tests.scripted_backend import ScriptedBackend


def test_names_that_no_phase_uses_are_not_looked_up(tiny_yaml: Path) -> None:
    check_names(load_config(tiny_yaml, ["phases=[sft]", "rl.loss=ppo_clp", "collect.agent=randm"]))


@pytest.mark.parametrize(
    ("name", "supports", "trains", "named"),
    [
        ("hf", True, True, None),
        ("vllm", True, False, None),
        ("vllm", True, True, "rollout.backend=vllm"),
        ("openai", False, False, "rollout.backend=openai"),
    ],
)
def test_who_may_sample_constrained_actions_and_learn_from_them(
    tiny_yaml: Path, name: str, supports: bool, trains: bool, named: str | None
) -> None:
    backend: Any = ScriptedBackend(["go"])
    backend.supports_structured_outputs = supports
    config = load_config(tiny_yaml, ["agent.structured_actions=true", f"rollout.backend={name}", "phases=[rl]"])
    with nullcontext() if named is None else pytest.raises(ConfigError, match=named):
        check_constrained(config, backend, trains)


def test_hf_samples_with_a_copy_ahead_of_the_learner_and_servers_as_they_do() -> None:
    assert backend_facts(load_config({}, [])) == BackendFacts(is_learner=True, blocking=True)
    ahead = load_config({}, ["rl.max_staleness=2"])
    check_ahead(ahead)
    assert backend_facts(ahead) == BackendFacts(is_copy=True, blocking=True)
    servers = ["rollout.backend=vllm", "vllm.mode=server", "vllm.servers=[http://h:1]"]
    check_ahead(load_config({}, [*servers, "rl.max_staleness=4"]))
    for wrong in (["rollout.backend=vllm"], ["runtime.nproc=2"]):
        check_ahead(load_config({}, [*wrong, "rl.max_staleness=1", "phases=[sft]"]))  # nothing is rolled out
        with pytest.raises(ConfigError, match="max_staleness=1"):
            check_ahead(load_config({}, [*wrong, "rl.max_staleness=1"]))


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (["rl.max_staleness=1"], False),
        (["rl.max_staleness=1", "rl.rollout_correction=none"], True),
        (["rl.max_staleness=1", "rl.rollout_correction=icepop"], False),
        (["rl.rollout_correction=none"], False),
    ],
)
def test_staleness_without_a_correction_is_warned_of(settings: list[str], warned: bool) -> None:
    assert (uncorrected_staleness(load_config({}, settings)) is not None) == warned
