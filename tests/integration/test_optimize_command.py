"""`skillttrl optimize` through a really started server of OpenAI's protocol, behind which policy and optimizer answer."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.data.formats import CONVENTIONS, Formats
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError, RunFolderError, SkillTTRLError
from skill_ttrl.stages.evaluate import measure_policy
from skill_ttrl.stages.optimize import check_start, optimize_run, prepare
from skill_ttrl.stages.optimizing.summary import OptimizeSummary
from skill_ttrl.stages.reports.inspect import inspect
from tests import format_models
from tests.faulty_server import FaultyServer

SMALL: dict[str, Any] = {
    "name": "forms",
    "env": {"id": "qa", "train_tasks": 20, "eval_tasks": 6},
    "rollout": {"backend": "openai", "max_new_tokens": 40},
    "optimize": {"epochs": 2, "batch_size": 8, "minibatch_size": 4, "selection": {"tasks": 6}, "workers": 2},
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
        "best_skill.md", "current_skill.md", "runtime_state.json", "skills/*.md", "steps/*/[!s]*.json",
        "test_eval_*/*.json",
    )  # fmt: skip
    return {str(file.relative_to(folder)): file.read_bytes() for name in names for file in sorted(folder.glob(name))}


def requests_of(found: OptimizeSummary) -> int:
    return sum(each.asked - each.reused for each in found.work.values())


def test_the_loop_finds_rules_and_counts_what_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "first.md").write_text("## Conventions\n")
    first = tmp_path / "first.md"
    with server() as there:
        found = optimize_run(settings(there.url), output=tmp_path / "run", document=first)
        assert there.delivered["answers"] == requests_of(found)
        asked = len(there.asked)
        again = optimize_run(settings(there.url), output=tmp_path / "run", document=first)  # finished: nothing is sent
        assert again == found and len(there.asked) == asked
    assert found.test_first is not None and found.test_best is not None and found.test_change is not None
    assert found.test_first.hard == 0.0 and found.test_best.hard > 0.2
    assert found.test_change[0] == found.test_best.hard and found.test_best.items == 6
    assert found.fallbacks and found.actions["accept_new_best"] > 0
    assert found.usage["requests"] == requests_of(found)
    document = (tmp_path / "run/best_skill.md").read_text()
    assert sum(each.stated(document) for each in CONVENTIONS) >= 2
    (tmp_path / "first.md").unlink()
    looks_at(tmp_path / "run", found)


def looks_at(run: Path, found: OptimizeSummary) -> None:
    """Every other command knows what the run left."""
    seen = inspect(run)
    assert seen.kind == "optimization" and len(seen.rows) == found.steps and seen.facts["ended"] == "yes"
    (listed,) = inspect(run.parent).rows
    assert found.test_best and listed[2:4] == ("optimize", "yes") and listed[-1] == f"{found.test_best.hard:.3f}"


def test_a_document_is_evaluated_as_it_was_tested(tmp_path: Path) -> None:
    file = tmp_path / "rules.md"
    file.write_text(Formats().document(["date", "time"]))
    with server(format_models.clean) as there:
        shown = [f"agent.document={json.dumps(str(file))}", "eval.samples=1"]
        config = tmp_path / "forms.json"
        config.write_text(json.dumps(settings(there.url)))
        (found,) = measure_policy("openai", "qa", split="test", overrides=shown, config=str(config), limit=8)
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
        command = [
            sys.executable, "-m", "skill_ttrl.cli.main", "optimize", str(config), "--output",
            str(tmp_path / "run"),
        ]  # fmt: skip
        process.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        assert process[0].wait(60) == -signal.SIGKILL
        assert not (tmp_path / "run/summary.json").exists()
        resumed = optimize_run(config, output=tmp_path / "run")
        # The answer on its way at the kill may have been handed to a dead process.
        assert paid <= there.delivered["answers"] <= paid + 1
    assert files(tmp_path / "run") == files(tmp_path / "whole")
    assert resumed.work == whole.work and resumed.actions == whole.actions


def test_what_cannot_be_done_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with server(format_models.clean) as there:
        good = settings(there.url)
        with pytest.raises(ConfigError, match="Did you mean 'openai'"):
            optimize_run(good, policy="opnai:model", output=run)
        with pytest.raises(EndpointError):
            optimize_run(good, output=run, overrides=["endpoints.base_url=http://127.0.0.1:9/v1"])
        assert not list(run.glob("steps")) and not (run / "summary.json").exists()
        there.delivered.clear()
        with pytest.raises(BudgetError, match=r"same command"):
            optimize_run(good, output=tmp_path / "poor", overrides=["endpoints.max_requests=40"])
        found = optimize_run(good, output=tmp_path / "poor", overrides=["endpoints.max_requests=4000"])
        assert requests_of(found) == there.delivered["answers"]
        with pytest.raises(RunFolderError, match=r"optimize\.batch_size 8 there, 4 here"):
            optimize_run(good, output=tmp_path / "poor", overrides=["optimize.batch_size=4"])
        with pytest.raises(RunFolderError, match="already holds a run"):
            optimize_run(good, output=tmp_path / "poor", resume="never")


def test_a_dry_run_makes_every_check_of_the_command_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the command refuses before it starts, the dry run refuses in the same words, and the other way round."""
    run, other = tmp_path / "run", tmp_path / "other"
    monkeypatch.delenv("NO_KEY", raising=False)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "rankin.md").write_text("Rank.")
    with server(format_models.clean) as there:
        good = settings(there.url)
        optimize_run(good, output=other, overrides=["optimize.epochs=1", "optimize.test_tasks=0"])
        asked = len(there.asked)
        for key, changes, output, resume in (
            ("gepaa", ["optimize.engine=gepaa"], run, "auto"),
            ("Did you mean 'ranking'", [f"optimize.prompts={tmp_path / 'prompts'}"], run, "auto"),
            ("also a train", ["optimize.selection.tasks=null", "optimize.selection.split=train"], run, "auto"),
            ("NO_KEY", ["endpoints.roles.optimizer.api_key_env=NO_KEY"], run, "auto"),
            ("batch_size", ["optimize.batch_size=4"], other, "auto"),
            ("--output", [], other, "never"),
        ):
            said = []
            for start in (check_start, optimize_run):
                with pytest.raises(SkillTTRLError) as refused:
                    start(prepare(good, overrides=changes), output=output, resume=resume)  # type: ignore[arg-type]
                said.append(str(refused.value))
            assert said[0] == said[1] and key in said[0] and not run.exists(), (said, changes)
        found = check_start(prepare(good), output=run)
        assert found["items"] == {"train": 14, "selection": 6, "test": 6}
        assert (found["epochs"], found["steps"], found["step_items"]) == (2, 4, 8)
        assert not run.exists() and len(there.asked) == asked
        changed = prepare(good, overrides=["optimize.epochs=1", "optimize.test_tasks=0"])
        assert check_start(changed, output=other)["continues"]
