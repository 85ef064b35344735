"""Needs of a planned run that other machines and processes would not meet: vLLM servers, models behind addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import EndpointError, SkillTTRLError
from skill_ttrl.stages.doctor.backends import endpoint_checks, vllm_checks
from skill_ttrl.stages.doctor.machine import Check
from skill_ttrl.stages.setup.checks import check_models


def missing_servers(config: SkillTTRLConfig) -> Iterator[SkillTTRLError]:
    """An error for each host, or several of them, that does not answer as the run needs. Each is asked what it says for nothing."""
    checks: list[Check] = []
    if asks_servers(config):
        checks += vllm_checks(config, None)
    with suppress(SkillTTRLError):  # what is not set, such as a key, is said by this rule
        check_models(config)
        checks += endpoint_checks(config)
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for check in checks:
        if check.status == "fail":
            alike[check.found, check.advice].append(check.name)
    for (found, advice), names in alike.items():
        yield EndpointError(f"{_named(names)}: {found}. {advice}")


def asks_servers(config: SkillTTRLConfig) -> bool:
    """True if running vLLM servers sample."""
    return config.rollout.backend == "vllm" and config.vllm.mode == "server"


def _named(names: Sequence[str]) -> str:
    """The checks of one kind, such as `vllm server ADDRESS`, in a few words."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more, up to {names[-1].split()[-1]}"
