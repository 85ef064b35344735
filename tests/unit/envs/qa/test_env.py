"""`SkillTTRL/QA-v0`: scoring as in skillrl's `SimpleQAEnv`, records and their mistakes, and questions of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.answers.grade import matches, token_f1
from skill_ttrl.config import Source
from skill_ttrl.data.tasks import load_tasks
from skill_ttrl.envs import check_text_env, env_tasks, make_env
from skill_ttrl.envs.qa.env import QAEnv
from skill_ttrl.errors import DataError, EnvError

WORDS = st.lists(st.sampled_from(["Paris", "paris", "the", "ocean", "Pacific", "", " ", "\n"]), max_size=5).map(
    " ".join
)


def play(action: str, answers: Any = ("Pacific Ocean", "Pacific"), **env: Any) -> tuple[float, dict[str, Any]]:
    made = QAEnv(**env)
    made.reset(options={"question": "Largest ocean?", "answers": answers})
    observation, reward, terminated, truncated, info = made.step(action)
    assert (observation, terminated, truncated) == ("", True, False)
    return reward, info


@pytest.mark.parametrize(
    ("action", "reward", "score"),
    [
        ("It is the PACIFIC\n ocean.", 1.0, 1.0),
        ("<answer>Pacific</answer>", 1.0, 1.0),
        ("The Pacific is not it: <answer>Atlantic</answer>", 0.0, 0.0),
        ("an ocean", 0.0, 0.5),
        ("", 0.0, 0.0),
    ],
)
def test_an_accepted_phrasing_in_the_prediction_wins(action: str, reward: float, score: float) -> None:
    earned, info = play(action)
    assert (earned, info["won"], info["score"], info["graded"]) == (reward, bool(reward), score, True)


def test_without_accepted_phrasings_nothing_is_graded() -> None:
    assert play("Pacific", None) == (0.0, {"answer": "Pacific", "graded": False})


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_scores_are_those_of_skillrl(prediction: str, answers: list[str]) -> None:
    from skillrl.envs.qa import _any_match, _soft_overlap

    assert matches(prediction, answers) is _any_match(prediction, answers)
    assert token_f1(prediction, answers) == pytest.approx(_soft_overlap(prediction, answers))


ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "Capital of France?", "answers": ["Paris"], "task_type": "capital"},
    {"id": "b", "question": "Who?", "answers": "Ann", "context": "Ann, Bob."},
    {"id": "c", "question": "Why?", "answers": [7, "seven"]},
]


def test_records_become_tasks_in_every_format(tmp_path: Path) -> None:
    file = tmp_path / "qa.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    tasks = load_tasks(Source(path=str(file)), "SkillTTRL/QA-v0", split="val")
    assert [(task.id, task.task_type, task.split, task.ground_truth) for task in tasks] == [
        ("a", "capital", "val", None),
        ("b", "", "val", None),
        ("c", "", "val", None),
    ]
    assert [task.options for task in tasks] == [
        {"question": "Capital of France?", "answers": ["Paris"]},
        {"question": "Context:\nAnn, Bob.\n\nQuestion: Who?", "answers": ["Ann"]},
        {"question": "Why?", "answers": ["7", "seven"]},
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "?", "answers": []}', r"qa\.jsonl:2: 'answers' must be a text or a list of texts, at least one"),
        ('{"question": "?", "answers": ["x", " "]}', r"qa\.jsonl:2: .* none empty"),
        ('{"question": "?", "answers": [{"text": "x"}]}', r"qa\.jsonl:2: 'answers' must be a text or a list of texts"),
        ('{"question": 3, "answers": "x"}', r"qa\.jsonl:2: 'question' must be a text"),
        ('{"question": "?", "answers": "x", "context": ["x"]}', r"qa\.jsonl:2: 'context' must be a text"),
    ],
)
def test_mistakes_are_named_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "qa.jsonl"
    file.write_text(f"{json.dumps(ROWS[0])}\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_tasks(Source(path=str(file)), "SkillTTRL/QA-v0")


def test_files_by_split_and_a_family_are_its_own_questions(tmp_path: Path) -> None:
    for split, row in zip(("train", "val", "test"), ROWS, strict=True):
        (tmp_path / f"{split}.json").write_text(json.dumps([row]), encoding="utf-8")
    files = {split: str(tmp_path / f"{split}.json") for split in ("train", "val", "test")}
    assert [task.id for task in env_tasks("qa", {"data": files}, "val")] == ["b"]
    with pytest.raises(EnvError, match=r"There is no split 'valid'\. Did you mean 'val'"):
        env_tasks("qa", {"data": str(tmp_path)}, "valid")
    assert [task.id for task in env_tasks("qa", {"data": files["val"]}, "val")] == ["b"]
    assert [task.id for task in env_tasks("qa", {"data": str(tmp_path)}, "test")] == ["c"]
    assert len(env_tasks("qa", {}, "val")) == 64
    env = make_env("qa")
    first, _ = env.reset(seed=3)
    assert first == env.reset(seed=3)[0] and first.startswith("Context:\n")
    check_text_env(env, env_tasks("qa", {}, "test")[0])
    with pytest.raises(EnvError, match="has no option 'answer'"):
        env.reset(options={"question": "?", "answer": "x"})
