"""skillrl's published example (section 4 of its README), run by skillrl and by us against a started server of the protocol."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faulty_server import FaultyServer

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
    assert re.match(r"\d", printed[1])
