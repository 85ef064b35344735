"""Finding what is measured: a recipe whose phases need skills can be measured without its bank."""

from __future__ import annotations

import pytest

from skill_ttrl.errors import ConfigError
from skill_ttrl.stages.targets.resolve import resolve_target


@pytest.mark.parametrize("recipe", ["quickstart_alfworld", "quickstart_skills"])
def test_a_policy_is_found_without_its_bank_whatever_its_phases_need(recipe: str) -> None:
    found = resolve_target("embedded", config=recipe, use_bank=False)
    assert found.config.skills is not None and found.config.model.path == "embedded"


def test_a_program_is_a_policy_by_its_command_line() -> None:
    found = resolve_target("command:my-agent --print 'a b'", ["command.timeout=3"], data=["problems.jsonl"])
    assert found.name == "my-agent --print 'a b'" and found.remote and found.config.rollout.backend == "command"
    assert found.config.command is not None and found.config.command.argv == ["my-agent", "--print", "a b"]
    assert found.config.command.timeout == 3 and found.fingerprint() == "command:my-agent --print 'a b'"
    assert resolve_target("command", config={"command": {"argv": ["x"]}}).name == "x"
    with pytest.raises(ConfigError, match="the config names none"):
        resolve_target("command")
    with pytest.raises(ConfigError, match="cannot be split into a program and its arguments"):
        resolve_target("command:a 'b")
