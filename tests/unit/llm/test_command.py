"""The `command` backend with real programs: what they are given, what they answer, and that none is left running."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from skill_ttrl.config import EndpointsConfig, InvalidConfigError, SkillTTRLConfig, load_config
from skill_ttrl.errors import BudgetError, ConfigError
from skill_ttrl.llm.backend import BackendContext, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.backends import backend_facts, make_backend
from skill_ttrl.llm.command import CommandBackend
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.trust import powers
from skill_ttrl.types import Completion, Message

CHILD = "import subprocess, time; subprocess.Popen(['sleep', '61']); print('x', flush=True); time.sleep(60)"
LEFT = "import subprocess; subprocess.Popen(['sleep', '61']); print('done')"


def config(argv: list[str] | str, **more: Any) -> SkillTTRLConfig:
    return load_config({"rollout": {"backend": "command"}, "command": {"argv": argv, **more}})


def python(code: str, **more: Any) -> SkillTTRLConfig:
    return config([sys.executable, "-c", code], **more)


def answers(made: SkillTTRLConfig, *texts: str, n: int = 1, stop: tuple[str, ...] = ()) -> list[Generation]:
    backend = make_backend(BackendContext(made, lambda: pytest.fail("no model is loaded")))
    requests = [Request((Message("system", "Be brief."), Message("user", text)), n=n) for text in texts]
    try:
        return wait_for(backend.generate(requests, Sampling(max_new_tokens=9, stop=stop), seed=3))
    finally:
        backend.close()


def answer(made: SkillTTRLConfig, text: str = "1+1?", **more: Any) -> Completion:
    return answers(made, text, **more)[0].completions[0]


def left_running(seconds: int = 61) -> bool:
    """True if a `sleep` of a command is still running after a while: one that was killed takes a moment to go."""
    for _ in range(50):
        names = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
        if ["sleep", str(seconds)] not in names:
            return False
        time.sleep(0.02)
    return True


def test_the_prompt_goes_in_and_the_answer_comes_out() -> None:
    found = answers(config("cat"), "1+1?", 'It\'s $HOME; `ls` "größe"', n=2)
    assert [each.text for each in found[0].completions] == ["Be brief.\n\n1+1?"] * 2
    assert found[1].completions[1].text == 'Be brief.\n\nIt\'s $HOME; `ls` "größe"'
    assert found[0].prompt_ids == () and {each.finish_reason for each in found[0].completions} == {"stop"}
    assert answer(config("cat"), "a </b> c </b>", stop=("</b>",)).text == "Be brief.\n\na </b>"
    large = answer(config("cat"), "x" * 300_000)
    assert len(large.text) == 300_000 + len("Be brief.\n\n")
    assert answer(config("true")).text == ""


def test_a_file_is_found_from_here_and_not_from_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.py").write_text("import sys; print(sys.argv[1:])", encoding="utf-8")
    (tmp_path / "word").touch()
    monkeypatch.chdir(tmp_path)
    assert (
        answer(config(f"{sys.executable} agent.py word --in=agent.py gone.py")).text
        == "['word', '--in=agent.py', 'gone.py']"
    )


def test_no_shell_reads_the_command_and_it_runs_in_an_empty_folder() -> None:
    code = "import os, sys; print(sys.argv[1:], os.listdir(), os.getcwd())"
    made = load_config(
        {"command": {"argv": f"""{sys.executable} -c "{code}" '$HOME' ';' "a b" """}}, ["rollout.backend=command"]
    )
    folder = answer(made).text
    assert folder.startswith("['$HOME', ';', 'a b'] [] ") and not Path(folder.split()[-1]).exists()


def test_it_gets_named_variables_alone_and_no_message_shows_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-you")
    monkeypatch.setenv("AGENT_KEY", "sk-for-the-agent")
    code = "import os, sys; sys.exit(f\"{os.environ.get('OPENAI_API_KEY')} {os.environ['AGENT_KEY']} {os.environ['SKILLTTRL_SEED']}\")"
    failed = answer(python(code, env=["AGENT_KEY"]))
    assert failed.finish_reason == "error" and failed.error is not None
    assert "ended with exit code 1. Its stderr ends: None [AGENT_KEY] " in failed.error
    monkeypatch.delenv("AGENT_KEY")
    with pytest.raises(ConfigError, match=r"command\.env names variables that are not set: AGENT_KEY"):
        answer(python(code, env=["AGENT_KEY"]))


def test_one_that_hangs_or_writes_without_end_is_stopped_with_its_children() -> None:
    began = time.monotonic()
    slow = python(CHILD)
    slow.endpoints.timeout = 0.4
    hung = answer(slow)
    assert time.monotonic() - began < 5 and hung.error is not None
    assert "did not end within 0.4 s (endpoints.timeout) and was stopped" in hung.error
    endless = answer(config("yes"))
    assert endless.error is not None and "wrote more than 1,048,576 bytes" in endless.error
    assert answer(python(LEFT)).text == "done"
    assert not left_running()


def test_one_that_nobody_waits_for_any_more_is_stopped() -> None:
    backend = CommandBackend(BackendContext(config("sleep 62"), lambda: pytest.fail("no model is loaded")))

    async def leave() -> None:
        async with asyncio.timeout(0.3):
            await backend.generate([Request((Message("user", "?"),), n=2)], Sampling(), seed=0)

    with pytest.raises(TimeoutError):
        wait_for(leave())
    backend.close()
    assert not left_running(62)


def test_each_run_is_a_request_of_the_ledger(tmp_path: Path) -> None:
    with track_usage(tmp_path / "usage.jsonl", EndpointsConfig(max_requests=3)) as ledger, ledger.phase("eval"):
        answer(config("cat"), n=2)
        answer(config("false"))
        report: Mapping[str, Any] = ledger.report()
        with pytest.raises(BudgetError):
            answer(config("cat"))
    assert (report["requests"], report["failed"], report["cost"]) == (3, 1, None)
    assert [*report["by"]] == ["eval"] and report["by"]["eval"]["command"]["attempts"] == 3


def test_what_cannot_run_is_said_before_it_runs() -> None:
    with pytest.raises(ConfigError, match="'no-such-agent' is neither a program"):
        answer(config("no-such-agent --print"))
    with pytest.raises(ConfigError, match=r"set command\.argv"):
        answer(load_config({"rollout": {"backend": "command"}}))
    wrongs: list[dict[str, Any]] = [{"argv": []}, {"argv": "a 'b"}, {"argv": ["x"], "env": ["A=b"]}]
    for wrong in wrongs:
        with pytest.raises(InvalidConfigError):
            load_config({"command": wrong})
    facts = backend_facts(config("cat"))
    assert facts.remote and not facts.trainable
    with pytest.raises(ConfigError, match="cannot be trained"):
        make_backend(BackendContext(config("cat"), lambda: pytest.fail("no model"), trains=True))


def test_a_foreign_config_with_a_command_has_power_over_this_machine() -> None:
    found = powers({"command": {"argv": ["rm", "x"], "env": ["KEY"]}, "collect": {"agent": "command:rm y"}})
    assert found["command.argv"] == "run the program rm x" and "KEY" in found["command.env"]
    assert found["collect.agent"] == "run the program rm y"
