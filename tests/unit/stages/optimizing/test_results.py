"""A trajectory as the text optimizer reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import make_env
from skill_ttrl.errors import DataError, EnvError
from skill_ttrl.optimize.calls import Calls, Item, Journal
from skill_ttrl.optimize.types import RolloutResult, graded
from skill_ttrl.progress import SilentProgress
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.stages.optimize import place_of, prepare
from skill_ttrl.stages.optimizing.bank_text import rollouts_of
from skill_ttrl.stages.optimizing.rollouts import as_result
from skill_ttrl.stages.setup.policy import make_agent
from skill_ttrl.stages.training.run import RolloutWorker
from skill_ttrl.types import Completion, Group, Step, StopReason, Task, Trajectory
from tests.scripted_backend import ScriptedBackend


def rollout(
    answer: str | None = "7",
    *,
    reference: str | None = None,
    reward: float = 0.0,
    info: dict[str, Any] | None = None,
    stop: StopReason = "terminated",
    written: str = "It is 7.",
    **more: Any,
) -> Trajectory:
    task = Task("t-1", "E-v0", {"question": "2 + 5?"}, task_type="sum", ground_truth=reference)
    step = Step(
        "2 + 5?", written, reward, stop == "terminated", False, completion=Completion(written, (1,), (0.0,), "stop")
    )
    if info is not None:
        step = Step("2 + 5?", written, reward, True, False, completion=step.completion, info=info)
    return Trajectory(task, (step,), answer, stop, **more)


def test_a_true_answer_decides_where_the_environment_does_not_say_won() -> None:
    right, wrong = as_result(rollout(reference="7.0")), as_result(rollout("8", reference="7", reward=1.0))
    assert (right.hard, right.soft, right.fail_reason) == (1, 1.0, "")
    assert (wrong.hard, wrong.soft) == (0, 0.0) and wrong.fail_reason == "answered '8', expected '7'"
    assert (wrong.id, wrong.question, wrong.predicted_answer, wrong.reference_text) == ("t-1", "2 + 5?", "8", "7")
    assert wrong.conversation == [{"role": "user", "content": "2 + 5?"}, {"role": "assistant", "content": "It is 7."}]


def test_a_true_answer_is_not_shown_where_it_must_not_be() -> None:
    wrong = rollout("8", reference="7")
    (edited,) = rollouts_of([Group(wrong.task, (wrong,))], 4, show_reference=False)  # a training without labels
    hidden = as_result(wrong, show_reference=False)
    assert edited == hidden
    assert hidden.reference_text == "" and "7" not in hidden.fail_reason and hidden.hard == 0


def test_the_environment_s_word_comes_first_and_its_score_is_soft() -> None:
    partly = as_result(rollout(None, reward=0.5, info={"won": False, "score": 0.5}))
    assert (partly.hard, partly.soft, partly.fail_reason) == (0, 0.5, "only partly right (score 0.50)")
    won = as_result(rollout("8", reference="7", info={"won": True, "score": 1.0}))
    assert (won.hard, won.soft) == (1, 1.0)
    assert as_result(rollout(None, reward=1.0)).hard == 1


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (rollout(None, reference="7"), "no answer was found in the reply"),
        (rollout(None, stop="max_turns"), "the task was not done after 1 turns"),
        (rollout(None, stop="error", error="ValueError: no"), "error: ValueError: no"),
        (rollout(None, stop="timeout", error="late"), "timeout: late"),
        (rollout(None, info={"graded": False}), "nothing tells whether it succeeded"),
        (rollout(None), "the task was not done"),
    ],
)
def test_a_failure_has_its_reason(made: Trajectory, why: str) -> None:
    result = as_result(made)
    assert (result.hard, result.fail_reason) == (0, why)


def test_what_nothing_grades_and_what_only_the_environment_rewards_is_marked() -> None:
    assert as_result(rollout(info={"graded": False})).ungraded
    assert not as_result(rollout(info={"graded": False}, reference="8")).ungraded
    assert as_result(rollout(None, reward=1.0)).extras == {"stop_reason": "terminated"}
    assert as_result(rollout("8", reference="7", reward=1.0)).extras["rewarded"]
    assert "rewarded" not in as_result(rollout("8", reference="7", reward=1.0, info={"won": False})).extras


DOCUMENT = "## Dates\n\nYear first.\n\n## Lists\n\n- Sort them.\n- No commas.\n"


def placed(**optimize: Any) -> RolloutWorker:
    sections = {"agent": {"template": "plain"}, "skills": {"embedder": "hash"}, "optimize": optimize}
    config = SkillTTRLConfig.model_validate(sections)
    backend = ScriptedBackend(["x"])
    worker = RolloutWorker(config, backend, make_agent(config, backend), EnvPool(lambda: make_env("qa")))
    return place_of(config)(worker, DOCUMENT)


@pytest.mark.parametrize(
    ("granularity", "titles"), [("section", ["Dates", "Lists"]), ("skill_ttrl.data.families:read_rules", [])]
)
def test_its_parts_are_the_skills_of_a_bank(granularity: str, titles: list[str]) -> None:
    bank = placed(place="bank", granularity=granularity).agent.bank
    assert bank is not None and [skill.title for skill in bank.snapshot] == titles


def test_or_it_stands_in_the_prompt() -> None:
    worker = placed()
    assert worker.agent.prompt(AgentInput("1+1?")).messages[0].content == DOCUMENT and worker.agent.bank is None


def test_a_program_is_optimized_for_by_its_config() -> None:
    config = {
        "env": {"id": "qa", "train_tasks": 16},
        "rollout": {"backend": "command"},
        "command": {"argv": "my-agent"},
    }
    found = prepare(config, overrides=["optimize.selection.split=val", "optimize.optimizer=induce"])
    assert found.target.name == "my-agent" and len(found.tasks["train"]) == 16


ITEMS: list[dict[str, Any]] = [{"id": name} for name in "abcd"]


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def notice(self, text: str, *, warning: bool = False) -> None:
        self.lines.append(text)


def calls(marks: dict[str, dict[str, Any]], journal: Path, notes: Notes) -> Calls:
    def roll_out(
        document: str, items: Sequence[Item], *, seed: int, on_result: Callable[[int, RolloutResult], None]
    ) -> list[RolloutResult]:
        return [RolloutResult(item["id"], extras=marks.get(item["id"], {})) for item in items]

    return Calls(None, roll_out, Journal(journal), progress=notes)


def test_a_run_that_nothing_grades_ends_with_its_first_rollouts_and_begins_anew(tmp_path: Path) -> None:
    marks = {item["id"]: {"ungraded": True} for item in ITEMS} | {"a": {"stop_reason": "error"}}
    with pytest.raises(EnvError, match=r"ungraded \(first 'b'\)"):
        calls(marks, tmp_path / "journal.jsonl", Notes()).roll_out("selection", "", ITEMS)
    again = calls({}, tmp_path / "journal.jsonl", notes := Notes())
    assert again.journal.replayed == 0
    assert not any(result.ungraded for result in again.roll_out("selection", "", ITEMS)) and not notes.lines


def test_some_that_nothing_grades_are_counted_and_said_once(tmp_path: Path) -> None:
    found = calls({"a": {"ungraded": True}, "b": {"rewarded": True}}, tmp_path / "journal.jsonl", notes := Notes())
    for document in ("", "one"):
        results = found.roll_out("rollout", document, ITEMS)
    assert [result.id for result in graded(results)] == ["b", "c", "d"]
    assert found.counts["rollout"].ungraded == 2
    assert [line.split(" rollouts")[0] for line in notes.lines] == ["1 of 4", "1 of 4"]
    assert "ungraded" in notes.lines[0] and "info['won']" in notes.lines[1]
    found.roll_out("rollout", "two", ITEMS[:1])  # something was graded before: one ungraded batch ends nothing


@pytest.mark.parametrize("env", ["qa", "math"])
def test_tasks_without_a_true_answer_are_refused_where_nothing_else_tells(env: str, tmp_path: Path) -> None:
    def written(name: str, answers: Sequence[str | None], **more: Any) -> dict[str, str]:
        rows = [{"id": f"{name}{n}", "question": f"{name} {n}?", "answer": text} for n, text in enumerate(answers)]
        (tmp_path / name).write_text("".join(json.dumps({**row, **more}) + "\n" for row in rows))
        return {"path": str(tmp_path / name)}

    data = {"train": written("t.jsonl", ["1", None, "3", None]), "eval": written("e.jsonl", [None, None])}
    own = {"data": written("s.jsonl", ["1", "2"])["path"]}
    config = {"env": {"id": env}, "rollout": {"backend": "openai"}, "data": data, "optimize": {"selection": own}}
    endpoints = {"model": "m", "roles": {"optimizer": {}}}
    with pytest.raises(DataError) as caught:
        prepare({**config, "endpoints": endpoints}, policy="openai:m")
    text = str(caught.value)
    assert text.startswith(
        "2 of 4 training tasks (first 't.jsonl1' ('t.jsonl 1?')) and 2 of 2 test tasks (first 'e.jsonl0'"
    )
    assert "no true answer" in text and "optimize.test_tasks=0" in text
