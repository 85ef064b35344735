"""The loop of SkillOpt on a world of three rules: it finds them, replays exactly, and pays for nothing twice."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import BudgetError, DataError, EndpointError
from skill_ttrl.optimize.calls import Calls, Item, Journal, Reply
from skill_ttrl.optimize.folder import FolderWatch
from skill_ttrl.optimize.loop import optimize
from skill_ttrl.optimize.record import Optimized, OptimizeTask
from skill_ttrl.optimize.reflection.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.prompts.templates import Templates

RULES = ("red", "green", "blue")


def some(split: str, count: int) -> list[Item]:
    return [{"id": f"{split}-{place}", "rule": RULES[place % len(RULES)]} for place in range(count)]


TASK = OptimizeTask(some("train", 12), some("val", 6), some("test", 6), name="colours")
CONFIG = OptimizeConfig(epochs=2, batch_size=6, minibatch_size=2)


class World:
    """A scripted target that succeeds where the document names an item's rule, and a scripted optimizer that names what failed."""

    def __init__(self, die_after: int | None = None) -> None:
        self.rollouts = self.requests = 0
        self.stages: list[str] = []
        self._die_after = die_after
        self._lock = threading.Lock()

    def work(self) -> None:
        with self._lock:
            if self._die_after is not None and self.rollouts + self.requests >= self._die_after:
                raise BudgetError("dead")

    def __call__(
        self, document: str, items: Sequence[Item], *, seed: int, on_result: Callable[[int, RolloutResult], None]
    ) -> list[RolloutResult]:
        results = []
        for place, item in enumerate(items):
            self.work()
            self.rollouts += 1
            right = str(item["rule"]) in document
            results.append(
                RolloutResult(str(item["id"]), int(right), float(right), fail_reason="" if right else item["rule"])
            )
            on_result(place, results[-1])
        return results

    def chat(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
        self.work()
        with self._lock:
            self.requests += 1
            self.stages.append(stage)
        return Reply(self.answer(user, stage), 10, 5)

    def answer(self, user: str, stage: str) -> str:
        failed = sorted(set(re.findall(r"Reason of the failure: (\w+)", user)))
        edits = [{"op": "append", "content": name} for name in failed]
        if stage.startswith("merge"):
            edits = [edit for patch in json.loads(user[user.index("[\n") :]) for edit in patch["edits"]]
            edits = list({edit["content"]: edit for edit in edits}.values())
        return json.dumps({"reasoning": stage, "edits": edits, "selected_indices": [0, 1, 2, 3]})


def run(
    world: World, folder: Path | None = None, config: OptimizeConfig = CONFIG, **how: Any
) -> tuple[Optimized, Calls]:
    journal = Journal(None if folder is None else folder / "journal.jsonl")
    calls = Calls(world.chat, world, journal, seed=1, **how)
    watch = None if folder is None else FolderWatch(folder)
    optimizer = LLMOptimizer(calls, config, Templates(base="optimize"))
    found = optimize(TASK, "", config, calls, optimizer, seed=1, watch=watch)
    return found, calls


def test_the_rules_that_failures_name_are_found() -> None:
    found, calls = run(World())
    assert all(rule in found.state.best for rule in RULES)
    assert found.first_evaluation.hard == 0 and found.state.best_score == 1.0
    assert found.rows[0]["action"] == "accept_new_best"
    assert [result.hard for result in found.test_first or ()] == [0] * 6
    assert [result.hard for result in found.test_best or ()] == [1] * 6
    assert calls.counts["test"].done == 12 and calls.counts["rollout"].done == 24


@pytest.mark.parametrize("die_after", [1, 9, 14, 17, 21, 40])
def test_a_run_that_died_goes_on_as_if_it_had_not(tmp_path: Path, die_after: int) -> None:
    whole = World()
    expected, _ = run(whole)
    dying = World(die_after)
    with suppress(BudgetError):
        run(dying, tmp_path, workers=1)
    rest = World()
    found, _ = run(rest, tmp_path, workers=1)
    assert (found.state, found.test_best) == (expected.state, expected.test_best)
    assert _untimed(found) == _untimed(expected)
    assert dying.requests + rest.requests == whole.requests
    assert dying.rollouts + rest.rollouts == whole.rollouts


def _untimed(found: Optimized) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "timing"} for row in found.rows]


def test_a_candidate_that_cannot_win_is_abandoned_and_the_decision_stays() -> None:
    class Useless(World):
        def answer(self, user: str, stage: str) -> str:
            return json.dumps(
                {"edits": [{"op": "append", "content": f"noise {self.requests}"}], "selected_indices": [0]}
            )

    def gated(early_stop: bool) -> tuple[list[str], int]:
        config = OptimizeConfig.model_validate(
            {"epochs": 1, "batch_size": 6, "gate": {"early_stop": early_stop, "chunk": 2}, "test": False}
        )
        world = Useless()
        task = OptimizeTask(TASK.train, [*some("val", 3), *({"id": f"no-{n}", "rule": "none"} for n in range(9))])
        calls = Calls(world.chat, world, seed=1)
        found = optimize(task, "red green blue", config, calls, LLMOptimizer(calls, config, Templates(base="optimize")))
        return [row["action"] for row in found.rows], calls.counts["selection"].done

    (actions, rolled), (same, more) = gated(True), gated(False)
    assert actions == same == ["reject", "reject"] and rolled < more == 36


def test_answers_that_are_no_json_are_counted_and_not_fatal() -> None:
    class Prose(World):
        def answer(self, user: str, stage: str) -> str:
            return "I would rather write prose." if self.requests % 2 else '{"edits": [{"op"'

    found, calls = run(Prose())
    assert [row["action"] for row in found.rows] == ["skip_no_patches"] * 4
    assert sum(row["fallbacks"]["analyst"] for row in found.rows) == calls.counts["analyst_error"].asked


def test_requests_without_an_answer_are_counted_or_end_the_run() -> None:
    class Broken(World):
        def answer(self, user: str, stage: str) -> str:
            raise EndpointError("no answer", "failed")

    _, calls = run(Broken())
    assert calls.counts["analyst_error"].failed == calls.counts["analyst_error"].asked
    with pytest.raises(EndpointError, match="no answer"):
        run(Broken(), on_failure="stop")


def test_analysts_are_told_how_long_the_document_may_become() -> None:
    class Reading(World):
        def answer(self, user: str, stage: str) -> str:
            assert stage != "analyst_error" or ("## Length" in user and "With more than 50 it is rejected" in user)
            return super().answer(user, stage)

    run(Reading(), config=CONFIG.model_copy(update={"max_document_tokens": 50}))


def test_a_document_over_its_budget_is_rejected_unevaluated() -> None:
    config = CONFIG.model_copy(update={"max_document_tokens": 1})
    found, calls = run(World(), config=config)
    assert {row["action"] for row in found.rows} == {"reject_too_long"}
    assert calls.counts["selection"].done == 6
    world = World()
    calls = Calls(world.chat, world)
    with pytest.raises(DataError, match="max_document_tokens is 1"):
        optimize(TASK, "too long", config, calls, LLMOptimizer(calls, config))


@pytest.mark.parametrize(("train", "selection", "named"), [(0, 3, "training"), (3, 0, "selection")])
def test_an_empty_split_is_refused(train: int, selection: int, named: str) -> None:
    world = World()
    calls = Calls(world.chat, world)
    task = OptimizeTask(some("train", train), some("val", selection))
    with pytest.raises(DataError, match=f"no {named} items"):
        optimize(task, "", CONFIG, calls, LLMOptimizer(calls, CONFIG))
    assert world.rollouts == 0


def test_the_folder_has_the_published_names(tmp_path: Path) -> None:
    found, _ = run(World(), tmp_path)
    assert (tmp_path / "best_skill.md").read_text() == found.state.best
    first = {path.name for path in (tmp_path / "steps" / "step_0001").iterdir()}
    assert first >= {
        "rollout_results.json",
        "raw_patches.json",
        "merged_patch.json",
        "ranked_patch.json",
        "selection_eval",
    }
    assert len(json.loads((tmp_path / "history.json").read_text())) == 4
    assert len(list((tmp_path / "skills").iterdir())) == 5


class Lucky(World):
    """Every rollout goes better than the one before it, and the optimizer proposes the line that is there."""

    def __call__(
        self, document: str, items: Sequence[Item], *, seed: int, on_result: Callable[[int, RolloutResult], None]
    ) -> list[RolloutResult]:
        results = super().__call__(document, items, seed=seed, on_result=lambda place, result: None)
        results = [RolloutResult(each.id, 0, self.rollouts / 1000, fail_reason="red") for each in results]
        for place, result in enumerate(results):
            on_result(place, result)
        return results

    def answer(self, user: str, stage: str) -> str:
        return json.dumps({"edits": [{"op": "append", "content": "-  mind the COLOUR"}], "selected_indices": [0]})


def test_a_candidate_that_says_what_the_document_says_is_none() -> None:
    world = Lucky()
    calls = Calls(world.chat, world, Journal(), seed=1)
    sizes = {"epochs": 2, "batch_size": 6, "minibatch_size": 2}
    config = OptimizeConfig.model_validate({**sizes, "gate": {"metric": "soft"}, "slow_update": {"enabled": False}})
    first = "- Mind the colour.\n"
    found = optimize(TASK, first, config, calls, LLMOptimizer(calls, config, Templates(base="optimize")))
    assert found.state.current == found.state.best == first
    assert {row["action"] for row in found.rows} == {"skip_no_change"}
