"""Skill documents in training, end to end: behind a started server of OpenAI's protocol, for a program, for a small real policy that follows
the rules it is shown (`quickstart_skills`' cold start), and in turn with weight updates on one bank (`optimize.every`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.commands.evaluate import measure_policy
from skill_ttrl.commands.optimize import check_start, open_rollouts, optimize_run, prepare
from skill_ttrl.commands.optimize_results import OptimizeSummary
from skill_ttrl.commands.reports.inspect import inspect
from skill_ttrl.commands.resolve import resolve_target
from skill_ttrl.config import OptimizeConfig, load_config
from skill_ttrl.data.families import CONVENTIONS, OperatorGrammar, Operators, read_rules
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError, SkillTTRLError
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.induction import InductionOptimizer
from skill_ttrl.optimize.loop import Loop, optimize
from skill_ttrl.optimize.record import OptimizeTask
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.checkpoint import load_state, newest
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.bank_changes import BankText, edit_text
from skill_ttrl.train.document_rollouts import PolicyRollouts, as_bank
from skill_ttrl.train.run import Run
from skill_ttrl.types import BankUpdate, Group, from_json
from tests import format_models
from tests.faulty_server import FaultyServer
from tests.scripted_model import asked, scripted

SMALL: dict[str, Any] = {
    "name": "forms",
    "env": {"id": "qa", "train_tasks": 20, "eval_tasks": 6},
    "rollout": {"backend": "openai", "max_new_tokens": 40},
    "optimize": {"epochs": 2, "batch_size": 8, "minibatch_size": 4, "selection": {"tasks": 6}},
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-no-use")


def settings(url: str, **endpoints: Any) -> dict[str, Any]:
    endpoint = {"model": "scripted", "base_url": url, "max_retries": 0, **endpoints}
    return {**SMALL, "endpoints": {**endpoint, "roles": {"optimizer": {}}}}


def server(answer: Any = format_models.answer) -> FaultyServer:
    return FaultyServer(faults=(), answer=answer)


def files(folder: Path) -> dict[str, bytes]:
    """What a run leaves but for times: documents, rollouts, edits, summary."""
    names = (
        "best_skill.md current_skill.md runtime_state.json skills/*.md steps/*/[!s]*.json test_eval_*/*.json".split()
    )
    return {str(file.relative_to(folder)): file.read_bytes() for name in names for file in sorted(folder.glob(name))}


def requests_of(found: OptimizeSummary) -> int:
    return sum(each.asked - each.reused for each in found.work.values())


def test_the_loop_finds_rules_and_counts_what_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "first.md").write_text("## Conventions\n")
    how: Any = {"output": tmp_path / "run", "document": tmp_path / "first.md"}
    with server() as there:
        found = optimize_run(settings(there.url), **how)
        assert there.delivered["answers"] == requests_of(found)
        asked = len(there.asked)
        assert optimize_run(settings(there.url), **how) == found and len(there.asked) == asked  # nothing is sent
    assert found.test_first is not None and found.test_best is not None and found.test_change is not None
    assert found.test_first.hard == 0.0 and found.test_best.hard > 0.2
    assert found.test_change[0] == found.test_best.hard and found.test_best.items == 6
    assert found.fallbacks and found.actions["accept_new_best"] > 0
    assert found.usage["requests"] == requests_of(found)
    document = (tmp_path / "run/best_skill.md").read_text()
    assert sum(format_models.stated(each, document) for each in CONVENTIONS) >= 2
    (tmp_path / "first.md").unlink()
    seen = inspect(tmp_path / "run")  # every other command knows what the run left
    assert seen.kind == "optimization" and len(seen.rows) == found.steps and seen.facts["ended"] == "yes"
    (listed,) = inspect(tmp_path).rows
    assert listed[2:4] == ("optimize", "yes") and listed[-1] == f"{found.test_best.hard:.3f}"


def test_a_document_is_evaluated_as_it_was_tested(tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text(format_models.rules_of("date", "time"))
    with server(format_models.clean) as there:
        shown = [f"agent.document={json.dumps(str(tmp_path / 'rules.md'))}", "eval.samples=1"]
        (tmp_path / "forms.json").write_text(json.dumps(settings(there.url)))
        how: Any = {"split": "test", "overrides": shown, "config": str(tmp_path / "forms.json"), "limit": 8}
        (found,) = measure_policy("openai", "qa", **how)
        assert found.accuracy == 0.25


@pytest.mark.slow
def test_a_killed_run_goes_on_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    one_by_one = {"max_concurrency": 1}
    with server() as there:
        whole = optimize_run(settings(there.url, **one_by_one), output=tmp_path / "whole")
        paid = there.delivered["answers"]
    process: list[subprocess.Popen[bytes]] = []
    left = iter(range(paid // 2, -1, -1))

    def kill(body: Mapping[str, Any], draw: random.Random) -> str:
        if next(left, 1) == 0:
            os.kill(process[0].pid, signal.SIGKILL)
        return format_models.answer(body, draw)

    with server(kill) as there:
        config = tmp_path / "forms.json"
        config.write_text(json.dumps(settings(there.url, **one_by_one)))
        command = [sys.executable, "-m", "skill_ttrl.cli.main", "optimize", str(config), "-o", str(tmp_path / "run")]
        process.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        assert process[0].wait(60) == -signal.SIGKILL
        assert not (tmp_path / "run/summary.json").exists()
        resumed = optimize_run(config, output=tmp_path / "run")
        # The answer on its way at the kill may have been handed to a dead process.
        assert paid <= there.delivered["answers"] <= paid + 1
    assert files(tmp_path / "run") == files(tmp_path / "whole")
    assert resumed.work == whole.work and resumed.actions == whole.actions


def test_what_cannot_be_done_is_said_and_leaves_nothing_and_a_dry_run_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, poor = tmp_path / "run", tmp_path / "poor"
    monkeypatch.delenv("NO_KEY", raising=False)
    with server(format_models.clean) as there:
        good = settings(there.url)
        with pytest.raises(ConfigError, match="Did you mean 'openai'"):
            optimize_run(good, policy="opnai:model", output=run)
        with pytest.raises(EndpointError):
            optimize_run(good, output=run, overrides=["endpoints.base_url=http://127.0.0.1:9/v1"])
        assert not list(run.glob("steps")) and not (run / "summary.json").exists()
        there.delivered.clear()
        with pytest.raises(BudgetError, match=r"same command"):
            optimize_run(good, output=poor, overrides=["endpoints.max_requests=40"])
        found = optimize_run(good, output=poor, overrides=["endpoints.max_requests=4000"])
        asked = len(there.asked)
        assert requests_of(found) == there.delivered["answers"]
        for key, changes, output, resume in (
            ("Did you mean 'gepa'", ["optimize.engine=gepaa"], tmp_path / "new", "auto"),
            ("also a train", ["env.eval_split=train", "env.eval_tasks=null"], tmp_path / "new", "auto"),
            ("NO_KEY", ["endpoints.roles.optimizer.api_key_env=NO_KEY"], tmp_path / "new", "auto"),
            ("optimize.batch_size 8 there, 4 here", ["optimize.batch_size=4"], poor, "auto"),
            ("already holds a run", [], poor, "never"),
        ):
            said = []
            for start in (check_start, optimize_run):
                with pytest.raises(SkillTTRLError) as refused:
                    start(prepare(good, overrides=changes), output=output, resume=resume)  # type: ignore[arg-type]
                said.append(str(refused.value))
            assert said[0] == said[1] and key in said[0] and not (tmp_path / "new").exists(), (said, changes)
        checked = check_start(prepare(good), output=tmp_path / "new")
        assert checked["items"] == {"train": 14, "selection": 6, "test": 6}
        assert (checked["epochs"], checked["steps"], checked["step_items"]) == (2, 4, 8)
        assert not (tmp_path / "new").exists() and len(there.asked) == asked
        assert check_start(prepare(good), output=poor)["continues"]


AGENT = Path(__file__).parents[2] / "examples" / "rules_program.py"
HANGS = """
import json, pathlib, runpy, sys, time
task = json.load(sys.stdin)
if pathlib.Path(sys.argv[1]).exists() and "bridge" in task["prompt"]:
    time.sleep(60)
_, _, question = task["prompt"].rpartition("Context:")
rules = "".join(each.read_text() for each in pathlib.Path(task["skills_dir"]).glob("*/SKILL.md"))
print(runpy.run_path(sys.argv[2])["answer"](f"{rules}Context:{question}"))
"""
"""It reads the document as a skill in a folder, and not in its prompt."""


def program(argv: list[str]) -> dict[str, Any]:
    return {
        "env": {"id": "qa", "train_tasks": 16, "eval_tasks": 8},
        "rollout": {"backend": "none", "rollout_timeout_s": 3},
        "program": {"argv": argv},
        "eval": {"samples": 1, "greedy": False, "controls": []},
        "optimize": {"optimizer": "own_optimizer:Forms", "epochs": 1, "batch_size": 4, "selection": {"tasks": 8}},
    }


@pytest.mark.slow
def test_a_document_is_found_for_a_program_and_one_that_hangs_is_a_failed_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(AGENT.parent)
    (tmp_path / "agent.py").write_text(HANGS, encoding="utf-8")
    (tmp_path / "hang").mkdir()  # a folder: a file among the arguments would be part of what the policy is
    argv = [sys.executable, "agent.py", str(tmp_path / "hang"), str(AGENT)]
    found = optimize_run(prepare(program(argv)), output=tmp_path / "run")
    journal = (tmp_path / "run" / "journal.jsonl").read_text(encoding="utf-8")
    assert "did not end within 3 s (rollout.rollout_timeout_s) and was stopped" in journal
    assert found.selection_best > 0
    (tmp_path / "hang").rmdir()
    usage = (tmp_path / "run" / "usage.jsonl").read_text(encoding="utf-8")
    again = optimize_run(prepare(program(argv)), output=tmp_path / "run")
    assert again.selection_best == found.selection_best
    assert (tmp_path / "run" / "usage.jsonl").read_text(encoding="utf-8") == usage, "what is done is not done again"


BASE = Path(__file__).parents[1] / "data" / "operators_base"
SHOWN = ["skills.prompt_top_k=1", "skills.prompt_max_tokens=32", "skills.max_retrievals=0", "runtime.threads=1"]
TASKS = Operators().problems("test", MATH_ENV_ID)[:40]
NAMES = [task.id.partition("-")[0] for task in TASKS[::10]]
RULES = "\n".join(Operators().rule(name).of(name) for name in NAMES)
Opened = tuple[PolicyRollouts, dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    """The policy, and problems of four names that are in none of its demonstrations."""
    target = resolve_target(str(BASE), SHOWN, config="quickstart_skills")
    digits = {"train": "2357", "selection": "149", "test": "068"}
    splits = {role: [task for task in TASKS if task.id[-1] in own] for role, own in digits.items()}
    with open_rollouts(target, splits, as_bank(target.config.skills, read_rules), SilentProgress()) as found:
        yield found


def test_a_policy_rolls_out_a_document_as_its_bank(opened: Opened) -> None:
    roll_out, items = opened
    first = {task.id: task for task in TASKS}[items["train"][0]["id"]]
    described = {"split": "test", "task_type": "operator", "question": first.options["question"]}
    assert items["train"][0] == {"id": first.id, **described}
    every = [item for part in items.values() for item in part]
    told: list[tuple[int, RolloutResult]] = []
    ruled = roll_out(RULES, every, seed=1, on_result=lambda place, result: told.append((place, result)))
    again = roll_out(RULES, every[7:9], seed=2)
    assert len(every) == 40 and sum(result.hard for result in ruled) >= 34
    assert [result.id for result in ruled] == [item["id"] for item in every]
    assert sorted(place for place, _ in told) == [*range(40)] and all(ruled[place] == one for place, one in told)
    assert again == ruled[7:9], "greedy results depend on neither the seed nor the other items"
    assert replace(roll_out, temperature=1.0)("", every, seed=1) != roll_out("", every, seed=1)
    assert ruled[0].extras["skills_in_prompt"] == [f"op-{NAMES[0]}"] and ruled[0].reference_text == first.ground_truth


def test_the_loop_finds_the_missing_rules_from_failures_alone(opened: Opened) -> None:
    roll_out, items = opened
    task = OptimizeTask(items["train"], items["selection"], items["test"])
    calls = Calls(None, roll_out, reuse_rollouts=True)
    config = OptimizeConfig(optimizer="induce", epochs=3, batch_size=8)
    done = optimize(Loop(task, config, calls, InductionOptimizer(OperatorGrammar()), seed=1), "")
    assert done.test_first is not None and done.test_best is not None
    assert sum(result.hard for result in done.test_first) <= 4
    assert sum(result.hard for result in done.test_best) >= 10, "of 12 problems that were never rolled out before"


@pytest.mark.slow
def test_killed_and_continued_an_optimization_ends_with_the_same_document(tmp_path: Path) -> None:
    told = [*SHOWN, "agent={template: plain, prompts: tiny}", "data.max_prompt_tokens=64", "rollout.max_new_tokens=40"]
    told += ["optimize.epochs=1", "optimize.selection.tasks=60", "optimize.test_tasks=60"]
    settings = [word for setting in told for word in ("--set", setting)]
    command = [sys.executable, "-m", "skill_ttrl.cli.main", "optimize", "quickstart_optimize", "--policy", str(BASE)]
    subprocess.run([*command, *settings, "-o", str(tmp_path / "whole")], check=True, capture_output=True)
    journal, kills = tmp_path / "killed" / "journal.jsonl", [70, 150, 300]
    while True:
        run = subprocess.Popen([*command, *settings, "-o", str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
        while run.poll() is None:
            if kills and journal.exists() and journal.read_bytes().count(b"\n") >= kills[0]:
                run.kill()
                kills.pop(0)
                run.wait()
            time.sleep(0.01)
        if run.returncode != -9:
            break
    assert run.returncode == 0 and not kills
    for name in ("journal.jsonl", "best_skill.md"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


BOTH = """\
name: both
phases: [rl]
env: {id: math}
agent: {template: plain, prompts: tiny}
data:
  train: {path: "synthetic:operators", split: train, limit: 30}
  eval: {path: "synthetic:operators", split: test, limit: 2}
  max_prompt_tokens: 64
model:
  path: builtin
  builtin: {hidden_size: 16, layers: 1, heads: 2, max_positions: 256}
skills: {embedder: hash, index: memory, update: none, prompt_top_k: 1, prompt_max_tokens: 64, max_retrievals: 0, dedup_threshold: null}
optimize:
  every: 2
  optimizer: induce
  optimizer_options: {grammar: "skill_ttrl.data.families:OperatorGrammar"}
  batch_size: 16
  edit_budget: 1
  min_edit_budget: 1
rollout: {n_votes_per_prompt: 2, n_samples_per_prompt: 2, max_new_tokens: 4}
rl: {reward: label, steps: 6, prompts_per_step: 10, kl_coef: 0.0, save_steps: 3, mini_batch_size: null}
eval: {samples: 1, greedy: false}
runtime: {device: cpu, threads: 1}
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "both.yaml"
    path.write_text(BOTH)
    return path


@pytest.fixture(scope="module")
def whole(both: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train.run(load_config(both), folder)
    return folder


def test_every_second_step_edits_the_bank_by_one_update(whole: Path) -> None:
    lines = (whole / "bank" / "log.jsonl").read_bytes().split(b"\n")[:-1]
    edits = [update for update in (from_json(BankUpdate, line) for line in lines) if update.reason == "optimize"]
    assert [update.step for update in edits] == [1, 3, 5]
    assert all(update.evidence and update.writer == "run" for update in edits)
    with SkillBank.open(whole / "bank", read_only=True) as bank:
        skills = list(bank)
    assert len(skills) == 3, "30 training problems are of three names"
    assert all(skill.source == "optimize" and skill.text in OperatorGrammar().lines(skill.title) for skill in skills)
    rows = read_jsonl(whole / "metrics.jsonl")
    assert [row["step"] for row in rows if "optimize/edits" in row] == [1, 3, 5]
    assert rows[1]["optimize/edits"] == rows[1]["optimize/changes"] == 1 and rows[1]["optimize/failures"] >= 15
    looks = read_jsonl(whole / "optimize.jsonl")
    assert [look["rollouts"] for look in looks] == [16] * 3 and looks[0]["changes"][0]["kind"] == "add"
    assert [(look["edits"], look["applied"], look["changed"]) for look in looks] == [(1, 1, 1)] * 3
    assert looks[0]["report"][0]["status"] == "applied_append"
    assert inspect(whole / "optimize.jsonl").facts == {"lines": 3}


def test_stopped_and_resumed_the_bank_is_that_of_a_run_that_was_never_stopped(
    whole: Path, both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is of step 3, between two edits: what was learned from failures before it is part of it."""

    def breaks(run: Run, text: BankText | None, groups: Sequence[Group], step: int) -> dict[str, float]:
        found = edit_text(run, text, groups, step)
        if step == 3:
            raise RuntimeError("the machine is gone")
        return found

    with monkeypatch.context() as patched:
        patched.setattr("skill_ttrl.train.rl.edit_text", breaks)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            train.run(load_config(both), tmp_path / "run")
    train.run(load_config(both), tmp_path / "run", resume="auto")
    for name in ("bank/log.jsonl", "optimize.jsonl", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes(), name
    assert checkpoint_state(tmp_path / "run") == checkpoint_state(whole)
    assert checkpoint_state(whole)["updates"] == 3


def checkpoint_state(run: Path) -> Any:
    with RunFolder.open(run) as folder:
        checkpoint = newest(folder)
    assert checkpoint is not None
    return load_state(checkpoint.path)["state"]["optimize"]


def test_a_language_model_edits_the_bank(both: Path, tmp_path: Path) -> None:
    edit = {"op": "append", "content": "## Ask\n\nAsk for a rule before you answer."}
    with scripted({"reasoning": "They guess.", "edits": [edit]}) as server:
        told = {"model": "scripted", "base_url": server.url, "max_retries": "0", "timeout": "5"}
        changes = [f"endpoints.roles.optimizer.{name}={value}" for name, value in told.items()]
        changes += ["optimize.optimizer=openai", "optimize.optimizer_options={}", "rl.steps=2"]
        train.run(load_config(both, changes), tmp_path / "run")
        requests = asked(server)
    assert len(requests) >= 2 and "Compute " in str(requests[0])
    with SkillBank.open(tmp_path / "run" / "bank", read_only=True) as bank:
        (only,) = bank
    assert (only.title, only.text, only.source) == ("Ask", "Ask for a rule before you answer.", "optimize")


def test_with_a_gate_the_edits_wait_for_its_decision(both: Path, tmp_path: Path) -> None:
    gate = "skills.gate={data: {path: 'synthetic:operators', split: train}, tasks: 4, rollouts_per_task: 1, every: 4}"
    train.run(load_config(both, [gate, "rl.prompts_per_step=8"]), tmp_path / "run")
    with SkillBank.open(tmp_path / "run" / "bank", read_only=True) as bank:
        assert len(bank) == 0, "a policy that never answers shows no gain"
    decisions = read_jsonl(tmp_path / "run" / "gate.jsonl")
    assert [(each["step"], each["accepted"]) for each in decisions] == [(3, False), (5, False)]
    assert [[change["source"] for change in each["changes"]] for each in decisions] == [["optimize"] * 2, ["optimize"]]
