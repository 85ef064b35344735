"""Logs that episodes are appended to in a fixed order: a folder of samples, or a file of trajectories.

Their order is fixed, so the number of lines says what is still to be sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skill_ttrl.errors import ConfigError, RunFolderError, did_you_mean
from skill_ttrl.storage import files
from skill_ttrl.storage.files import LOCK_FILE, AppendLog, wrap_os_errors, write_atomic
from skill_ttrl.storage.jsonl import leaving_out, parsed, whole_lines
from skill_ttrl.types import Trajectory

SAMPLES = "samples.jsonl"
IDENTITY = "samples.json"
SUFFIX = ".jsonl"
TRAJECTORIES = "trajectories.jsonl"
"""Every rollout of a run's training."""
COLLECTED = "collected.jsonl"
"""The episodes that a run has collected; those of further `collect.data` are in `collected-2.jsonl` and so on."""
DAGGERED = "dagger.jsonl"
"""The episodes of all DAgger rounds, one a line, with the expert's advice in the `info` of each step."""
EVAL_TRAJECTORIES = "eval_trajectories.jsonl"
"""A few rollouts of each of its evaluations, in the same form: the phase is the evaluation's label, the step the number of steps learned."""


class SampleFolder(AppendLog):
    """A folder with `samples.jsonl`, one line a problem and way of sampling, and `samples.json`, what they are samples of.

    It is new, empty, or a folder of samples. `made_with` is all that these depend on, as JSON can hold it.

    Raises:
        RunFolderError: the folder holds something else or samples of something else (the differences are named), another process
            is in it, or it cannot be written.
    """

    holds = "samples"

    def __init__(self, path: str | Path, made_with: Mapping[str, Any]) -> None:
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"Cannot store samples in {path}: it is a file. Choose another --output.")
        if not self.exists(path) and path.exists():
            names = (entry.name for entry in path.iterdir() if entry.name != LOCK_FILE)
            if foreign := sorted(name for name in names if not (name.startswith(".") and ".tmp-" in name)):
                raise RunFolderError(
                    f"{path} is not empty and holds no samples (found: {', '.join(foreign[:5])}). Choose another --output."
                )
        with wrap_os_errors("make", path):
            path.mkdir(parents=True, exist_ok=True)
        super().__init__(path, path / SAMPLES, path / IDENTITY, made_with)

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Tell whether `path` is a folder of samples."""
        return Path(path).joinpath(IDENTITY).is_file()

    @property
    def complete(self) -> bool:
        """True if every line is there."""
        return self.identity.get("lines") == sum(1 for _ in self.lines())

    def write_text(self, name: str, text: str) -> None:
        """Replace a whole file of the folder in one step.

        Raises:
            RunFolderError: the disk is full or the folder cannot be written.
        """
        with wrap_os_errors("write", self.path / name):
            write_atomic(self.path / name, text.encode())


class TrajectoryFile(AppendLog):
    """A file `FILE.jsonl`, one trajectory a line, and its sidecar `FILE.jsonl.json`, the settings they were made with.

    It is new or was begun here, and ends in `.jsonl`. `made_with` is all that the trajectories depend on, as JSON can hold it.

    Raises:
        RunFolderError: it is a folder, something else, or made with something else (the differences are named); another process
            writes to it; or it cannot be written.
    """

    holds = "trajectories"

    def __init__(self, path: str | Path, made_with: Mapping[str, Any]) -> None:
        path = Path(path)
        if path.suffix != SUFFIX or (path.exists() and not path.is_file()):
            raise RunFolderError(f"Cannot write trajectories to {path}: name an ordinary file that ends in {SUFFIX}.")
        with wrap_os_errors("make", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, path, identity_file(path), made_with, path.with_name(f".{path.name}.lock"))

    def close(self) -> None:
        """Free the lock and remove its file; a log without a line leaves nothing. Safe to call twice."""
        if self._lock is not None:
            if not self.path.is_file() or not self.path.stat().st_size:
                for each in (self.path, self.identity_file):
                    each.unlink(missing_ok=True)
            self.path.with_name(f".{self.path.name}.lock").unlink(missing_ok=True)
        super().close()


ARRAY_SUFFIX = ".json"


def lines_of(path: Path) -> Path:
    """The file of lines that a JSON array of trajectories is written from: `FILE.jsonl` for `FILE.json`, any other path itself."""
    return path.with_suffix(SUFFIX) if path.suffix == ARRAY_SUFFIX else path


def write_array(path: Path, lines: Iterable[bytes]) -> None:
    """Write the lines of a log as one JSON array, an element a line, whole or not at all.

    Raises:
        RunFolderError: it cannot be written.
    """
    with wrap_os_errors("write", path):
        write_atomic(path, b"[\n" + b",\n".join(line.rstrip(b"\n") for line in lines) + b"\n]\n")


def identity_file(path: Path) -> Path:
    """The file that says what the trajectories in `path` were made with."""
    return path.with_name(f"{lines_of(path).name}.json")


def read_identity(path: Path) -> dict[str, Any]:
    """Settings that a folder of samples or a file of trajectories was made with (`made_with`), and `facts` once they are known.

    Raises:
        RunFolderError: it cannot be read, or is of another schema.
    """
    file, holds = (path / IDENTITY, "samples") if path.is_dir() else (identity_file(path), "trajectories")
    return files.read_identity(file, f"{path} holds {holds}")


@dataclass(frozen=True, slots=True)
class Place:
    """Phase and step of a line in a run's file. Places of one step are equal."""

    phase: str = ""
    step: int | None = None
    sample: int | None = field(default=None, compare=False)
    """Place of a rollout in its group, from 0."""
    original_score: float | None = field(default=None, compare=False)
    """1 where a rollout's answer is the true one, else 0; None without a label."""

    def episode(self, task: str) -> str:
        """Id of the rollout of this task in its run: `rl:12:TASK:3`."""
        return f"{self.phase}:{self.step}:{task}:{self.sample}"


def read_rollouts(path: Path, notes: list[str]) -> Iterator[tuple[str, Place, Trajectory]]:
    """Yield (name of the line for messages, place, rollout) for each line of a run's `trajectories.jsonl`.

    Raises:
        DataError: a line is not a rollout.
    """
    for where, line in whole_lines(path, notes):
        yield where, parsed(where, line, Place), parsed(where, line, Trajectory)


def read_episode(run: Path, episode: str) -> tuple[Place, Trajectory]:
    """The rollout of a run with this id (`Place.episode`).

    Raises:
        ConfigError: the run has none with this id (names those that are near, and a damaged line).
        RunFolderError: the run has no `trajectories.jsonl`.
    """
    where, line = find_episode(run, episode)
    return parsed(where, line, Place), parsed(where, line, Trajectory)


def find_episode(run: Path, episode: str) -> tuple[str, bytes]:
    """(name for messages, line) of the rollout with this id; only those of its step are read whole. Raises as `read_episode`."""
    steps, known, notes = dict[str, None](), list[str](), list[str]()
    paths = [run / name for name in (TRAJECTORIES, EVAL_TRAJECTORIES) if (run / name).is_file()]
    if not paths:
        raise RunFolderError(
            f"{run} has no {TRAJECTORIES}: no step has ended, or the run has run.save_trajectories: false."
        )
    for where, line in (each for path in paths for each in whole_lines(path, [])):
        with leaving_out(notes):
            place = parsed(where, line, Place)
            steps[step := f"{place.phase}:{place.step}"] = None
            if episode.startswith(f"{step}:"):
                known.append(place.episode(parsed(where, line, Trajectory).task.id))
                if known[-1] == episode:
                    return where, line
    hint = did_you_mean(episode, known, f"skillttrl inspect {run} --step {episode.split(':')[1]}") if known else ""
    if not known and steps:
        first, *_, last = [*steps] * 2
        hint = f" An id is PHASE:STEP:TASK:SAMPLE; the steps are {first} to {last}."
    raise ConfigError(" ".join([f"{run} has no episode {episode!r}.{hint}", *notes[:1]]))


def read_facts(path: str | Path) -> Any:
    """Read the `facts` stored with the samples in a folder; None if there are none.

    Raises:
        RunFolderError: its `samples.json` cannot be read.
    """
    return read_identity(Path(path)).get("facts") if SampleFolder.exists(path) else None
