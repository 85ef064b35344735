"""Finding what is measured: a recipe whose phases need skills can be measured without its bank."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands.resolve import resolve_target, with_fitting
from skill_ttrl.errors import ConfigError


def test_a_small_model_without_settings_gets_a_prompt_and_a_length_that_fit() -> None:
    def chosen(*stated: str) -> tuple[Any, ...]:
        found = with_fitting(resolve_target("builtin", stated))
        assert all(key in found.note for key in ("model.chat_template", "rollout.stop")) is (
            found.config.agent.template == "few_shot"
        )
        how = found.config.rollout
        return found.config.agent.template, found.config.model.chat_template, how.stop, how.max_new_tokens

    assert chosen() == ("few_shot", "none", ["\n"], 256)
    assert chosen("rollout.max_new_tokens=9") == ("few_shot", "none", ["\n"], 9)
    assert chosen("agent.system=Be short.") == chosen("model.chat_template=own") == ("boxed", "own", [], 256)
    for untouched in (
        resolve_target("builtin", config="quickstart"),
        resolve_target("builtin", ["agent.template=plain", "rollout.max_new_tokens=9"]),
        resolve_target("builtin", ["env.id=webshop"]),
        resolve_target("none", ["program.argv=cat"]),
    ):
        assert with_fitting(untouched) is untouched


def test_a_program_that_brings_its_own_model_is_a_policy_by_its_command_line() -> None:
    found = resolve_target("none", ["program.argv=my-agent --print 'a b'"], data=["problems.jsonl"])
    assert found.name == "my-agent --print 'a b'" and found.config.rollout.backend == "none"
    assert found.config.program is not None and found.config.program.argv == ["my-agent", "--print", "a b"]
    assert found.fingerprint() == "none as my-agent --print 'a b'" and found.decisive()["program"]["env"] == []
    assert resolve_target("none", config={"program": {"argv": ["x"]}}).name == "x"
    with pytest.raises(ConfigError, match="a program has to play"):
        resolve_target("none").check()
    with pytest.raises(ConfigError, match="cannot be split into a program and its arguments"):
        resolve_target("none", ["program.argv=a 'b"])


def test_a_program_is_known_by_the_files_that_its_command_line_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = tmp_path / "agent.py"
    agent.write_text("print(1)")

    def known(*argv: str) -> str:
        return resolve_target("none", config={"program": {"argv": [*argv]}}).fingerprint()

    first = known("python3", "agent.py", "rules", "nowhere.py")
    digest = hashlib.sha256(b"print(1)").hexdigest()[:32]
    assert first == f"none as python3 agent.py rules nowhere.py [agent.py sha256:{digest}]"
    agent.write_text("print(2)")
    assert known("python3", "agent.py", "rules", "nowhere.py") != first
    assert known(sys.executable, "-c", "1").endswith("-c 1"), "an interpreter is no code of the agent"
    agent.write_text("#!/bin/sh\n")
    assert "[./agent.py sha256:" in known("./agent.py")
