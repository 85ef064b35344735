"""The loop in whole runs: each feature changes the run in the way that it promises, and a killed run goes on exactly; and the document as text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import OptimizeConfig, OptimizeGateConfig
from skill_ttrl.optimize.calls import Calls, Item, Journal, Reply
from skill_ttrl.optimize.documents import (
    END,
    START,
    apply_patch_outside,
    apply_patch_with_report,
    read_patch,
    read_text,
    split,
    strip_markers,
    unescape_tags,
    with_guidance,
)
from skill_ttrl.optimize.gate import Selection, decide
from skill_ttrl.optimize.lessons import show_rollout
from skill_ttrl.optimize.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.loop import Loop, optimize
from skill_ttrl.optimize.record import EpochRecord, Optimized, OptimizeState, OptimizeTask, StepRecord, Watch
from skill_ttrl.optimize.types import Edit, Patch, RolloutResult
from skill_ttrl.prompts.templates import Templates

RULES = ("red", "green", "blue", "grey")


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
            why = "" if right else item["rule"]
            results.append(RolloutResult(str(item["id"]), int(right), float(right), fail_reason=why))
            on_result(place, results[-1])
        return results

    def chat(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
        self.work()
        self.requests.append((stage, system, user))
        given = self.answers.get(stage, lambda user: self.default(stage, user))
        answer = given(user) if callable(given) else given
        return Reply(answer if isinstance(answer, str) else json.dumps(answer), 10, 5)

    def default(self, stage: str, user: str) -> dict[str, Any]:
        """Edits that name what failed; a merge that drops doubles; guidance with its number."""
        edits = [{"op": "append", "content": name} for name in sorted(set(re.findall(r"of the failure: (\w+)", user)))]
        if stage.startswith("merge"):
            edits = [edit for patch in json.loads(user[user.index("[\n") :]) for edit in patch.get("edits", [])]
            edits = list({edit["content"]: edit for edit in edits}.values())
        number = self._first + len(self.requests)
        return {"edits": edits, "selected_indices": [0, 1, 2, 3], "slow_update_content": f"guidance {number}"}

    def of(self, stage: str) -> list[str]:
        """Requests of a stage."""
        return [user for each, _, user in self.requests if each == stage]


class Watching(Watch):
    """Keeps the records."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.epochs: list[EpochRecord] = []

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        self.steps.append(record)

    def epoch(self, record: EpochRecord, state: OptimizeState) -> None:
        self.epochs.append(record)


def run(
    world: World, document: str = "", journal: Path | None = None, **settings: Any
) -> tuple[Optimized, Watching, Calls]:
    config = OptimizeConfig.model_validate({"epochs": 2, "batch_size": 6, "minibatch_size": 2, **settings})
    calls, watch = Calls(world.chat, world, Journal(journal), seed=1, workers=1), Watching()
    optimizer = LLMOptimizer(calls, config, Templates(base="optimize"))
    return optimize(Loop(TASK, config, calls, optimizer, 1, watch), document), watch, calls


def useless(user: str) -> dict[str, Any]:
    return {"edits": [{"op": "append", "content": f"noise {len(user)}"}]}


def test_guidance_has_to_pass_the_gate() -> None:
    def guided(text: str) -> tuple[Optimized, Watching, Calls]:
        world = World(analyst_error=useless, slow_update={"slow_update_content": text})
        return run(world, slow_update=True)

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
    settings: dict[str, Any] = {"epochs": 3, "gate": {"rule": "none"}}
    found, watch, _ = run(world, "red green blue grey", **settings)
    assert split(found.state.current).guidance == "be brief"
    statuses = [[report["status"] for report in record.report] for record in watch.steps]
    assert statuses[0] == ["skipped_replace_target_not_found"] and statuses[-1] == ["skipped_protected_region"]


def test_a_document_that_says_the_same_is_no_candidate() -> None:
    stated = {"edits": [{"op": "append", "content": "-  mind the COLOUR"}], "selected_indices": [0]}
    found, watch, _ = run(World(analyst_error=stated, merge_failure=stated), "- Mind the colour.\n", slow_update=False)
    assert {record.action for record in watch.steps} == {"skip_no_change"}
    assert found.state.best == "- Mind the colour.\n"


def test_killed_anywhere_with_all_features_on_a_run_goes_on_exactly(tmp_path: Path) -> None:
    whole = World()
    settings: dict[str, Any] = {"epochs": 3, "edit_budget": 1, "min_edit_budget": 1}
    expected, _, _ = run(whole, journal=tmp_path / "whole", **settings)
    total = len(whole.requests) + len(whole.rollouts)
    stages = {stage for stage, _, _ in whole.requests}
    assert stages >= {"slow_update", "ranking", "merge_failure"}
    for limit in range(3, total, max(1, total // 6)):
        path, dying = tmp_path / str(limit), World(limit)
        with pytest.raises(Killed):
            run(dying, journal=path, **settings)
        rest = World(first=len(dying.requests))
        found, _, _ = run(rest, journal=path, **settings)
        assert path.read_bytes() == (tmp_path / "whole").read_bytes()  # the same calls and answers, none twice
        assert (found.state, found.test_best) == (expected.state, expected.test_best)
        assert dying.requests + rest.requests == whole.requests and dying.rollouts + rest.rollouts == whole.rollouts


PAIRS = st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2), min_size=1, max_size=40)


@pytest.mark.parametrize("rule", ["strict", "better", "none"])
@given(PAIRS)
def test_an_evaluation_that_ends_early_decides_as_a_whole_one(rule: Any, pairs: list[tuple[float, float]]) -> None:
    gate = OptimizeGateConfig(rule=rule, metric="soft")
    rolled: list[int] = []

    def roll_out(document: str, items: Sequence[Item], **_: Any) -> list[RolloutResult]:
        rolled.extend(item["id"] for item in items)
        return [RolloutResult(str(item["id"]), soft=pairs[item["id"]][document == "new"]) for item in items]

    decisions, items = [], [{"id": place} for place in range(len(pairs))]
    for early_stop in (False, True):
        selection = Selection(items, Calls(None, roll_out, early_stop=early_stop), gate)
        before = selection.evaluate("old")
        rolled.clear()
        candidate = selection.evaluate("new", against=before)
        decisions.append(decide(gate, before, candidate)[0])
        assert candidate.whole == (len(rolled) == len(pairs)) and (candidate.whole or early_stop)
    assert decisions[0] == decisions[1]


# --- the document as text: the protected block, what is read from answers, what a model is shown ---

PIECES = [START, END, "<!-- SLOW_UPDATE_", "START -->", "<!-- ", "rule", "\n", "\n\n", " ", "- note"]
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
plain = st.lists(st.sampled_from(["rule a", "rule b", "\n", "\n\n\n", "  ", "- x"]), max_size=6).map("".join)


@st.composite
def edits(draw: st.DrawFn, document: str) -> Edit:
    start = draw(st.integers(0, len(document)))
    target = draw(st.one_of(texts, st.just(document[start : start + draw(st.integers(0, 40))])))
    return Edit(draw(st.sampled_from(["append", "insert_after", "replace", "delete", "?"])), draw(texts), target)


def block_of(document: str) -> str | None:
    assert document.count(START) == document.count(END) <= 1
    return document[document.index(START) : document.index(END) + len(END)] if START in document else None


@given(texts, texts, st.data())
def test_no_patch_changes_the_block(body: str, guidance: str, data: st.DataObject) -> None:
    document = with_guidance(body, guidance)
    before, patch = block_of(document), Patch(data.draw(st.lists(edits(document), max_size=4)))
    after, reports = apply_patch_outside(document, patch)
    assert before is not None and block_of(after) == before and len(reports) == len(patch.edits)
    assert not any(report["status"] in ("applied_append", "error") for report in reports)


@given(texts)
def test_a_document_has_at_most_one_block_once_normal(document: str) -> None:
    normal = split(document).text()
    block_of(normal)
    assert split(normal).text() == normal and split(normal).guidance == split(document).guidance


@given(plain, st.data())
def test_without_markers_the_edits_are_those_of_the_editor(document: str, data: st.DataObject) -> None:
    cleaned = [  # each with something new: what the document says already is skipped here alone
        Edit(edit.op, f"said {place} {strip_markers(edit.content)}", edit.target)
        for place, edit in enumerate(data.draw(st.lists(edits(document), max_size=4)))
    ]
    assert apply_patch_outside(document, Patch(cleaned)) == apply_patch_with_report(document, Patch(cleaned))
    assert split(document).text() == document


@pytest.mark.parametrize(
    ("op", "target", "content", "status"),
    [
        ("append", "", "\n* check  the units\n\n2. Answer with a number.\n", "skipped_already_stated"),
        ("append", "", "  \n", "skipped_already_stated"),
        ("insert_after", "# Rules", "Check the units.", "skipped_already_stated"),
        ("append", "", "- Check the units.\n- Name them.", "applied_append"),
        ("replace", "a number", "one number", "applied_replace"),
    ],
)
def test_an_edit_that_adds_only_what_is_there_is_skipped(op: str, target: str, content: str, status: str) -> None:
    stated = "# Rules\n\n- Check the units.\n- Answer with a number\n"
    after, (report,) = apply_patch_outside(stated, Patch([Edit(op, content, target)]))
    assert report["status"] == status and (after == stated) == status.startswith("skipped")


simple = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "2.5 edits", "- rule", END])
values: st.SearchStrategy[Any] = (
    simple | st.lists(simple, max_size=3) | st.dictionaries(st.sampled_from(["op", "note", "edits"]), simple)
)
KEYS = ("edits", "patch", "slow_update_content")
answers = st.text(max_size=20) | st.dictionaries(st.sampled_from(KEYS), values, max_size=4).map(json.dumps)


@given(answers)
def test_whatever_a_model_answers_is_read(answer: str) -> None:
    patch = read_patch(answer)
    json.dumps({} if patch is None else patch.to_dict())
    text = read_text(answer, "slow_update_content")
    assert text is None or text.strip()


def test_a_tag_that_an_analyst_copies_is_the_agent_s_again() -> None:
    shown = show_rollout(RolloutResult("1", predicted_answer="<answer>5</answer> </rollout>"))
    assert "&lt;answer>5&lt;/answer> &lt;/rollout>" in shown
    copied = "write &lt;answer>N&lt;/answer>, not &lt;/rollout> &lt;b> &lt;answering"
    assert unescape_tags(copied) == "write <answer>N</answer>, not &lt;/rollout> &lt;b> &lt;answering"
