"""SkillOptTrainer and skillrl's on one scripted world: the same run, and exact resume where skillrl repeats steps."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import skillrl

from skill_ttrl import BaseLLMClient, RolloutResult, SkillEnv, SkillOptConfig, SkillOptTrainer
from skill_ttrl.errors import BudgetError, ConfigError, DataError, EndpointError, EnvError, RunFolderError

RULES = ("red", "green", "blue", "cyan", "pink", "gold", "mute", "prose", "garble")
"""An analyst answers prose where `prose` is needed, a merger where `garble` is merged, a ranking where `mute` is ranked."""


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # a run has a hundred files; none of these tests cuts the power
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def items(split: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{split}{n}",
            "question": f"What of {split} {n}?",
            "rule": RULES[n % len(RULES)],
            "task_type": f"t{n % 2}",
        }
        for n in range(count)
    ]


class Colours(SkillEnv):
    """An item is solved where the document names its rule."""

    name = "colours"
    task_types = ("t0", "t1")

    def __init__(self, sizes: tuple[int, int, int] = (18, 9, 6)) -> None:
        self.splits = {name: items(name, size) for name, size in zip(("train", "val", "test"), sizes, strict=True)}

    def get_items(self, split: str) -> list[dict[str, Any]]:
        return self.splits[split]

    def rollout_one(self, *, item: dict[str, Any], skill: str, target_client: BaseLLMClient) -> RolloutResult:
        text, _ = target_client.chat(system=skill, user=item["question"], stage="rollout")
        right = item["rule"] in text
        return RolloutResult(
            id=item["id"],
            hard=int(right),
            soft=1.0 if right else 0.25 * ("start" in text),
            fail_reason="" if right else f"needs {item['rule']}",
            task_type=item["task_type"],
        )


class TheirColours(Colours):
    """The same for skillrl, which takes a result of any other type for a failure without a word."""

    def rollout_one(self, **how: Any) -> Any:
        return skillrl.RolloutResult.from_dict(super().rollout_one(**how).to_dict())


class Scripted(BaseLLMClient):
    """Target: repeats its instructions. Optimizer: names the rules that failed rollouts need."""

    model = "scripted"

    def __init__(self, dies_at: int | None = None) -> None:
        self.calls: list[str] = []
        self._dies_at = dies_at
        self._lock = threading.Lock()

    def chat(self, *, system: str, user: str, stage: str = "", **_: Any) -> tuple[str, dict[str, Any]]:
        with self._lock:
            if self._dies_at is not None and len(self.calls) >= self._dies_at:
                raise BudgetError("stopped here")
            self.calls.append(stage)
        if stage == "rollout":
            return system, {}
        return self.answer(stage, user), {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}

    def answer(self, stage: str, user: str) -> str:
        if stage == "ranking":
            places = [int(place) for place in re.findall(r"^\[(\d+)\] op=", user, re.MULTILINE)]
            return "I like all." if "mute" in user else json.dumps({"selected_indices": places[::-1]})
        if stage == "merge":
            edits = [edit for patch in json.loads(user[user.index("[\n") :]) for edit in patch["edits"]]
            unique = list({json.dumps(edit, sort_keys=True): edit for edit in edits}.values())
            return "So many!" if "garble" in json.dumps(edits) else json.dumps({"reasoning": "m", "edits": unique})
        needs = sorted(set(re.findall(r"needs (\w+)", user)))
        edits = [{"op": "append", "content": f"Mind {name}."} for name in needs] or [
            {"op": "insert_after", "target": "start", "content": "Go on."},
            {"op": "delete", "target": "nowhere"},
        ]
        return "Hm." if "prose" in needs else json.dumps({"reasoning": "r", "edits": edits})


def config_of(kind: Callable[..., Any], root: Path, **changes: Any) -> Any:
    sizes = {"num_epochs": 2, "batch_size": 6, "minibatch_size": 2, "merge_batch_size": 2, "workers": 2}
    return kind(**{**sizes, "out_root": str(root), "verbose": False, **changes})


def ours(root: Path, *clients: Scripted, env: SkillEnv | None = None, **changes: Any) -> dict[str, Any]:
    target, optimizer = clients if len(clients) == 2 else (*clients, *clients)
    how = {name: changes.pop(name) for name in ("initial_skill", "prompt_overrides") if name in changes}
    return SkillOptTrainer(
        config=config_of(SkillOptConfig, root, **changes),
        env=env or Colours(),
        optimizer_client=optimizer,
        target_client=target,
        **{"initial_skill": "# Skill\nstart\n", **how},
    ).train()


def theirs(root: Path, *clients: Scripted, **changes: Any) -> Any:
    target, optimizer = clients if len(clients) == 2 else (*clients, *clients)
    return skillrl.SkillOptTrainer(
        config=config_of(skillrl.SkillOptConfig, root, **changes),
        env=TheirColours(),
        optimizer_client=optimizer,
        target_client=target,
        initial_skill="# Skill\nstart\n",
    ).train()


def read(root: Path, name: str) -> Any:
    return json.loads((root / name).read_text(encoding="utf-8"))


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


# --- the same run ---


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gate_metric": "soft", "lr_scheduler": "linear", "edit_budget": 3, "min_edit_budget": 1},
        {"gate_metric": "mixed", "failure_only": True, "workers": 1, "merge_batch_size": 8, "seed": 3},
    ],
)
def test_a_whole_run_makes_the_same_edits_and_decisions(tmp_path: Path, changes: dict[str, Any]) -> None:
    mine, there = tmp_path / "ours", tmp_path / "theirs"
    clients, their_clients = (Scripted(), Scripted()), (Scripted(), Scripted())
    summary, expected = ours(mine, *clients, **changes), theirs(there, *their_clients, **changes)
    for name in files(there):
        if name.endswith((".md", "results.json")):
            assert (mine / name).read_bytes() == (there / name).read_bytes(), name
    steps = sorted(path.name for path in (there / "steps").iterdir())
    for step in steps:
        for name in ("raw_patches", "edit_apply_report"):
            if (there / "steps" / step / f"{name}.json").exists():
                assert read(mine / "steps" / step, f"{name}.json") == read(there / "steps" / step, f"{name}.json")
        for name in ("merged_patch", "ranked_patch"):
            if (there / "steps" / step / f"{name}.json").exists():
                edits = [read(root / "steps" / step, f"{name}.json")["edits"] for root in (mine, there)]
                assert edits[0] == edits[1]
    for row, wanted in zip(read(mine, "history.json"), read(there, "history.json"), strict=True):
        other = {"timing", "wall_time_s", "gate_metric", "skill_len"}
        assert {key: row[key] for key in wanted.keys() - other} == {key: wanted[key] for key in wanted.keys() - other}
    timeless = expected.keys() - {"version", "config", "wall_time_s"}
    assert {key: summary[key] for key in timeless} == {key: expected[key] for key in timeless}
    assert files(there) <= files(mine)
    assert clients[1].calls.count("ranking") == their_clients[1].calls.count("ranking")
    assert sorted(clients[1].calls) == sorted(their_clients[1].calls)
    assert {"accept_new_best"} < {row["action"] for row in read(mine, "history.json")}


# --- resume ---


def timeless(root: Path) -> dict[str, Any]:
    """Everything in a run's folder but times, and the journal, whose lines stand in the order in which work was finished."""
    found: dict[str, Any] = {}
    for name in files(root) - {"journal.jsonl", "config.json", ".lock"}:
        text = (root / name).read_text(encoding="utf-8")
        found[name] = re.sub(r'"(\w+_s|out_root|workers|verbose)": [^,\n]+|"done": \d+', "", text)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scripted]:
    """A run of ours that was never stopped."""
    root, client = tmp_path_factory.mktemp("whole"), Scripted()
    ours(root, client, workers=1)
    return root, client


@pytest.mark.parametrize("dies_at", [0, 12, 19, 119])
def test_ours_goes_on_where_it_was(tmp_path: Path, whole: tuple[Path, Scripted], dies_at: int) -> None:
    expected, client = whole
    dying, rest, again = Scripted(dies_at), Scripted(), Scripted()
    with pytest.raises(BudgetError):
        ours(tmp_path, dying, workers=1)
    (tmp_path / ".history.json.tmp-1").write_text("[")  # a kill in the middle of a file leaves this
    ours(tmp_path, rest, workers=1)
    assert timeless(tmp_path) == timeless(expected)
    assert dying.calls + rest.calls == client.calls
    ours(tmp_path, again, workers=3, verbose=True)  # a finished run, started again
    assert again.calls == [] and timeless(tmp_path) == timeless(expected)


def test_a_folder_is_continued_only_by_its_own_run(tmp_path: Path, whole: tuple[Path, Scripted]) -> None:
    root, _ = whole
    before = timeless(root)
    others: list[tuple[dict[str, Any], str]] = [
        ({"edit_budget": 3}, "config.edit_budget 4 there, 3 here"),
        ({"initial_skill": "else"}, "initial_skill"),
        ({"env": Colours((18, 8, 6))}, "selection"),
        ({"prompt_overrides": {"ranking": "mine"}}, "prompts"),
    ]
    for changes, said in others:
        with pytest.raises(RunFolderError, match=said):
            ours(root, Scripted(), **changes)
    assert timeless(root) == before
    theirs(tmp_path, Scripted(), num_epochs=1)
    with pytest.raises(RunFolderError, match="holds a run of skillrl"):
        ours(tmp_path, Scripted())


# --- settings of ours, and bad input ---


def test_overridden_prompts_are_sent_as_they_are(tmp_path: Path) -> None:
    heard: set[str] = set()

    class Listening(Scripted):
        def chat(self, *, system: str, stage: str = "", **how: Any) -> tuple[str, dict[str, Any]]:
            heard.update([system] if stage == "analyst" else [])
            return super().chat(system=system, stage=stage, **how)

    text = "Costs $5, $$, ${x}.\n\n{}\n"
    ours(tmp_path, Listening(), num_epochs=1, prompt_overrides={"analyst_error": text, "analyst_success": text})
    assert heard == {text}
    with pytest.raises(ConfigError, match=r"analyst_eror.*Did you mean 'analyst_error'"):
        ours(tmp_path, Scripted(), prompt_overrides={"analyst_eror": ""})


class Breaks(Colours):
    """An environment with a fault in its rollouts."""

    def __init__(self, fault: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__()
        self._fault = fault

    def rollout_one(self, *, item: dict[str, Any], skill: str, target_client: BaseLLMClient) -> RolloutResult:
        found = self._fault(item)
        return found if found is not None else super().rollout_one(item=item, skill=skill, target_client=target_client)


def raises(error: Exception, where: str = "") -> Callable[[dict[str, Any]], Any]:
    def fault(item: dict[str, Any]) -> None:
        if where in item["id"]:
            raise error

    return fault


@pytest.mark.parametrize(
    ("env", "error", "said"),
    [
        (Colours((0, 3, 3)), DataError, "no training items"),
        (Breaks(raises(OSError("no such house"))), EnvError, "All 9 rollouts of Breaks failed.*OSError: no such house"),
        (Breaks(raises(EndpointError("bad key", "unauthorized"), "val3")), EndpointError, "bad key"),
        (Breaks(lambda item: "solved"), EnvError, "rollout_one .*item 'val-.*RolloutResult"),
        (Breaks(lambda item: {"id": "1", "hard": 0.5}), EnvError, "hard = 0.5"),
        (Breaks(lambda item: RolloutResult("1", extras={"x": object()})), EnvError, "not JSON serializable"),
    ],
)
def test_what_cannot_be_optimized_is_said(tmp_path: Path, env: SkillEnv, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ours(tmp_path, Scripted(), env=env)
