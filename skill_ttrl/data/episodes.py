"""Reading files of episodes, one trajectory a line or a JSON array of them, whatever wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from skill_ttrl.errors import DataError
from skill_ttrl.progress import SILENT, Progress
from skill_ttrl.storage.files import wrap_os_errors
from skill_ttrl.storage.jsonl import parse_json, parsed
from skill_ttrl.types import Trajectory, from_json

Files = str | Path | Sequence[str | Path]
"""A file of episodes, or several."""


def read_episodes(files: Files, progress: Progress = SILENT) -> Iterator[Trajectory]:
    """The episodes of files in their order, one after another: files are larger than memory.

    A last line that was cut off is left out, which is said. A JSON array (`collect -o FILE.json`) is read as a whole.

    Raises:
        DataError: there is no such file, it holds nothing, or a line is no episode.
    """
    for path in paths_of(files):
        yield from _of_file(path, progress)


def paths_of(files: Files) -> list[Path]:
    """Each of the files."""
    return [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]


def names_of(files: Files) -> str:
    """The files in a message."""
    return ", ".join(map(str, paths_of(files)))


def _of_file(path: Path, progress: Progress) -> Iterator[Trajectory]:
    if not path.is_file():
        raise DataError(_missing(path))
    if path.suffix == ".json":
        yield from _of_array(path)
        return
    found, cut = 0, ""
    with wrap_os_errors("read", path), path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            if not line.endswith(b"\n"):
                try:
                    from_json(Trajectory, line)
                except ValidationError:
                    progress.notice(
                        f"The last line of {path} ({number}, {len(line):,} bytes) is incomplete and is ignored; the {found:,} before it are used.",
                        warning=True,
                    )
                    cut = " but an incomplete line"
                    break
            yield parsed(f"{path}:{number}", line, Trajectory)
            found += 1
    if not found:
        raise DataError(f"{path} holds no episode{cut}. Collect some into another file: skillttrl collect.")


def _of_array(path: Path) -> Iterator[Trajectory]:
    with wrap_os_errors("read", path):
        text = path.read_bytes()
    try:
        items = parse_json(text)
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}. Collect some into another file: skillttrl collect.") from None
    if not isinstance(items, list) or not items:
        found = "an empty list" if items == [] else type(items).__name__
        raise DataError(
            f"{path} must be a list of episodes, found {found}. Collect some into another file: skillttrl collect."
        )
    for number, item in enumerate(items, 1):
        yield parsed(f"{path}: entry {number}", json.dumps(item), Trajectory)


def _missing(path: Path) -> str:
    """Why a path is no file of episodes, and what to name."""
    if path.is_dir():
        there = [str(path / name) for name in ("trajectories.jsonl", "collected.jsonl") if (path / name).is_file()]
        return f"{path} is a folder. Name a file of episodes, as skillttrl collect writes it{': ' * bool(there)}{', '.join(there)}."
    file = path.with_suffix(".jsonl")
    return f"There is no file of episodes at {path}. Collect some and name that file: skillttrl collect --env alfworld -o {file}"


def episode_corpus(files: Files) -> list[str]:
    """Texts for the built-in tokenizer to learn its words from: what was seen, listed and done, each once for every step."""
    texts: list[str] = []
    for trajectory in read_episodes(files):
        texts += [
            trajectory.goal,
            *(text for step in trajectory.steps for text in (step.observation, *step.admissible_actions)),
        ]
    return texts
