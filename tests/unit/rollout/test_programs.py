"""Real programs that play rollouts: what they are given, what they answer, what is recorded, and that none is left running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.config import EndpointsConfig, InvalidConfigError, SkillsConfig, load_config
from skill_ttrl.data.families import QA_ENV_ID
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.envs import make_env
from skill_ttrl.errors import BudgetError, ConfigError
from skill_ttrl.llm.backend import Backend, BackendContext, Sampling, wait_for
from skill_ttrl.llm.backends import backend_facts, make_backend
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.rl.batch import pack
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.programs import read_answer
from skill_ttrl.rollout.rollout import RolloutSettings, rollout
from skill_ttrl.trust import powers
from skill_ttrl.types import Group, Task, Trajectory
from tests.scripted_backend import RecordingBackend

TASK = Task("t", MATH_ENV_ID, {"question": "1+1?"}, ground_truth="2", task_type="sum")
ASKS = """
import json, os, sys, urllib.request
task, key = json.load(sys.stdin), os.environ["OPENAI_API_KEY"]
def ask(messages):
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
"""
TALKS = """
first = task["messages"]
second = [*first, ask(first), {"role": "user", "content": "Sure?"}]
said = ask(second)["content"]
ask([{"role": "user", "content": "Sum up."}])
print("Thinking aloud")
print(json.dumps({"answer": said, "reward": 0.25}))
"""
CHILD = "import subprocess, time; subprocess.Popen(['sleep', '61']); time.sleep(60)"


def no_model() -> Backend:
    made = load_config({"rollout": {"backend": "none"}})
    assert backend_facts(made).remote and not backend_facts(made).trainable
    return make_backend(BackendContext(made, lambda: pytest.fail("no model is loaded")))


def play(
    argv: str | list[str],
    backend: Backend | None = None,
    *,
    task: Task = TASK,
    n: int = 1,
    document: str = "",
    env: tuple[str, ...] = (),
    timeout_s: float | None = None,
    wait: float | None = None,
) -> tuple[Trajectory, ...]:
    program = load_config({"program": {"argv": argv, "env": [*env]}}).program
    agent = Agent(PromptFormatter("plain", "Be brief."), skills=SkillsConfig(), program=program).with_document(document)
    how = RolloutSettings(Sampling(temperature=0.7), 3, rollout_timeout_s=timeout_s)
    envs = EnvPool(lambda: make_env(task.env_id))
    work = rollout([task], n, envs=envs, agent=agent, backend=backend or no_model(), settings=how)
    return wait_for(asyncio.wait_for(work, wait))[0].trajectories


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def left_running(seconds: int = 61) -> bool:
    """True if a `sleep` of a program is still running after a while: one that was killed takes a moment to go."""
    for _ in range(50):
        names = [(each.info["cmdline"] or [])[-2:] for each in psutil.process_iter(["cmdline"])]
        if not any(each[1:] == [str(seconds)] and each[0].endswith("sleep") for each in names):
            return False
        time.sleep(0.02)
    return True


def test_calls_are_steps_and_those_that_extend_each_other_one_sequence() -> None:
    backend = RecordingBackend(["two"])
    found = play(python(ASKS + TALKS), backend, n=3)
    for each in found:
        assert (each.error, each.answer, each.stop_reason) == (None, "two", "terminated")
        first, second, third = each.steps
        assert first.completion is not None and third.completion is not None
        before = (*first.prompt_ids, *first.completion.token_ids)
        assert second.prompt_ids[: len(before)] == before and bytes(second.prompt_ids).endswith(b"Sure?\n")
        assert bytes(third.prompt_ids) == b"Sum up." and bytes(third.completion.token_ids) == b"two"
        assert (first.action, second.observation, third.action) == ("two", "Sure?", "<answer>two</answer>")
        assert [step.reward for step in each.steps] == [0.0, 0.0, 0.25] and each.success
    assert len(pack([Group(TASK, found)], join=True)) == 6, "one of two calls, and one of a branch, for each rollout"


def test_the_task_comes_in_on_stdin_and_in_files_and_no_true_answer_with_it() -> None:
    code = (
        "import json, os, pathlib, sys\n"
        "text = sys.stdin.read(); task = json.loads(text); here = sorted(os.listdir())\n"
        "task['same'] = text == pathlib.Path(os.environ['SKILLTTRL_TASK']).read_text()\n"
        "folder = pathlib.Path(os.environ['SKILLTTRL_SKILLS']); task['there'] = str(folder) == task.pop('skills_dir')\n"
        "task['files'] = [each.read_text()[-9:] for each in folder.glob('*/SKILL.md')]\n"
        "print(json.dumps({'answer': json.dumps([task, here, os.getcwd(), sys.argv[1:]])}))"
    )
    task = Task("t", QA_ENV_ID, {"question": "Größe?", "answers": ["2"]}, ground_truth="2")
    (found,) = play(python(code, "$HOME", "a b"), task=task, document="- Be exact.")
    assert found.error is None and found.answer is not None
    given, here, place, arguments = json.loads(found.answer)
    assert given["messages"][0] == {"role": "system", "content": "Be brief.\n\n- Be exact."}
    assert given["prompt"].startswith("Be brief.\n\n- Be exact.\n\n") and "Größe?" in given["prompt"]
    assert (given["id"], given["question"], given["temperature"]) == ("t", "Größe?", 0.7)
    assert given["same"] and given["there"] and given["files"] == ["e exact.\n"]
    assert [each["id"] for each in given["skills"]] == ["document"] and '"2"' not in found.answer
    assert here == ["skills", "task.json"] and not Path(place).exists() and arguments == ["$HOME", "a b"]
    assert found.steps[0].completion is not None and found.steps[0].completion.token_ids == ()


def test_it_gets_named_variables_alone_and_no_message_shows_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_RUN", "sk-not-for-you")
    monkeypatch.setenv("AGENT_KEY", "sk-for-the-agent")
    monkeypatch.setenv("AGENT", "sk-for")
    code = "sys.exit(' '.join((str(os.environ.get('SECRET_OF_THE_RUN')), os.environ['AGENT_KEY'], key)))"
    (found,) = play(python(ASKS + code), RecordingBackend(["2"]), env=("AGENT", "AGENT_KEY"))
    assert found.error is not None
    assert found.error.endswith("ended with exit code 1. Its stderr ends: None [AGENT_KEY] [OPENAI_API_KEY]")
    monkeypatch.delenv("AGENT_KEY")
    with pytest.raises(ConfigError, match=r"program\.env names variables that are not set: AGENT_KEY"):
        play("cat", env=("AGENT_KEY",))


@pytest.mark.parametrize(
    ("argv", "why", "words"),
    [
        (python(CHILD), "timeout", "did not end within 0.6 s (rollout.rollout_timeout_s) and was stopped."),
        (["yes"], "error", "wrote more than 1,048,576 bytes and was stopped."),
        (["true"], "error", "true printed no answer."),
        (["cat", "/nowhere"], "error", "cat: /nowhere: No such file or directory"),
        (["echo", '{"answer": 2, "reward": "much"}'], "error", "gave the reward 'much', which is no number"),
    ],
)
def test_a_program_that_fails_is_a_failed_rollout_and_leaves_no_children(argv: list[str], why: str, words: str) -> None:
    began = time.monotonic()
    (found,) = play(argv, timeout_s=0.6 if why == "timeout" else None)
    assert time.monotonic() - began < 20 and not left_running()
    assert found.error is not None and words in found.error
    assert (found.stop_reason, found.answer, found.steps, found.success) == (why, None, (), False)


def test_calls_of_a_program_that_fails_are_kept_and_one_without_calls_does_not_play_the_model() -> None:
    (crashed,) = play(python(ASKS + "ask(task['messages']); 1 / 0"), RecordingBackend(["<answer>2</answer>"]))
    assert crashed.error is not None and "ZeroDivisionError: division by zero" in crashed.error
    assert len(crashed.steps) == 1 and crashed.answer is None, "it has no vote"
    (alone,) = play(["echo", "2"], RecordingBackend(["2"]))
    assert alone.error is not None and "without a call of the model" in alone.error and "OPENAI_BASE_URL" in alone.error
    for own in (False, True):  # a session of its own is no way out
        code = f"import subprocess; subprocess.Popen(['sleep', '63'], start_new_session={own}); print('2')"
        (left,) = play(python(code))
        assert left.answer == "2" and not left_running(63)


def test_one_that_nobody_waits_for_any_more_is_stopped() -> None:
    with pytest.raises(TimeoutError):
        play(["sleep", "62"], n=2, wait=0.4)
    assert not left_running(62)


def test_a_killed_process_leaves_no_program_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "skillttrl-programs-old" / "1").mkdir(parents=True)
    os.utime(tmp_path / "skillttrl-programs-old", (0, 0))
    code = f"from tests.unit.rollout.test_programs import *; play(python({CHILD!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})
    while process.poll() is None and not [*tmp_path.glob("skillttrl-programs-*/*/task.json")]:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    for _ in range(500):
        if not [*tmp_path.glob("skillttrl-programs-*")]:
            break
        time.sleep(0.02)
    assert not [*tmp_path.glob("skillttrl-programs-*")] and not left_running()


def test_budgets_hold_with_a_model_and_without(tmp_path: Path) -> None:
    with track_usage(tmp_path / "usage.jsonl", EndpointsConfig(max_requests=3)) as ledger, ledger.phase("eval"):
        play(["echo", "2"], n=2)
        play(["false"])
        report: Mapping[str, Any] = ledger.report()
        with pytest.raises(BudgetError):
            play(["echo", "2"])
    assert (report["requests"], report["failed"], report["cost"]) == (3, 1, None)
    assert report["by"]["eval"]["program"]["attempts"] == 3

    class Poor(RecordingBackend):
        async def generate(self, *_: Any, **__: Any) -> Any:
            raise BudgetError("spent")

    with pytest.raises(BudgetError, match="spent"):
        play(python(ASKS + "ask(task['messages'])"), Poor(["2"]))


@pytest.mark.parametrize(
    ("output", "action", "reward"),
    [
        ("so\n\\boxed{7}\n", "so\n\\boxed{7}", None),
        ("7\n", "<answer>7</answer>", None),
        ("x = \\frac{1}{2}", "<answer>x = \\frac{1}{2}</answer>", None),
        ("The next is 7", "The next is 7", None),
        ("7\n8", "7\n8", None),
        ('x\n{"answer": 7.5, "reward": -1}\n', "<answer>7.5</answer>", -1.0),
        ('{"answer": null}', "", None),
        ('{"answer": "the answer is 7"}', "the answer is 7", None),
        ('{"found": 7}', '{"found": 7}', None),
        ('{"answer": "7\\ud800"}', "<answer>7\N{REPLACEMENT CHARACTER}</answer>", None),
        ('{"answer": [1, 2]}', "<answer>[1, 2]</answer>", None),
    ],
)
def test_answers_are_read_from_the_last_line_or_from_all_of_it(output: str, action: str, reward: float | None) -> None:
    assert read_answer(output, MATH_ENV_ID) == (action, reward)
    plain = action.removeprefix("<answer>").removesuffix("</answer>")
    assert read_answer(output, QA_ENV_ID) == (plain, reward), "others take an answer as it is"


def test_a_file_is_found_from_here_and_not_from_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.py").write_text("import sys; print(sys.argv[1:])", encoding="utf-8")
    (tmp_path / "word").touch()
    monkeypatch.chdir(tmp_path)
    task = Task("t", QA_ENV_ID, {"question": "?"})
    (found,) = play(f"{sys.executable} agent.py word --in=agent.py gone.txt", task=task)
    assert found.answer == "['word', '--in=agent.py', 'gone.txt']"


def test_a_wrong_section_and_a_foreign_one() -> None:
    wrongs: list[dict[str, Any]] = [{"argv": []}, {"argv": "a 'b"}, {"argv": ["x"], "env": ["A=b"]}]
    for wrong in wrongs:
        with pytest.raises(InvalidConfigError):
            load_config({"program": wrong})
    found = powers({"program": {"argv": ["rm", "x"], "env": ["KEY"]}})
    assert found["program.argv"] == "run the program rm x" and "KEY" in found["program.env"]
    with pytest.raises(ConfigError, match=r"program\.argv"):
        wait_for(no_model().generate([], Sampling(), seed=0))
