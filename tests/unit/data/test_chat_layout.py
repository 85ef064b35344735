"""verl's Parquet layout, written by pyarrow as verl's own scripts write it, and several files as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from skill_ttrl.config import SkillTTRLConfig, Source, load_config
from skill_ttrl.data.records import read_source
from skill_ttrl.data.tasks import load_tasks, system_message
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.train.defaults import with_defaults
from skill_ttrl.train.tasks import ConfigTasks, data_revision


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
