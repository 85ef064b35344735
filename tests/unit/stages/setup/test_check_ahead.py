"""Settings with which rollouts cannot run ahead are refused before anything is sampled, each with what to change."""

from __future__ import annotations

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import BackendFacts
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.hf import HFBackend
from skill_ttrl.stages.setup.checks import check_ahead, uncorrected_staleness


class Shares(HFBackend):
    """A backend of a user's own that samples with the learner's model."""


REFUSED = {
    "vllm.mode=server": ["rollout.backend=vllm"],
    "is_learner": [f"rollout.backend={__name__}:Shares"],
    "enable_sleep_mode": [
        "rollout.backend=vllm", "vllm.mode=server", "vllm.servers=[http://h:1]", "vllm.enable_sleep_mode=true",
    ],
    "runtime.nproc=1": ["runtime.nproc=2"],
    "rl.dynamic_sampling": ["rl.dynamic_sampling={}"],
    "skills.gate": ["skills={gate: {}}"],
    "versions_per_group": ["skills={versions_per_group: 2}"],
    "Set it to drop": [
        "rollout.backend=vllm", "vllm.mode=server", "vllm.servers=[http://h:1]", "rollout.kv_cache_on_update=keep",
    ],
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_run_ahead_is_refused(reason: str) -> None:
    taking_turns = load_config({}, REFUSED[reason])
    check_ahead(taking_turns)
    with pytest.raises(ConfigError, match=reason):
        check_ahead(load_config({}, [*REFUSED[reason], "rl.max_staleness=1"]))
    check_ahead(load_config({}, [*REFUSED[reason], "rl.max_staleness=1", "phases=[sft]"]))  # nothing is rolled out


def test_hf_samples_with_a_copy_and_servers_as_they_do() -> None:
    assert backend_facts(load_config({}, [])) == BackendFacts(is_learner=True, blocking=True)
    ahead = load_config({}, ["rl.max_staleness=2"])
    check_ahead(ahead)
    assert backend_facts(ahead) == BackendFacts(is_copy=True, blocking=True)
    check_ahead(
        load_config({}, ["rollout.backend=vllm", "vllm.mode=server", "vllm.servers=[http://h:1]", "rl.max_staleness=4"])
    )


def test_weights_in_flight_are_needed_for_more_than_one_step() -> None:
    with pytest.raises(ConfigError, match="max_staleness is 2"):
        load_config({}, ["rl.max_staleness=2", "rl.in_flight_updates=false"])


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
