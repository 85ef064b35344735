"""JSON of files that others may have written, and JSON Lines, whose last line may be torn by a kill or a write under way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from skill_ttrl.errors import DataError, RunFolderError
from skill_ttrl.types import first_problem, from_json

T = TypeVar("T")

MAX_DEPTH = 100
"""Most levels of lists and objects in a JSON text; ours have fewer than ten."""
MOST_NOTES = 20
"""Notes after which lines that cannot be read are no longer named."""
TORN = "{}: its last line is incomplete (a run is writing it, or was killed) and was ignored."
"""Note on a file."""
_FLAT = re.compile(r'"(?:[^"\\]|\\.)*"|[^][{}"]+')


def parse_json(text: str | bytes | bytearray) -> Any:
    """`json.loads` for text of unknown origin.

    Raises:
        ValueError: it is no JSON, or has more than `MAX_DEPTH` levels: whoever walks through the value would run out of stack.
    """
    problem = f"more than {MAX_DEPTH} levels of nesting"
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(problem) from None
    text = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        steps = (1 if bracket in "[{" else -1 for bracket in _FLAT.sub("", text))
        if max(accumulate(steps)) > MAX_DEPTH:
            raise ValueError(problem)
    return found


def read_jsonl(path: Path, notes: list[str] | None = None, **fields: type) -> list[dict[str, Any]]:
    """The objects of a file, none where there is no file; a torn last line is left out.

    Args:
        path: the file.
        notes: where lines that are left out are noted; with it damaged ones are left out too.
        fields: those that each object must have, and their types.

    Raises:
        DataError: it cannot be read.
        RunFolderError: without `notes`, a whole line is damaged; names file and line.
    """
    records: list[dict[str, Any]] = []
    for where, line in whole_lines(path, [] if notes is None else notes) if path.exists() else ():
        try:
            record = parse_json(line)
            if not isinstance(record, dict):
                raise ValueError(f"expected an object, found {type(record).__name__}")
            if missing := [name for name, kind in fields.items() if not isinstance(record.get(name), kind)]:
                raise ValueError(f"it lacks its {' and its '.join(missing)}")
            records.append(record)
        except ValueError as error:
            if notes is None:
                raise RunFolderError(
                    f"{where} is damaged: {error}. To read the others, copy the folder and delete that line in the copy."
                ) from None
            _note(notes, f"{where} is damaged and was left out: {error}.")
    return records


def whole_lines(path: Path, notes: list[str]) -> Iterator[tuple[str, bytes]]:
    """Lines with their places ("file:3"), one after another; a torn last one is left out and noted, blank ones are skipped.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    notes.append(TORN.format(path))
                elif not line.isspace():
                    yield f"{path}:{number}", line
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from None


@contextmanager
def leaving_out(notes: list[str] | None) -> Iterator[None]:
    """Note a line that cannot be read, and go on with the next one; without `notes` it is an error."""
    try:
        yield
    except DataError as error:
        if notes is None:
            raise
        _note(notes, f"{error} It was left out.")


def _note(notes: list[str], text: str) -> None:
    if len(notes) <= MOST_NOTES:
        notes.append(text if len(notes) < MOST_NOTES else "More lines were left out.")


def first_keys(path: Path) -> set[str]:
    """Fields of the first record of a JSONL file; of anything else nothing, and reading it will say what is wrong."""
    if path.suffix != ".jsonl" or not path.is_file():
        return set()
    with path.open("rb") as stream:
        try:
            found = parse_json(stream.readline())
        except ValueError:
            return set()
    return set(found) if isinstance(found, dict) else set()


def parsed(where: str, line: str | bytes, kind: type[T]) -> T:
    """Parse a line of a file as `kind`; `where` names the line in the error.

    Raises:
        DataError: it is not of this type.
    """
    try:
        return from_json(kind, line)
    except ValidationError as error:
        raise DataError(f"{where} cannot be read: {first_problem(error)}.") from None
