"""Math tasks and demonstrations from every kind of source, and the types of problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.config import SkillTTRLConfig, Source, load_config
from skill_ttrl.data.families import Demonstration
from skill_ttrl.data.records import read_source
from skill_ttrl.data.tasks import load_demonstrations, load_tasks, system_message
from skill_ttrl.envs import make_env
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.llm.chat import encode_chat
from skill_ttrl.train.defaults import with_defaults
from skill_ttrl.train.encode import encode_written
from skill_ttrl.train.tasks import ConfigTasks, data_revision, task_content
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


def test_an_empty_problem_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.jsonl:2: 'question' is empty"):
        load_tasks(source(tmp_path, [{"question": "?"}, {"question": "\n", "answer": "x"}]))


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


def test_turns_that_call_tools_are_demonstrations_too(tmp_path: Path, tiny_model: Any) -> None:
    functions: list[dict[str, Any]] = [{"name": "add", "arguments": '{"a":1}'}, {"name": "add", "arguments": {"a": 2}}]
    calls = [{"id": str(at), "type": "function", "function": each} for at, each in enumerate(functions)]
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "1, 2?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "0", "content": "2"},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "assistant", "content": "2 and 3"},
    ]
    shown = load_demonstrations(source(tmp_path, [{"messages": chat}]))
    said = "".join(f'<tool_call>{{"name": "add", "arguments": {{"a": {a}}}}}</tool_call>' for a in (1, 2))
    assert [(each.prompt, each.response) for each in shown] == [("1, 2?", said), ("2\n3", "2 and 3")]
    agent, tokenizer = Agent(PromptFormatter("plain"), tools=('{"function": {"name": "add"}}',)), tiny_model[1]
    first, second = encode_written(tokenizer, agent, shown)
    grown = tokenizer.decode((*first.prompt_ids, *first.response_ids))
    results = "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(second.prompt_ids) == grown + results
    assert tokenizer.decode(second.response_ids[:-1]) == "2 and 3"
    assert load_demonstrations(source(tmp_path, [{"messages": [*chat[:2], chat[3], chat[2], chat[4]]}])) == shown
    for same in (chat[1], {**chat[1], "tool_calls": calls[:1] * 2}):
        with pytest.raises(DataError, match="the id of another"):
            load_demonstrations(source(tmp_path, [{"messages": [chat[0], same, chat[2], chat[2], chat[4]]}]))
    for wrong in (chat[:3], chat[:3] + chat[4:], chat[:2], [*chat[:1], *chat[2:]], chat[:4]):
        with pytest.raises(DataError, match="a tool message for each"):
            load_demonstrations(source(tmp_path, [{"messages": wrong}]))
    functions[0]["arguments"] = "{"
    for bad in (calls, 5):
        with pytest.raises(DataError, match="a JSON object"):
            load_demonstrations(source(tmp_path, [{"messages": [chat[0], {**chat[1], "tool_calls": bad}]}]))


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


def row(index: int, question: str, truth: Any, system: str | None = None) -> dict[str, Any]:
    """A row as `examples/data_preprocess` of verl makes it."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return {
        "data_source": "MATH-TTT",
        "prompt": [*before, {"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": index},
    }


def write(path: Path, *rows: dict[str, Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def config(path: Path | str, **agent: Any) -> SkillTTRLConfig:
    return with_defaults(load_config({"data": {"train": {"path": str(path)}}, "agent": agent}))


def test_a_file_in_verls_layout_reads_without_further_options(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", row(0, "Compute 1+1.", "2"), row(1, "Compute 1/2.", "\\frac{1}{2}"))
    tasks = load_tasks(Source(path=str(path)))
    assert [task.options for task in tasks] == [{"question": "Compute 1+1."}, {"question": "Compute 1/2."}]
    assert [task.ground_truth for task in tasks] == ["2", "\\frac{1}{2}"]
    assert system_message(Source(path=str(path))) is None and config(path).agent.system is None
    lines = tmp_path / "train.jsonl"
    lines.write_text("".join(json.dumps(each) + "\n" for each in pyarrow.parquet.read_table(path).to_pylist()))
    assert [task.ground_truth for task in load_tasks(Source(path=str(lines)))] == ["2", "\\frac{1}{2}"]


@pytest.mark.parametrize(("truth", "reference"), [("so ... #### 72", "72"), (72, "72"), (0.5, "0.5"), (None, None)])
def test_true_answers_are_read_as_those_of_an_answer_column(truth: Any, reference: str | None, tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", row(0, "?", truth))
    assert load_tasks(Source(path=str(path)))[0].ground_truth == reference


def test_a_system_message_of_the_data_is_the_agents(tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", *(row(at, f"Compute {at}.", "1", "Be brief.") for at in range(2)))
    assert config(path).agent.system == "Be brief."
    assert config(path, system="Be long.").agent.system == "Be long."
    assert [task.options["question"] for task in load_tasks(Source(path=str(path)))] == [
        "Compute 0.",
        "Compute 1.",
    ]
    bare = load_config({"data": {"train": {"path": str(path)}}})
    with pytest.raises(DataError, match=r'begin with a system message. Set agent.system="Be brief."'):
        ConfigTasks(bare).training()
    meant = config(path, system=None)
    assert len(ConfigTasks(meant).training()) == 2


WRONG: list[tuple[dict[str, Any], str]] = [
    (row(1, "?", "1", "Be long."), r"row 2: its system message differs from that of .*row 1"),
    (
        {**row(1, "?", "1"), "prompt": [{"role": "user", "content": None}]},
        "'content' of each message of 'prompt' must be a text",
    ),
    ({**row(1, "?", "1"), "prompt": []}, r"must be one user message.*found roles \[\]"),
    (
        {**row(1, "?", "1"), "prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        r"found roles \['user', 'assistant'\]",
    ),
    (row(1, " ", "1"), r"row 2: 'prompt' is empty"),
    ({**row(1, "?", "1"), "prompt": None}, r"found roles \[\]"),
]


@pytest.mark.parametrize(("second", "words"), WRONG)
def test_a_conversation_of_another_shape_is_named_with_its_place(second: Any, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", row(0, "?", "1", "Be brief." if "system" in words else None), second)
    with pytest.raises(DataError, match=words):
        load_tasks(Source(path=str(path)))


def test_a_ground_truth_that_cannot_be_graded_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", row(0, "?", {"target": 1}))
    with pytest.raises(DataError, match=r"row 1: reward_model.ground_truth must be a text or a number, found dict"):
        load_tasks(Source(path=str(path)))


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", row(0, "a?", "1"), row(1, "b?", "2"))
    second = write(tmp_path / "b.parquet", row(0, "c?", "3"))
    given = load_config({"data": {"train": {"path": [str(first), str(second)]}}})
    source = given.train_source
    assert source is not None and source.path == str(first) and source.more == [str(second)]
    assert [task.options["question"] for task in load_tasks(source)] == ["a?", "b?", "c?"]
    assert len(read_source(source, limit=2)) == 2 and read_source(source).places[2] == f"{second}, row 1"
    again = SkillTTRLConfig.model_validate(given.model_dump()).train_source
    assert again == source, "as a run's config.yaml has it"
    pinned = source.model_copy(update={"revision": data_revision(source)})
    assert data_revision(pinned) == pinned.revision and str(pinned.revision).startswith("sha256:")
    write(second, row(0, "c?", "4"))
    with pytest.raises(DataError, match="has changed since this run started"):
        data_revision(pinned)


@pytest.mark.parametrize("path", [[], ["a.parquet", "hf:owner/name"], ["synthetic:add", "a.parquet"]])
def test_what_cannot_be_read_as_one_is_refused(path: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"at least one file|only files can be listed"):
        load_config({"data": {"train": {"path": path}}})
