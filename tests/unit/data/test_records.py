"""Records: every format gives the same rows, and every mistake in a file is named with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skill_ttrl.data.records import Records, column, content_id, read_records, record_ids
from skill_ttrl.errors import DataError

ROWS = [{"id": "a", "prompt": "1+1?", "answer": "2"}, {"id": "b", "prompt": "Größe → 数?", "answer": "7"}]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet", ".JSON"])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    records = read_records(write(tmp_path / f"data{suffix}", ROWS))
    assert list(records.rows) == ROWS
    assert records.columns == ["id", "prompt", "answer"]
    assert records.revision is not None and records.revision.startswith("sha256:")
    assert list(read_records(tmp_path / f"data{suffix}", limit=1).rows) == ROWS[:1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text()), min_size=1, max_size=5))
def test_any_jsonl_is_read_back(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    records = read_records(write(tmp_path / "any.jsonl", rows))
    assert list(records.rows) == rows
    assert len(set(record_ids(Records("x", records.rows, records.places), "no such column!"))) == len(rows)


MALFORMED = [
    ("bad.jsonl", b'{"a": 1}\n\n{"a": \n', r"bad\.jsonl:3 is not JSON: Expecting value"),
    ("bad.jsonl", b'{"a": 1}\n[1, 2]\n', r"bad\.jsonl:2: a record must be an object with named fields, found \[1, 2\]"),
    ("bad.jsonl", b'{"a": "\xff"}\n', r"bad\.jsonl:1 is not UTF-8 text: byte 7 is 0xff"),
    ("bad.jsonl", b'{"a": ' + b"1" * 5000 + b"}", r"bad\.jsonl:1 is not JSON: Exceeds the limit"),
    ("bad.jsonl", b"[" * 200_000, r"bad\.jsonl:1 is not JSON"),
    ("bad.json", b'{"a": 1}\n{"a": 2}\n', r"Extra data: line 2 column 1.*one object per line"),
    ("bad.json", b'{"a": [], "b": []}', r"found an object with 2 lists\. Keys: 'a', 'b'"),
    ("bad.json", b'"text"', r"must be a list of records or an object with one list, found 'text'"),
    ("bad.json", b"[1]", r"bad\.json, record 1: a record must be an object"),
    ("bad.parquet", b"PAR1nothing", r"bad\.parquet is not a readable Parquet file"),
    ("empty.json", b"[]", r"holds no records"),
    ("empty.jsonl", b"\n \n", r"holds no records"),
    ("data.tsv", b"a\tb\n", r"unknown ending '\.tsv'.*Known: \.json, \.jsonl, \.parquet"),
]


@pytest.mark.parametrize(("name", "content", "message"), MALFORMED)
def test_a_malformed_file_is_named_with_its_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_records(tmp_path / name)


def test_columns_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", [{"question": "a", "n": 1}, {"question": 2, "n": True}, {"n": 3}])
    records = read_records(path)
    with pytest.raises(DataError, match=r"has no column 'questoin'\. Did you mean 'question'\? Known: n, question\."):
        column(records, "questoin")
    with pytest.raises(DataError, match=r"data\.jsonl:2: 'question' must be a text, found a whole number: 2\."):
        column(records, "question")
    with pytest.raises(DataError, match=r"data\.jsonl:2: 'n' must be a whole number or a number, found bool: True"):
        column(records, "n", (int, float))
    with pytest.raises(DataError, match=r"data\.jsonl:3: this record has no 'question'\. It has: 'n'\."):
        column(Records("x", records.rows[2:] + records.rows[:1], records.places[2:] + records.places[:1]), "question")
    assert column(read_records(path, limit=1), "question") == ["a"]


def test_ids_are_stated_or_made_from_the_content(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": 7, "p": "a"}, {"p": "b"}, {"p": "b"}, {"id": None, "p": "c"}]
    ids = record_ids(read_records(write(tmp_path / "data.jsonl", rows)))
    assert ids == ["7", content_id({"p": "b"}), content_id({"p": "b"}) + "-2", content_id({"id": None, "p": "c"})]
    assert content_id({"b": 1, "a": 2}) == content_id({"a": 2, "b": 1}) == "330591db021132d1"
    repeated = read_records(write(tmp_path / "twice.jsonl", [{"id": "x"}, {"id": "y"}, {"id": "x"}]))
    with pytest.raises(DataError, match=r"twice\.jsonl:3: the id 'x' was already used at .*twice\.jsonl:1"):
        record_ids(repeated)


def test_hugging_face_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    folder = tmp_path / "problems"
    folder.mkdir()
    write(folder / "train.jsonl", ROWS)
    write(folder / "test.jsonl", ROWS[1:])
    assert list(read_records(f"hf:{folder}", split="train").rows) == ROWS
    assert len(read_records(f"hf:{folder}", split="train", limit=1)) == 1
    assert list(read_records(f"hf:{folder}", split="test").rows) == ROWS[1:]
    with pytest.raises(DataError, match=r"several splits, none was asked\. Known: test, train"):
        read_records(f"hf:{folder}")
    with pytest.raises(DataError, match=r"split='tset' was asked\. Did you mean 'test'\?"):
        read_records(f"hf:{folder}", split="tset")


def test_a_data_set_that_is_not_there_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"Cannot load hf:nobody/nothing at revision 'abc': .*Offline"):
        read_records("hf:nobody/nothing", revision="abc")
