"""Math tasks and demonstrations from every kind of source, and the types of problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.config import Source
from skill_ttrl.data.families import Demonstration
from skill_ttrl.data.tasks import load_demonstrations, load_tasks
from skill_ttrl.envs import make_env
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.llm.chat import encode_chat
from skill_ttrl.train.encode import encode_written
from skill_ttrl.train.tasks import task_content
from skill_ttrl.types import Message

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "math"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real problem sets are not at {DATA}")


def source(tmp_path: Path, rows: list[dict[str, Any]], **fields: Any) -> Source:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(path=str(path), **fields)


def test_a_file_becomes_tasks(tmp_path: Path) -> None:
    rows = [
        {"id": 3, "prompt": "What is $1+1$?", "answer": "2", "subject": "Counting & Probability"},
        {"id": 4, "prompt": "Find the area of triangle $ABC$.", "answer": 142.0},
        {"id": 5, "prompt": "x", "answer": None, "task_type": "odd"},
        {"id": 6, "prompt": "Tom buys apples. How much is it?", "answer": "He pays 6*12=72.\n#### 72"},
        {"id": 7, "prompt": "y", "answer": 0.5},
    ]
    first, second, third, fourth, fifth = load_tasks(source(tmp_path, rows), "E-v0", split="test")
    assert (first.id, first.env_id, first.options, first.split) == ("3", "E-v0", {"question": "What is $1+1$?"}, "test")
    assert (first.ground_truth, first.task_type) == ("2", "counting_probability")
    assert (second.ground_truth, second.task_type) == ("142", "math")
    assert (third.ground_truth, third.task_type) == (None, "odd")
    assert (fourth.ground_truth, fourth.task_type, fifth.ground_truth) == ("72", "math", "0.5")


def test_a_check_stays_without_the_answer_and_is_never_shown(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "Plus 7 is 25?", "answer": "18", "check": "x + 7 = 25"},
        {"prompt": "?", "check": None},
        {"prompt": "!"},
    ]
    first, *others = (task.without_ground_truth() for task in load_tasks(source(tmp_path, rows)))
    assert first.options["check"] == "x + 7 = 25" and all("check" not in task.options for task in others)
    assert make_env("math").reset(options=dict(first.options)) == ("Plus 7 is 25?", {})
    assert task_content(first) == task_content(load_tasks(source(tmp_path, [{"prompt": "Plus 7 is 25?"}]))[0])
    for wrong in ("x + 7", 25):
        with pytest.raises(DataError, match=r"data\.jsonl:2: 'check'"):
            load_tasks(source(tmp_path, [rows[0], {"prompt": "?", "check": wrong}]))


def test_demonstrations_of_a_family() -> None:
    config = Source(path="synthetic:add", options={"noise": 0.0}, limit=100)
    clean = load_demonstrations(config, seed=1)
    assert len(clean) == 100 and clean == load_demonstrations(config, seed=2)
    noisy = load_demonstrations(config, seed=1, noise=0.9)
    assert sum(one != other for one, other in zip(clean, noisy, strict=True)) > 90
    default = load_demonstrations(Source(path="synthetic:add"), seed=1)
    assert default == load_demonstrations(Source(path="synthetic:add", options={"noise": 0.2}), seed=1)
    for bad in (1.5, "much", True):
        with pytest.raises(ConfigError, match="must be a number from 0 to 1"):
            load_demonstrations(Source(path="synthetic:add", options={"noise": bad}))


def test_a_conversation_is_a_demonstration_for_each_turn_of_the_assistant(tmp_path: Path, tiny_model: Any) -> None:
    roles = ("user", "assistant", "user", "assistant")
    said = ("A door.", "take key", "You hold it.", "open door")
    chat = [{"role": role, "content": content} for role, content in zip(roles, said, strict=True)]
    first, second = load_demonstrations(source(tmp_path, [{"messages": chat}]))
    assert (first.prompt, first.response, first.before) == (said[0], said[1], ())
    assert (second.prompt, second.response, second.before) == (said[2], said[3], (said[:2],))
    agent, tokenizer = Agent(PromptFormatter("plain")), tiny_model[1]
    prompt, response, mask, _ = encode_written(tokenizer, agent, [first, second])[1]
    talk = [Message("user", said[0]), Message("assistant", said[1]), Message("user", said[2])]
    assert prompt == encode_chat(tokenizer, talk)
    assert tokenizer.decode(response[:-1]) == "open door" and mask == (True,) * len(response)
    with pytest.raises(DataError, match="must alternate"):
        load_demonstrations(source(tmp_path, [{"messages": chat[:3]}]))


def test_demonstrations_of_a_file(tmp_path: Path) -> None:
    pairs = [{"prompt": "p", "response": "r"}, {"prompt": "q", "response": "s"}]
    assert [d[:2] for d in load_demonstrations(source(tmp_path, pairs))] == [("p", "r"), ("q", "s")]
    chats = [[{"role": "user", "content": "p"}, {"role": "assistant", "content": "r"}]]
    assert load_demonstrations(source(tmp_path, [{"messages": chat} for chat in chats])) == [Demonstration("p", "r")]
    with pytest.raises(DataError, match=r"has no column 'response'"):
        load_demonstrations(source(tmp_path, [{"prompt": "p", "answer": "r"}]))
    chats[0].insert(0, {"role": "system", "content": "be brief"})
    with pytest.raises(DataError, match=r"data\.jsonl:1: .*found roles \['system', 'user', 'assistant'\]"):
        load_demonstrations(source(tmp_path, [{"messages": chats[0]}]))
    with pytest.raises(DataError, match=r"'content' of each message"):
        load_demonstrations(source(tmp_path, [{"messages": [{"role": "user"}, {"role": "assistant"}]}]))


@needs_data
@pytest.mark.parametrize(("name", "count"), [("aime", 30), ("amc", 83), ("math", 500)])
def test_the_real_problem_sets(name: str, count: int) -> None:
    tasks = load_tasks(Source(path=str(DATA / f"{name}.json")), split="test")
    assert len(tasks) == len({task.id for task in tasks}) == count
    assert all(task.ground_truth and task.options["question"] and task.task_type for task in tasks)


def test_a_problem_may_lack_its_answer(tmp_path: Path) -> None:
    (tmp_path / "mixed.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n{"question": "1+2?"}\n')
    assert [task.ground_truth for task in load_tasks(Source(path=f"{tmp_path}/mixed.jsonl"), "E")] == ["2", None]
