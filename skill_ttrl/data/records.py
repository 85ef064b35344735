"""Records from JSON, JSONL, Parquet and Hugging Face data sets, and columns of them.

`read_records` gives plain dictionaries, `column` a checked column, `record_ids` a stable name for each record. What the
columns mean is the reader's business (`envs.math.tasks`). To add a file format, add a reader to `_READERS`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from skill_ttrl.config import Source
from skill_ttrl.errors import DataError, did_you_mean
from skill_ttrl.storage.jsonl import parse_json

Record = Mapping[str, Any]
FILE_HASH = "sha256:"
"""Begins the revision of a file."""
_Placed = Iterator[tuple[str, Any]]  # (where it stands, the value found there)


@dataclass(frozen=True, slots=True)
class Records:
    """Rows of one data set, in file order."""

    source: str
    """The data set, as it was asked for."""
    rows: tuple[Record, ...]
    places: tuple[str, ...]
    """Where each row stands ("train.jsonl:7"), for messages."""
    revision: str | None = None
    """Exact version that was read: `sha256:<hex>` of a file, the commit of a hub data set; None for a local folder."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Names found in any row, in order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


def read_records(
    path: str | Path, *, split: str | None = None, revision: str | None = None, limit: int | None = None
) -> Records:
    """Read a data set.

    Args:
        path: a `.json` (a list of objects, or an object with one list), `.jsonl` or `.parquet` file;
            `hf:owner/name`, or `hf:owner/name:config` for a data set with configurations, through `datasets`
            (`HF_HUB_OFFLINE=1` reads the cache only); `hf:` also takes a local folder that `datasets` can read.
        split: part of a Hugging Face data set; needed where it has several. Files have none.
        revision: commit, tag or branch of a Hugging Face data set.
        limit: take the first so many.

    Returns:
        At least one record.

    Raises:
        DataError: no such file or data set, unreadable, malformed (with the place), or empty.
    """
    source = str(path)
    if source.startswith("hf:"):
        return _read_hub(source, split, revision, limit)
    if split is not None:
        raise DataError(
            f"{source}: files have no splits, split={split!r} was requested. Set split: null and use one file per split."
        )
    file = _existing_file(Path(path))
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(
            f"Cannot read {file}: unknown ending {file.suffix!r}.{did_you_mean(file.suffix, _READERS)} "
            "A Hugging Face data set is written hf:owner/name."
        )
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        placed = list(islice(reader(file), limit))
    except OSError as error:
        raise DataError(f"Cannot read {file}: {error.strerror or error}.") from None
    return _records(source, placed, f"{FILE_HASH}{digest}")


def read_source(source: Source, *, limit: int | None = None) -> Records:
    """Read the file, the files or the data set that a config names.

    Args:
        source: Several files are read one after the other, as one.
        limit: Take the first so many; None: `source.limit`.

    Returns:
        At least one record. The `revision` of several files is a digest of theirs.

    Raises:
        DataError: see `read_records`.
    """
    limit = source.limit if limit is None else limit
    # A pinned file is named by its hash, which only a hub would take for a revision.
    revision = None if (source.revision or "").startswith(FILE_HASH) else source.revision
    first = read_records(source.path, split=source.split, revision=revision, limit=limit)
    if not source.more:
        return first
    parts = [first, *(read_records(path, split=source.split, limit=limit) for path in source.more)]
    digest = hashlib.sha256(" ".join(str(part.revision) for part in parts).encode()).hexdigest()
    rows = tuple(row for part in parts for row in part.rows)[:limit]
    places = tuple(place for part in parts for place in part.places)[:limit]
    return Records(source.name, rows, places, f"{FILE_HASH}{digest}")


def text_lists(records: Records, name: str) -> list[list[str]]:
    """The values of a column of lists of texts, none of them empty.

    Raises:
        DataError: one is empty or holds something else; names the record.
    """
    found: list[list[str]] = column(records, name, list)
    for texts, place in zip(found, records.places, strict=True):
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{place}: {name!r} must be a list of at least one text.")
    return found


def column(records: Records, name: str, kind: type | tuple[type, ...] = str, *, optional: bool = False) -> list[Any]:
    """The values of one column, each of type `kind`; None of a row that lacks it, where it is `optional`.

    Raises:
        DataError: no row has the column (the found ones are named), a row lacks it, or a value has another type. Text with
            unpaired surrogates is refused too: it cannot be tokenised nor written.
    """
    if name not in records.columns:
        found = records.columns
        raise DataError(f"{records.source} has no column {name!r}.{did_you_mean(name, found)}")
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return [
        None if optional and name not in row else _checked(row, name, kinds, place)
        for row, place in zip(records.rows, records.places, strict=True)
    ]


def record_ids(records: Records, name: str = "id") -> list[str]:
    """A name for each record: its `id`, or a hash of its content where it has none (repeats are numbered).

    Raises:
        DataError: two records state the same id.
    """
    ids: list[str] = []
    seen: dict[str, str] = {}
    repeats: Counter[str] = Counter()
    for row, place in zip(records.rows, records.places, strict=True):
        stated = row.get(name)
        if stated is None:
            identifier = content_id(row)
            repeats[identifier] += 1
            if repeats[identifier] > 1:
                identifier = f"{identifier}-{repeats[identifier]}"
        else:
            identifier = str(stated)
        if identifier in seen:
            raise DataError(
                f"{place}: the id {identifier!r} was already used at {seen[identifier]}. Ids must be unique; "
                f"leave {name!r} out to have them made from the content."
            )
        seen[identifier] = place
        ids.append(identifier)
    return ids


def content_id(row: Record) -> str:
    """A name made from the content: 16 hexadecimal digits, the same for equal records on every machine."""
    text = json.dumps(row, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _checked(row: Record, name: str, kinds: tuple[type, ...], place: str) -> Any:
    if name not in row:
        raise DataError(f"{place}: this record has no {name!r}. It has: {', '.join(map(repr, row)) or 'nothing'}.")
    value = row[name]
    # bool is an int to isinstance, but `true` where a number is wanted is a mistake in the data
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(_KINDS.get(kind, kind.__name__) for kind in kinds)
        found = _KINDS.get(type(value), type(value).__name__)
        raise DataError(f"{place}: {name!r} must be {wanted}, found {found}: {_shown(value)}.")
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise DataError(f"{place}: {name!r} holds an unpaired surrogate, which is not valid Unicode: {_shown(value)}.")
    return value


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _records(source: str, placed: Sequence[tuple[str, Any]], revision: str | None) -> Records:
    if not placed:
        raise DataError(f"{source} holds no records. At least one is needed.")
    for place, value in placed:
        if not isinstance(value, dict):
            raise DataError(f"{place}: a record must be an object with named fields, found {_shown(value)}.")
    places, rows = zip(*placed, strict=True)
    return Records(source, rows, places, revision)


def _existing_file(path: Path) -> Path:
    if path.is_file():
        return path
    folder = path if path.is_dir() else path.parent
    there = [entry.name for entry in folder.iterdir() if entry.suffix in _READERS] if folder.is_dir() else []
    problem = f"{path} is a folder; a file is needed" if path.is_dir() else f"No file {path}"
    raise DataError(f"{problem}.{did_you_mean('' if path.is_dir() else path.name, there)}")


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}.") from None


def _parsed(text: str, where: str, hint: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:  # an integer of thousands of digits, or thousands of brackets, too
        raise DataError(f"{where} is not JSON: {str(error)[:200]}. {hint}") from None


def _read_json(file: Path) -> _Placed:
    hint = "Correct the file; name one with one object per line .jsonl."
    data = _parsed(_decoded(file.read_bytes(), str(file)), str(file), hint)
    if isinstance(data, dict):
        lists = [value for value in data.values() if isinstance(value, list)]
        if len(lists) != 1:
            raise DataError(
                f"{file} must be a list of records or an object with one list; found an object with {len(lists)} lists. "
                f"Keys: {', '.join(map(repr, data)) or 'none'}."
            )
        data = lists[0]
    if not isinstance(data, list):
        raise DataError(f"{file} must be a list of records or an object with one list, found {_shown(data)}.")
    return ((f"{file}, record {number}", row) for number, row in enumerate(data, 1))


def _read_jsonl(file: Path) -> _Placed:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{file}:{number}"
            if text := _decoded(line, where).rstrip():
                yield where, _parsed(text, where, "Each line is one JSON object: correct this line or remove it.")


def _read_parquet(file: Path) -> _Placed:
    import pyarrow
    import pyarrow.parquet

    try:
        batches = pyarrow.parquet.ParquetFile(file).iter_batches()
        rows = [row for batch in batches for row in batch.to_pylist()]
    except pyarrow.ArrowException as error:
        raise DataError(f"{file} is not a readable Parquet file: {error}.") from None
    return ((f"{file}, row {number}", row) for number, row in enumerate(rows, 1))


_READERS: dict[str, Callable[[Path], _Placed]] = {".json": _read_json, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
SUFFIXES = tuple(_READERS)
"""Endings of files that can be read."""


def _read_hub(source: str, split: str | None, revision: str | None, limit: int | None) -> Records:
    import datasets

    name, _, config = source.removeprefix("hf:").partition(":")
    try:
        loaded = datasets.load_dataset(name, config or None, revision=revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"Cannot load {source}{f' at revision {revision!r}' if revision else ''}: {' '.join(str(error).split())} "
            "Offline (HF_HUB_OFFLINE=1), only data sets that are in the cache can be read."
        ) from error
    splits = list(loaded)
    if split is None and len(splits) == 1:
        split = splits[0]
    if split not in splits:
        asked = "none was asked" if split is None else f"split={split!r} was asked"
        raise DataError(f"{source} has several splits, {asked}.{did_you_mean(split or '', splits)}")
    table = loaded[split]
    rows = table.select(range(min(limit, len(table)))) if limit is not None else table
    placed = [(f"{source} [{split}], row {number}", row) for number, row in enumerate(rows.to_list(), 1)]
    return _records(source, placed, _commit(table) or revision)


def _commit(table: Any) -> str | None:
    """Commit a hub data set was built from: `datasets` names the folder of its Arrow files after it."""
    for entry in table.cache_files:
        folder = Path(entry["filename"]).parent.name
        if re.fullmatch(r"[0-9a-f]{40}", folder):
            return folder
    return None
