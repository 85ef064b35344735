"""A skill document and a small real policy that follows the rules it is shown (`quickstart_skills`' cold start).

The policy rolls out documents, and the whole loop of the text optimizer finds the rules that are missing, with no language model.
Over seeds and beside controls: benchmarks/optimize_skills.py.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.data.operators import OperatorGrammar, Operators, read_rules
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.errors import DataError
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.induction import InductionOptimizer
from skill_ttrl.optimize.loop import optimize
from skill_ttrl.optimize.record import OptimizeTask
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.progress import SilentProgress
from skill_ttrl.stages.optimize import open_rollouts
from skill_ttrl.stages.optimizing.rollouts import PolicyRollouts, as_bank
from skill_ttrl.stages.targets.resolve import resolve_target

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
    splits = {
        "train": [task for task in TASKS if task.id[-1] in "2357"],
        "selection": [task for task in TASKS if task.id[-1] in "149"],
        "test": [task for task in TASKS if task.id[-1] in "068"],
    }
    with open_rollouts(target, splits, as_bank(target.config.skills, read_rules), SilentProgress()) as found:
        yield found


def test_a_policy_rolls_out_a_document_as_its_bank(opened: Opened) -> None:
    roll_out, items = opened
    first = {task.id: task for task in TASKS}[items["train"][0]["id"]]
    assert items["train"][0] == {
        "id": first.id,
        "split": "test",
        "task_type": "operator",
        "question": first.options["question"],
    }
    every = [item for part in items.values() for item in part]
    told: list[tuple[int, RolloutResult]] = []
    ruled = roll_out(RULES, every, seed=1, on_result=lambda place, result: told.append((place, result)))
    again = roll_out(RULES, every[7:9], seed=2)
    assert len(every) == 40 and sum(result.hard for result in ruled) >= 34 and not roll_out.batched
    assert [result.id for result in ruled] == [item["id"] for item in every]
    assert sorted(place for place, _ in told) == [*range(40)] and all(ruled[place] == one for place, one in told)
    assert again == ruled[7:9], "greedy results depend on neither the seed nor the other items"
    assert ruled[0].extras["skills_in_prompt"] == [f"op-{NAMES[0]}"] and ruled[0].reference_text == first.ground_truth
    with pytest.raises(DataError, match="no task 'x'"):
        roll_out("", [{"id": "x"}], seed=1)


def test_the_loop_finds_the_missing_rules_from_failures_alone(opened: Opened) -> None:
    roll_out, items = opened
    task = OptimizeTask(items["train"], items["selection"], items["test"])
    calls = Calls(None, roll_out, reuse_rollouts=True)
    config = OptimizeConfig(optimizer="induce", epochs=3, batch_size=8)
    done = optimize(task, "", config, calls, InductionOptimizer(OperatorGrammar()), seed=1)
    assert done.test_first is not None and done.test_best is not None
    assert sum(result.hard for result in done.test_first) <= 4
    assert sum(result.hard for result in done.test_best) >= 10, "of 12 problems that were never rolled out before"


@pytest.mark.slow
def test_killed_and_continued_a_sampled_optimization_ends_with_the_same_document(tmp_path: Path) -> None:
    """At temperature 1 a rollout depends on those that are sampled with it: a part of a batch is sampled with the whole again."""
    told = [*SHOWN, "agent={template: plain, prompts: tiny}", "data.max_prompt_tokens=64", "rollout.max_new_tokens=40"]
    told += ["optimize.epochs=1", "optimize.temperature=1.0", "optimize.selection.tasks=60", "optimize.test_tasks=60"]
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
