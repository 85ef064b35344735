"""The features beyond the six stages in whole runs: each changes the run in the way that it promises, and a killed run goes on exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls, Item, Journal, Reply
from skill_ttrl.optimize.documents import split
from skill_ttrl.optimize.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.loop import optimize
from skill_ttrl.optimize.record import EpochRecord, Optimized, OptimizeState, OptimizeTask, StepRecord, Watch
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.prompts.templates import Templates

RULES = ("red", "green", "blue", "grey")
OFF: dict[str, Any] = {"step_buffer": False, "meta_skill": False, "slow_update": False}
ALL: dict[str, Any] = {
    "epochs": 3, "accumulation": 2, "batch_size": 3, "lr_scheduler": "autonomous",
}  # fmt: skip


def some(split: str, count: int) -> list[Item]:
    return [{"id": f"{split}-{place}", "rule": RULES[place % len(RULES)]} for place in range(count)]


TASK = OptimizeTask(some("train", 12), some("val", 4), some("test", 4), name="colours")


class Killed(BaseException):
    """Ends a run at once."""


class World:
    """A scripted target that succeeds where the document names an item's rule, and a scripted model.

    Args:
        answers: by stage: an answer, or a function from the request to one.
        limit: pieces of work before it kills the run.
        first: requests that another process has made before.
    """

    def __init__(self, limit: int | None = None, first: int = 0, **answers: Any) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.rollouts: list[tuple[str, str]] = []
        self.answers, self._limit, self._first = answers, limit, first

    def work(self) -> None:
        if self._limit is not None and len(self.requests) + len(self.rollouts) >= self._limit:
            raise Killed

    def __call__(
        self, document: str, items: Sequence[Item], *, seed: int, on_result: Callable[[int, RolloutResult], None]
    ) -> list[RolloutResult]:
        results = []
        for place, item in enumerate(items):
            self.work()
            self.rollouts.append((document, str(item["id"])))
            right = str(item["rule"]) in document
            results.append(
                RolloutResult(str(item["id"]), int(right), float(right), fail_reason="" if right else item["rule"])
            )
            on_result(place, results[-1])
        return results

    def chat(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
        self.work()
        self.requests.append((stage, system, user))
        given = self.answers.get(stage, lambda user: self.default(stage, user))
        answer = given(user) if callable(given) else given
        return Reply(answer if isinstance(answer, str) else json.dumps(answer), 10, 5)

    def default(self, stage: str, user: str) -> dict[str, Any]:
        """Edits that name what failed; a merge that drops doubles; guidance, memory and notes with their number."""
        edits = [{"op": "append", "content": name} for name in sorted(set(re.findall(r"of the failure: (\w+)", user)))]
        if stage.startswith("merge"):
            edits = [edit for patch in json.loads(user[user.index("[\n") :]) for edit in patch.get("edits", [])]
            edits = list({edit["content"]: edit for edit in edits}.values())
        number = self._first + len(self.requests)
        return {
            "edits": edits,
            "skill_candidates": [{"new_skill": " ".join(rule for rule in RULES if rule in user)}],
            "selected_indices": [0, 1, 2, 3],
            "learning_rate": 1,
            "slow_update_content": f"guidance {number}",
            "meta_skill_content": f"lesson {number}",
        }

    def of(self, stage: str) -> list[str]:
        """Requests of a stage."""
        return [user for each, _, user in self.requests if each == stage]


class Watching(Watch):
    """Keeps the records."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.epochs: list[EpochRecord] = []
        self.states: list[OptimizeState] = []

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        self.steps.append(record)
        self.states.append(state)

    def epoch(self, record: EpochRecord, state: OptimizeState) -> None:
        self.epochs.append(record)


def run(
    world: World, document: str = "", journal: Path | None = None, **settings: Any
) -> tuple[Optimized, Watching, Calls]:
    config = OptimizeConfig.model_validate({"epochs": 2, "batch_size": 6, "minibatch_size": 2, **settings})
    calls = Calls(world.chat, world, Journal(journal), seed=1, workers=1)
    watch = Watching()
    found = optimize(
        TASK, document, config, calls, LLMOptimizer(calls, config, Templates(base="optimize")), seed=1, watch=watch
    )
    return found, watch, calls


def useless(user: str) -> dict[str, Any]:
    return {"edits": [{"op": "append", "content": f"noise {len(user)}"}]}


def test_accumulated_batches_make_one_update() -> None:
    world = World()
    _, watch, calls = run(world, **OFF, epochs=1, batch_size=3, accumulation=2)
    assert len(watch.steps) == 2 and calls.counts["rollout"].done == 12
    first = [user for user in world.of("analyst_error") if "train" in user][:4]
    named = [len(re.findall("<rollout", user)) for user in first]
    assert named == [2, 1, 2, 1]  # minibatches do not cross batches
    assert len(watch.steps[0].rollouts) == 6 and len(watch.steps[0].raw_patches) == 4


@pytest.mark.parametrize("on", [True, False])
def test_rejected_edits_of_the_epoch_are_shown_to_later_steps(on: bool) -> None:
    world = World(analyst_error=useless, analyst_success=useless)
    _, watch, _ = run(world, **{**OFF, "step_buffer": on})
    assert {record.action for record in watch.steps} == {"reject"}
    shown = ["rejected edits" in user for user in world.of("analyst_error")]
    assert shown == [False] * 3 + [on] * 3 + [False] * 3 + [on] * 3  # the second step of each of two epochs
    assert any("noise" in user and "rejected edits" in user for user in world.of("merge_failure")) is on


def test_lessons_of_an_epoch_are_shown_to_the_optimizer_and_never_to_the_agent() -> None:
    world = World()
    _, _, calls = run(world, **{**OFF, "meta_skill": True, "epochs": 4})
    assert calls.counts["meta_skill"].done == 2  # not after the first epoch, not after the last
    assert len([user for user in world.of("meta_skill") if "lesson" in user]) == 1
    lessons = [stage for stage, _, user in world.requests if "What earlier epochs taught" in user]
    assert {"analyst_success"} <= set(lessons) and not any("lesson" in document for document, _ in world.rollouts)


def test_guidance_has_to_pass_the_gate() -> None:
    def guided(text: str) -> tuple[Optimized, Watching, Calls]:
        world = World(analyst_error=useless, slow_update={"slow_update_content": text})
        return run(world, **{**OFF, "slow_update": True})

    found, watch, calls = guided("nothing of use")
    assert [record.action for record in watch.epochs] == ["reject"] and split(found.state.current).guidance is None
    assert calls.counts["comparison"].done == 12  # the document had not changed: rolled out once
    assert [(row["action"], row["slow_update_content"]) for row in found.ends] == [("reject", "nothing of use")]
    found, watch, _ = guided("")
    assert found.ends[0]["fallbacks"] == {"slow_update": 1} and watch.epochs[0].action == "no_content"
    found, watch, _ = guided("red and green")
    assert split(found.state.best).guidance == "red and green" and found.state.best_score == 0.5


def test_the_edits_of_steps_cannot_touch_the_guidance() -> None:
    edit = {"op": "replace", "target": "be brief", "content": "be long"}
    world = World(analyst_success={"edits": [edit]}, slow_update={"slow_update_content": "be brief"})
    settings = {**OFF, "slow_update": True, "epochs": 3, "gate": {"rule": "none"}}
    found, watch, _ = run(world, "red green blue grey", **settings)
    assert split(found.state.current).guidance == "be brief"
    statuses = [[report["status"] for report in record.report] for record in watch.steps]
    assert statuses[0] == ["skipped_replace_target_not_found"] and statuses[-1] == ["skipped_protected_region"]


@pytest.mark.parametrize(
    ("answer", "applied", "fallbacks"),
    [({"learning_rate": 2}, 2, 0), ({"learning_rate": 99}, 4, 0), ("All of them!", 0, 2)],
)
def test_the_model_sets_the_edit_budget(answer: Any, applied: int, fallbacks: int) -> None:
    world = World(
        lr_autonomous=answer, merge_failure=lambda _: {"edits": [{"op": "append", "content": c} for c in RULES]}
    )
    found, watch, _ = run(world, **OFF, lr_scheduler="autonomous", epochs=1)
    assert len(watch.steps[0].report) == watch.steps[0].edit_budget == applied
    assert sum(row["fallbacks"].get("lr_autonomous", 0) for row in found.rows) == fallbacks
    assert found.rows[0]["lr_decision"]["learning_rate"] == applied
    if not applied:
        assert found.state.best == "" and watch.steps[0].action == "skip_no_budget"
        assert not world.of("ranking")


def test_suggestions_are_carried_out_by_one_call() -> None:
    def suggest(user: str) -> dict[str, Any]:
        named = sorted(set(re.findall(r"of the failure: (\w+)|name (\w+)", user)))
        return {"revise_suggestions": [{"type": "add_rule", "instruction": f"name {a or b}"} for a, b in named]}

    def write(user: str) -> dict[str, Any]:
        return {"new_skill": "# Rules\n" + " ".join(re.findall(r'"name (\w+)"', user))}

    world = World(
        analyst_error=suggest, merge_failure=suggest, merge_final=suggest, analyst_success=suggest, rewrite_skill=write
    )
    found, watch, calls = run(world, **OFF, update_mode="rewrite_from_suggestions")
    assert found.state.best.startswith("# Rules\n") and found.state.best_score == 1.0
    assert calls.counts["rewrite_skill"].done == sum(record.candidate is not None for record in watch.steps)
    assert any("revise_suggestions" in system for stage, system, _ in world.requests if stage == "analyst_error")
    assert watch.steps[0].merged is not None and "revise_suggestions" in watch.steps[0].merged.to_dict()
    world = World(analyst_error=suggest, merge_failure=suggest, rewrite_skill="A new document, as prose.")
    found, watch, _ = run(world, **OFF, update_mode="rewrite_from_suggestions", epochs=1)
    assert {record.action for record in watch.steps} == {"skip_no_rewrite"}
    assert found.rows[0]["fallbacks"]["rewrite_skill"] == 1


def test_whole_documents_are_merged_into_one() -> None:
    def write(user: str) -> dict[str, Any]:
        return {"skill_candidates": [{"title": "t", "new_skill": " ".join(rule for rule in RULES if rule in user)}]}

    world = World(analyst_error=write, analyst_success=write, merge_failure=write, merge_final=write)
    found, watch, _ = run(
        world, "<!-- SLOW_UPDATE_START -->\nnote\n<!-- SLOW_UPDATE_END -->", **OFF, update_mode="full_rewrite_minibatch"
    )
    assert found.state.best_score == 1.0 and split(found.state.best).guidance == "note"
    assert split(found.state.best).body.split() == list(RULES)
    assert not world.of("ranking") and watch.steps[0].edit_budget is None


@pytest.mark.parametrize("settings", [ALL, {**ALL, "update_mode": "full_rewrite_minibatch", "lr_scheduler": "none"}])
def test_killed_anywhere_with_all_features_on_a_run_goes_on_exactly(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = World()
    expected, _, _ = run(whole, journal=tmp_path / "whole", **settings)
    lines = (tmp_path / "whole").read_bytes()
    total = len(whole.requests) + len(whole.rollouts)
    stages = {stage for stage, _, _ in whole.requests}
    if "update_mode" not in settings:
        assert stages >= {
            "slow_update",
            "meta_skill",
            "lr_autonomous",
            "ranking",
            "merge_failure",
        }
    for limit in range(3, total, max(1, total // 6)):
        path = tmp_path / str(limit)
        dying = World(limit)
        with pytest.raises(Killed):
            run(dying, journal=path, **settings)
        rest = World(first=len(dying.requests))
        found, _, _ = run(rest, journal=path, **settings)
        assert path.read_bytes() == lines  # the same calls, the same answers, none twice
        assert (found.state, found.test_best) == (expected.state, expected.test_best)
        assert dying.requests + rest.requests == whole.requests and dying.rollouts + rest.rollouts == whole.rollouts


def test_a_document_that_says_the_same_is_no_candidate() -> None:
    stated = {"edits": [{"op": "append", "content": "-  mind the COLOUR"}], "selected_indices": [0]}
    world = World(analyst_error=stated, merge_failure=stated)
    found, watch, _ = run(world, "- Mind the colour.\n", **OFF)
    assert {record.action for record in watch.steps} == {
        "skip_no_change"
    } and found.state.best == "- Mind the colour.\n"
