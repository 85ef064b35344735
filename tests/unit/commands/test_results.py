"""A trajectory as the text optimizer reads it; where a document stands; which tasks can be optimized on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.commands.optimize import place_of, prepare
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import make_env
from skill_ttrl.errors import DataError, EnvError
from skill_ttrl.optimize.calls import Calls, Item, Journal
from skill_ttrl.optimize.types import RolloutResult, graded
from skill_ttrl.progress import NoticeCollector
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.train.bank_changes import rollouts_of
from skill_ttrl.train.build import make_agent
from skill_ttrl.train.document_rollouts import as_result
from skill_ttrl.train.run import RolloutWorker
from skill_ttrl.types import Completion, Group, Step, StopReason, Task, Trajectory
from tests.scripted_backend import ScriptedBackend


def rollout(
    answer: str | None = "7",
    *,
    reference: str | None = None,
    reward: float = 0.0,
    info: dict[str, Any] | None = None,
    stop: StopReason = "terminated",
    **more: Any,
) -> Trajectory:
    task = Task("t-1", "E-v0", {"question": "2 + 5?"}, task_type="sum", ground_truth=reference)
    written = Completion("It is 7.", (1,), (0.0,), "stop")
    step = Step("2 + 5?", written.text, reward, stop == "terminated", False, completion=written, info=info or {})
    return Trajectory(task, (step,), answer, stop, **more)


WRONG = rollout("8", reference="7", reward=1.0)


@pytest.mark.parametrize(
    ("made", "hard", "soft", "why", "extras"),
    [  # a true answer decides, unless the environment says `won`; its score is `soft`
        (rollout(reference="7.0"), 1, 1.0, "", {}),
        (WRONG, 0, 0.0, "answered '8', expected '7'", {"rewarded": True}),
        (rollout("8", reference="7", reward=1.0, info={"won": True, "score": 1.0}), 1, 1.0, "", {}),
        (rollout("8", reference="7", reward=1.0, info={"won": False}), 0, 0.0, "answered '8', expected '7'", {}),
        (rollout(None, reward=0.5, info={"won": False, "score": 0.5}), 0, 0.5, "only partly right (score 0.50)", {}),
        (rollout(None, reward=1.0), 1, 1.0, "", {}),
        (rollout(None, reference="7"), 0, 0.0, "no answer was found in the reply", {}),
        (rollout(None, stop="max_turns"), 0, 0.0, "the task was not done after 1 turns", {}),
        (rollout(None, stop="error", error="ValueError: no"), 0, 0.0, "error: ValueError: no", {}),
        (rollout(None, info={"graded": False}), 0, 0.0, "nothing tells whether it succeeded", {"ungraded": True}),
        (rollout(info={"graded": False}, reference="7"), 1, 1.0, "", {}),
        (rollout(None), 0, 0.0, "the task was not done", {}),
    ],
)
def test_success_score_and_reason(made: Trajectory, hard: int, soft: float, why: str, extras: dict[str, Any]) -> None:
    found = as_result(made)
    assert (found.hard, found.soft, found.fail_reason) == (hard, soft, why)
    assert found.extras == {"stop_reason": made.stop_reason, **extras}


def test_what_a_result_holds_and_that_a_true_answer_is_not_shown_where_it_must_not_be() -> None:
    wrong = as_result(WRONG)
    assert (wrong.id, wrong.question, wrong.predicted_answer, wrong.reference_text) == ("t-1", "2 + 5?", "8", "7")
    assert wrong.conversation == [{"role": "user", "content": "2 + 5?"}, {"role": "assistant", "content": "It is 7."}]
    unrewarded = rollout("8", reference="7")
    (edited,) = rollouts_of([Group(WRONG.task, (unrewarded,))], 4, show_reference=False)  # a training without labels
    assert edited == as_result(unrewarded, show_reference=False)
    assert edited.reference_text == "" and "7" not in edited.fail_reason and edited.hard == 0


DOCUMENT = "## Dates\n\nYear first.\n\n## Lists\n\n- Sort them.\n- No commas.\n"


def placed(**optimize: Any) -> RolloutWorker:
    sections = {"agent": {"template": "plain"}, "skills": {"embedder": "hash"}, "optimize": optimize}
    config = SkillTTRLConfig.model_validate(sections)
    backend = ScriptedBackend(["x"])
    worker = RolloutWorker(config, backend, make_agent(config, backend), EnvPool(lambda: make_env("qa")))
    assert config.optimize is not None
    return place_of(config.optimize, config.skills)(worker, DOCUMENT)


@pytest.mark.parametrize(
    ("granularity", "titles"), [("section", ["Dates", "Lists"]), ("skill_ttrl.data.families:read_rules", [])]
)
def test_its_parts_are_the_skills_of_a_bank(granularity: str, titles: list[str]) -> None:
    bank = placed(place="bank", granularity=granularity).agent.bank
    assert bank is not None and [skill.title for skill in bank.snapshot] == titles


def test_or_it_stands_in_the_prompt() -> None:
    worker = placed()
    assert worker.agent.prompt(AgentInput("1+1?")).messages[0].content == DOCUMENT and worker.agent.bank is None


ITEMS: list[dict[str, Any]] = [{"id": name} for name in "abcd"]


def calls(marks: dict[str, dict[str, Any]], journal: Path, notes: NoticeCollector) -> Calls:
    def roll_out(document: str, items: Sequence[Item], **_: Any) -> list[RolloutResult]:
        return [RolloutResult(item["id"], extras=marks.get(item["id"], {})) for item in items]

    return Calls(None, roll_out, Journal(journal), progress=notes)


def test_what_nothing_grades_is_counted_and_said_once_and_ends_a_run_that_begins_with_it_alone(tmp_path: Path) -> None:
    marks, notes = (
        {item["id"]: {"ungraded": True} for item in ITEMS} | {"a": {"stop_reason": "error"}},
        NoticeCollector(),
    )
    with pytest.raises(EnvError, match=r"ungraded \(first 'b'\)"):
        calls(marks, tmp_path / "journal.jsonl", notes).roll_out("selection", "", ITEMS)
    found = calls({"a": {"ungraded": True}, "b": {"rewarded": True}}, tmp_path / "journal.jsonl", notes)
    assert found.journal.replayed == 0
    for document in ("", "one"):
        results = found.roll_out("rollout", document, ITEMS)
    assert [result.id for result in graded(results)] == ["b", "c", "d"] and found.counts["rollout"].ungraded == 2
    assert [text.split(" rollouts")[0] for text, _ in notes.notices] == ["1 of 4", "1 of 4"]
    assert "ungraded" in notes.notices[0][0] and "info['won']" in notes.notices[1][0]
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
    endpoints = {"model": "m", "base_url": "http://127.0.0.1:1", "roles": {"optimizer": {}}}
    with pytest.raises(DataError) as caught:
        prepare({**config, "endpoints": endpoints}, policy="openai:m")
    said = str(caught.value)
    assert "(task 't.jsonl1') has" in said and "no true answer" in said and "optimize.test_tasks=0" in said
