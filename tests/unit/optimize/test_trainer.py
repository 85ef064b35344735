"""SkillOptTrainer and skillrl's on one scripted world: the same run, and exact resume where skillrl repeats steps; and its published example."""

from __future__ import annotations

import json
import os
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import skillrl

from skill_ttrl import BaseLLMClient, RolloutResult, SkillEnv, SkillOptConfig, SkillOptTrainer
from skill_ttrl.errors import BudgetError, ConfigError, DataError, EndpointError, EnvError, RunFolderError
from tests.faulty_server import FaultyServer

RULES = ("red", "green", "blue", "cyan", "pink", "gold", "mute", "prose", "garble")
"""An analyst answers prose where `prose` is needed, a merger where `garble` is merged, a ranking where `mute` is ranked."""
SIZES = {"num_epochs": 2, "batch_size": 6, "minibatch_size": 2, "merge_batch_size": 2, "workers": 2, "verbose": False}


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # a run has a hundred files; none of these tests cuts the power
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def items(split: str, count: int) -> list[dict[str, Any]]:
    rules = [{"rule": RULES[n % len(RULES)], "task_type": f"t{n % 2}"} for n in range(count)]
    return [{"id": f"{split}{n}", "question": f"What of {split} {n}?", **rule} for n, rule in enumerate(rules)]


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


def ours(root: Path, *clients: Scripted, env: SkillEnv | None = None, **changes: Any) -> dict[str, Any]:
    how = {name: changes.pop(name) for name in ("initial_skill", "prompt_overrides") if name in changes}
    return SkillOptTrainer(
        config=SkillOptConfig(**{**SIZES, "out_root": str(root), **changes}),
        env=env or Colours(),
        optimizer_client=clients[-1],
        target_client=clients[0],
        **{"initial_skill": "# Skill\nstart\n", **how},
    ).train()


def theirs(root: Path, *clients: Scripted, **changes: Any) -> Any:
    return skillrl.SkillOptTrainer(
        config=skillrl.SkillOptConfig(**{**SIZES, "out_root": str(root), **changes}),
        env=TheirColours(),
        optimizer_client=clients[-1],
        target_client=clients[0],
        initial_skill="# Skill\nstart\n",
    ).train()


def read(root: Path, name: str) -> Any:
    return json.loads((root / name).read_text(encoding="utf-8"))


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


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


@pytest.mark.parametrize("dies_at", [0, 12, 119])
def test_ours_goes_on_where_it_was(tmp_path: Path, whole: tuple[Path, Scripted], dies_at: int) -> None:
    expected, client = whole
    dying, rest, again = Scripted(dies_at), Scripted(), Scripted()
    with pytest.raises(BudgetError):
        ours(tmp_path, dying, workers=1)
    (tmp_path / ".history.json.tmp-1").write_text("[")  # a kill in the middle of a file leaves this
    ours(tmp_path, rest, workers=1)
    assert timeless(tmp_path) == timeless(expected) and dying.calls + rest.calls == client.calls
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
    ],
)
def test_what_cannot_be_optimized_is_said(tmp_path: Path, env: SkillEnv, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ours(tmp_path, Scripted(), env=env)


# --- section 4 of skillrl's README, run by skillrl and by us against a started server of the protocol ---

THEIR_IMPORTS = """\
from skillrl import SkillOptConfig, SkillOptTrainer
from skillrl.envs.qa import SimpleQAEnv
from skillrl.llm.openai_client import OpenAIChatClient
"""
OUR_IMPORTS = "from skill_ttrl import OpenAIChatClient, SimpleQAEnv, SkillOptConfig, SkillOptTrainer\n"
EXAMPLE = """
train = [
    {"id": "1", "question": "Capital of France?", "answers": ["Paris"]},
    {"id": "2", "question": "Largest ocean on Earth?", "answers": ["Pacific Ocean", "Pacific"]},
]
val = [{"id": "v1", "question": "Capital of Japan?", "answers": ["Tokyo"]}]
test = [{"id": "t1", "question": "Capital of Italy?", "answers": ["Rome"]}]

env = SimpleQAEnv(train_items=train, val_items=val, test_items=test)

optimizer = OpenAIChatClient(model="gpt-4o")
target = OpenAIChatClient(model="gpt-4o-mini")

cfg = SkillOptConfig(
    num_epochs=2,
    batch_size=8,
    minibatch_size=4,
    edit_budget=4,
    lr_scheduler="cosine",
    gate_metric="hard",
    out_root="outputs/qa_demo",
)

trainer = SkillOptTrainer(
    config=cfg, env=env,
    optimizer_client=optimizer, target_client=target,
    initial_skill="You are a concise QA assistant. Answer in one short phrase.",
)
summary = trainer.train()
print(summary["best_selection_score"], summary["test_hard"])
"""
FACTS = {"France": "Paris", "ocean": "The Pacific", "Japan": "Tokyo", "Italy": "Rome"}


def answer(body: Mapping[str, Any], draw: random.Random) -> str:
    """The target knows the facts once its instructions tell it to name them; the optimizer tells it so."""
    system, user = (each["content"] for each in body["messages"])
    if body["model"] == "gpt-4o":
        return '```json\n{"reasoning": "it dodges", "edits": [{"op": "append", "content": "Name the fact."}]}\n```'
    known = [fact for topic, fact in FACTS.items() if topic in user]
    return known[0] if "Name the fact." in system else "It depends."


def test_the_published_example_runs_with_its_import_lines_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    printed, found = [], []
    for name, imports in (("theirs", THEIR_IMPORTS), ("ours", OUR_IMPORTS)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with FaultyServer(["429"] if name == "ours" else [], rate=0.3, answer=answer) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            exec(imports + EXAMPLE, {})
        printed.append(capsys.readouterr().out.strip().splitlines()[-1])
        root = Path("outputs/qa_demo")
        history = json.loads((root / "history.json").read_text())
        found.append([(row["action"], row["edit_budget"], row["candidate_hash"]) for row in history])
        assert json.loads((root / "summary.json").read_text())["best_selection_score"] == 1.0
        assert "Name the fact." in (root / "best_skill.md").read_text()
        assert {path.name for path in root.iterdir()} >= {
            "config.json",
            "runtime_state.json",
            "skills",
            "test_eval_best",
        }
    assert printed == ["1.0 1.0"] * 2
    for theirs, ours in zip(*found, strict=True):  # theirs rolls out a document with a line twice, and rejects it
        assert ours == theirs or (ours[0], theirs[0]) == ("skip_no_change", "reject")
