"""The folder of a run: which files there are, how they are written, and who may write them.

Two kinds of file. *Whole* files (`run.json`, `config.yaml`, `summary.json`) are replaced atomically. *Append* files
(`metrics.jsonl`, ...) only grow, one JSON object a line; a checkpoint remembers how long each was (`sizes`), and going
on from it cuts them back to that length (`truncate_to`), so a resumed run writes the same bytes as one never stopped.
One process at a time may write (`.lock`). docs/run-folder.md describes every file and field; a change of it raises
`SCHEMA_VERSION`. To add an append file, name it in `APPEND_FILES`.

`MetricsLog` writes figures: `metrics.jsonl` has what a resumed run repeats exactly, `timings.jsonl` the rest.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from skill_ttrl.config import ROLES, SkillTTRLConfig, load_config
from skill_ttrl.cores import cores
from skill_ttrl.errors import RunFolderError, on_error
from skill_ttrl.storage.files import (
    LOCK_FILE,
    Locked,
    acquire_lock,
    append_whole,
    cut_torn_line,
    flatten,
    fsync,
    wrap_os_errors,
    write_atomic,
)
from skill_ttrl.storage.jsonl import parse_json, read_jsonl
from skill_ttrl.trust import SUFFIX, check_links, sign
from skill_ttrl.types import Group, Labels, VoteResult, to_json

if TYPE_CHECKING:
    from skill_ttrl.rollout.outcome import TaskSamples
    from skill_ttrl.runs.trackers import RunTracker

WARNINGS = "warnings.jsonl"
APPEND_FILES = (
    "metrics.jsonl",
    "timings.jsonl",
    "trajectories.jsonl",
    "votes.jsonl",
    "evaluations.jsonl",
    "eval_samples.jsonl",
    "eval_trajectories.jsonl",
    "evolve.jsonl",
    "gate.jsonl",
    "optimize.jsonl",
    "dagger.jsonl",
    WARNINGS,
)
EQUIVALENCE_CACHE = "equivalence_cache.jsonl"
"""Journal of the answers' verdicts (`answers.persist_cache`). It only grows and is never cut back: a verdict once given stays."""
_CONFIGS = ("config.yaml", "config_source.yaml")
# All that a creation killed before `run.json` can leave.
_STARTED = {LOCK_FILE, *_CONFIGS, *(f"{name}{SUFFIX}" for name in _CONFIGS)}


class RunFolder(Locked):
    """An open run folder. Make one with `create` or `open`; a context manager that frees the lock.

    Attributes:
        path: The folder.
        locked: True if this object may write. Without the lock every writing method raises `RunFolderError`.
    """

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @staticmethod
    def exists(path: str | Path) -> bool:
        """True if a run was created at `path` (it has a `run.json`)."""
        return Path(path).joinpath("run.json").is_file()

    @classmethod
    def create(cls, path: str | Path, config: SkillTTRLConfig, *, source: str | None = None) -> RunFolder:
        """Start a new run at `path` and lock it. The folder must be new or empty; missing parents are made.

        The resolved configuration is saved as `config.yaml`, the text of the file that the user gave (`source`) as
        `config_source.yaml`.

        Raises:
            RunFolderError: the folder holds something already, cannot be written, or another process is in it.
        """
        path = Path(path)
        cls.check_new(path)
        with wrap_os_errors("make the run folder", path):
            path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, acquire_lock(path))
        with on_error(folder.close):
            if cls.exists(path):  # another process was quicker
                raise RunFolderError(_occupied(path, []))
            folder.take_config(config, source)
            folder.write_json("run.json", describe_environment())  # last: with it the folder counts as a run
        return folder

    @staticmethod
    def check_new(path: Path) -> None:
        """Check that a run can start at `path`.

        Raises:
            RunFolderError: the folder holds something already, or a file has that name.
        """
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"Cannot make the run folder {path}: a file has that name. Choose another --output.")
        if foreign := sorted(filterfalse(_left_by_creation, os.listdir(path) if path.exists() else ())):
            raise RunFolderError(_occupied(path, foreign))

    @classmethod
    def open(cls, path: str | Path, *, lock: bool = True) -> RunFolder:
        """Open an existing run; to go on with it (`lock`), last lines torn by a crash are cut.

        Raises:
            RunFolderError: not a run folder, another schema version, or another process is in it.
            TrustError: it is to be written, and a link in it leads elsewhere.
        """
        path = Path(path)
        read_run_json(path)
        if not lock:
            return cls(path, None)
        check_links(path)
        folder = cls(path, acquire_lock(path))
        with on_error(folder.close):
            for name in APPEND_FILES:
                cut_torn_line(path / name)
        return folder

    @property
    def locked(self) -> bool:
        """True if this object holds the folder's lock."""
        return self._lock is not None

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints; may not exist yet."""
        return self.path / "checkpoints"

    @cached_property
    def config(self) -> SkillTTRLConfig:
        """The resolved configuration that was saved with the run, to be compared; `load_config` checks who wrote it."""
        return load_config(self.path / "config.yaml", trust=True)

    def belongs_to(self, config: SkillTTRLConfig) -> None:
        """Check that this folder was made for `config`, apart from `NO_EFFECT_ON_RESULTS`.

        Raises:
            RunFolderError: naming each key that differs, with both values.
        """
        if found := config_differences(self.config, config):
            shown = "; ".join(found[:8]) + (f"; and {len(found) - 8} more" if len(found) > 8 else "")
            raise RunFolderError(
                f"{self.path} belongs to another config: {shown}. Choose another --output, or continue it with its own config."
            )

    def take_config(self, config: SkillTTRLConfig, source: str | None = None) -> None:
        """Write the config of a new run, or of one in which nothing was trained or that is lengthened; arguments as for `create`.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        self.__dict__.pop("config", None)
        for name, text in (("config_source.yaml", source), ("config.yaml", config.to_yaml())):
            if text is not None:
                with wrap_os_errors("write", self.path / name):
                    sign(self.path / name, text, config.stated())
                self.write_text(name, text)

    def append_jsonl(self, name: str, lines: Iterable[str]) -> None:
        """Append JSON texts without line breaks to one of `APPEND_FILES`, all of them or none, and hand them to the system.

        Raises:
            RunFolderError: the disk is full or the folder cannot be written; the file is as it was.
        """
        data = "".join(f"{line}\n" for line in lines).encode()
        append_whole(self._own / name, data, durable=False)

    def sizes(self) -> dict[str, int]:
        """Length in bytes of every append file, 0 where there is none: what a checkpoint keeps for `truncate_to`."""
        paths = {name: self.path / name for name in APPEND_FILES}
        return {name: path.stat().st_size if path.exists() else 0 for name, path in paths.items()}

    def sync(self) -> None:
        """Force the append files to the disk, so that the lengths a checkpoint notes survive a power cut."""
        for name, size in self.sizes().items():
            if size:
                with wrap_os_errors("write", self.path / name):
                    fsync(self.path / name)

    def truncate_to(self, offsets: Mapping[str, int]) -> None:
        """Cut the append files back to these lengths in bytes; a file that is not named is emptied."""
        folder = self._own
        for name, size in self.sizes().items():
            if size > offsets.get(name, 0):
                with wrap_os_errors("write", folder / name):
                    os.truncate(folder / name, offsets.get(name, 0))

    def write_text(self, name: str, text: str) -> Path:
        """Replace a whole file atomically: readers see the old text or the new one, never a part.

        Raises:
            RunFolderError: the disk is full or the folder cannot be written; the old file is as it was.
        """
        path = self._own / name
        with wrap_os_errors("write", path):
            write_atomic(path, text.encode())
        return path

    def write_json(self, name: str, value: Any) -> Path:
        """Replace a whole JSON file atomically (`write_text`)."""
        return self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def discard_unstarted(self, *further: str) -> None:
        """Remove the folder where it holds no more than its creation wrote, and `further` files; one in which anything was done stays."""
        entries = list(self._own.iterdir())
        if all(_left_by_creation(entry.name) or entry.name in ("run.json", *further) for entry in entries):
            for entry in entries:
                entry.unlink()
            self.close()
            self.path.rmdir()

    @property
    def _own(self) -> Path:
        """The path, to be written in."""
        if self._lock is None:
            raise RunFolderError(f"{self.path} is open for reading only. Open it with lock=True to write.")
        return self.path


def _left_by_creation(name: str) -> bool:
    return name in _STARTED or (name.startswith(".") and ".tmp-" in name)


def _occupied(path: Path, found: list[str]) -> str:
    if RunFolder.exists(path):
        return f"{path} already holds a run. Continue it with --resume auto, or choose another --output."
    return f"{path} is not empty and not a run folder (found: {summarize_names(found)}). Choose another --output."


SCHEMA_VERSION = 2
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "tokenizers", "gymnasium", "datasets", "numpy", "pydantic")
_ADDRESS_AND_LIMITS = (
    "base_url",  # a server may move; its model's name says who answers
    *("api_key_env", "timeout", "max_concurrency", "max_retries", "price_in", "price_out"),
)
NO_EFFECT_ON_RESULTS = (
    "name",
    "run",
    "verified",
    "requires",
    "sft.save_steps",
    "rl.save_steps",
    "sft.micro_batch_size",
    "rl.micro_batch_size",
    "rollout.max_batch_size",
    "skills.index",
    "model.gradient_checkpointing",
    "model.packing",
    "runtime.nproc",
    "runtime.parallel",
    "scale",
    "endpoints.max_cost",
    "endpoints.max_total_tokens",
    "endpoints.max_requests",
    *(
        f"{place}.{key}"
        for place in ("endpoints", *(f"endpoints.roles.{role}" for role in ROLES))
        for key in _ADDRESS_AND_LIMITS
    ),
)
"""Config keys (or sections) in which a resumed run may differ from its start: they change what is kept, memory, how many
processes train, where episodes run, where a server is or how long it is waited for."""


def describe_environment() -> dict[str, Any]:
    """Return the content of `run.json`: schema, an id drawn for this run, versions and platform.

    Excludes the user, the host name and the command. GPUs are those that nvidia-smi lists: torch need not be there, and is not started.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "id": uuid.uuid4().hex[:12],
        "skill_ttrl": _version("skill-ttrl") or "not installed",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
        "hardware": {"cpu_threads": cores(), "gpus": _gpus()},
    }


def read_run_json(path: str | Path) -> dict[str, Any]:
    """The content of a run's `run.json`.

    Raises:
        RunFolderError: no such folder, not a run folder, not readable, or written under another schema version.
    """
    path = Path(path)
    if not path.joinpath("run.json").is_file():
        found = "it has no run.json" if path.is_dir() else "it is a file" if path.exists() else "nothing is there"
        raise RunFolderError(f"{path} is not a run folder: {found}. Start a run with: skillttrl train.")
    try:
        data: dict[str, Any] = parse_json(path.joinpath("run.json").read_text(encoding="utf-8"))
        version = data["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"Cannot read {path / 'run.json'}, which is damaged or not of a run: {error!r}.") from None
    if version != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} has schema version {version!r}, written by skill-ttrl {data.get('skill_ttrl', 'unknown')}; this "
            f"version reads schema {SCHEMA_VERSION}. Use the skill-ttrl that wrote it, or choose another --output."
        )
    return data


def config_differences(saved: SkillTTRLConfig, given: SkillTTRLConfig) -> list[str]:
    """Keys whose values change results and differ, as `"rl.learning_rate 0.0003 there, 0.0001 here"`.

    A revision that `saved` has resolved and `given` leaves open is no difference.
    """
    there, here = (flatten(config.model_dump(mode="json"), lists=False) for config in (saved, given))
    differences = []
    for key in sorted(there.keys() | here.keys()):
        old, new = there.get(key), here.get(key)
        ignored = any(key == name or key.startswith(name + ".") for name in NO_EFFECT_ON_RESULTS)
        resolved = (key.endswith("revision") or key.startswith("data.revisions")) and not new
        if old != new and not ignored and not resolved:
            differences.append(f"{key} {json.dumps(old)} there, {json.dumps(new)} here")
    return differences


def summarize_names(names: list[str]) -> str:
    """The first few names, for a message."""
    return (", ".join(names[:5]) + (", ..." if len(names) > 5 else "")) or "nothing"


@cache
def _gpus() -> list[str]:
    """Names of this machine's NVIDIA GPUs."""
    if not (tool := shutil.which("nvidia-smi")):
        return []
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):  # a driver that is not loaded
        return []


@cache
def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


# Lines of the append files.


class MetricsLog:
    """Writes figures into a run folder, which is locked, and hands every line's finite ones to a tracker."""

    def __init__(self, folder: RunFolder, tracker: RunTracker | None = None) -> None:
        self._folder = folder
        self.tracker = tracker
        self._rows: list[dict[str, Any]] | None = None
        self.steps: dict[str, int] = {}
        """By phase, steps done up to the last one that was logged here."""

    def rows(self, phase: str) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl` of this phase, oldest first. The file is read once."""
        if self._rows is None:
            self._rows = metric_rows(self._folder.path)
        return [row for row in self._rows if row["phase"] == phase]

    def log(self, phase: str, step: int, figures: Mapping[str, float]) -> None:
        """Append one line to `metrics.jsonl`: only figures that the same seed repeats bit for bit."""
        line = self._write("metrics.jsonl", phase, step, figures)
        if self._rows is not None:
            self._rows.append(json.loads(line))
        self.steps[phase] = step + 1

    def time(self, phase: str, step: int, figures: Mapping[str, float]) -> None:
        """Append one line to `timings.jsonl`: wall times, processor times (seconds) and rates, which differ from run to run."""
        self._write("timings.jsonl", phase, step, figures)

    def _write(self, name: str, phase: str, step: int, figures: Mapping[str, float]) -> str:
        line = figures_line(phase, step, figures)
        self._folder.append_jsonl(name, [line])
        self.track(phase, figures, step)
        return line

    def track(self, phase: str, figures: Mapping[str, float], step: int) -> None:
        """Hand finite figures to the tracker alone: what stands in another file of the run, such as evaluations."""
        if self.tracker is not None:
            finite = {f"{phase}/{key}": float(value) for key, value in figures.items() if math.isfinite(value)}
            self.tracker(finite, step)


def metric_rows(run: Path, notes: list[str] | None = None) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`, oldest first; none where no step has ended. Notes and errors as of `read_jsonl`."""
    return read_jsonl(run / "metrics.jsonl", notes, phase=str, step=int)


def figures_line(phase: str, step: int, figures: Mapping[str, float]) -> str:
    """One JSON text with `phase`, `step` and the figures, keys sorted; NaN and infinities become null."""
    plain = {key: value if math.isfinite(value) else None for key, value in figures.items()}
    return json.dumps({**plain, "phase": phase, "step": step}, sort_keys=True, allow_nan=False)


class SampleRecord(NamedTuple):
    """Scores and advantages of one rollout, side by side: recorded, never fed back."""

    pseudo_score: float | None = None
    """Reward, before a KL penalty."""
    original_score: float | None = None
    """1 where its answer is the true one, else 0; None without a label. The meter's."""
    advantages: Sequence[float | None] | None = None
    """Mean advantage of the trained tokens of each of its steps, None for one without; None where none was trained on."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of a run, a line of `warnings.jsonl`."""

    text: str
    phase: str | None = None
    """Phase, and `step` of it, in which it was given; None before the first, or where that was not recorded."""
    step: int | None = None
    tripwire: bool = False
    """True if it is a sign that the step's own metrics gave (docs/voting.md)."""


def trajectory_lines(phase: str, step: int, group: Group, records: Sequence[SampleRecord] = ()) -> list[str]:
    """Lines of `trajectories.jsonl`: each rollout of a group with `phase`, `step`, `sample` (its place in the group) and its record."""
    known = records or [SampleRecord(trajectory.reward) for trajectory in group.trajectories]
    return [
        _with({"phase": phase, "step": step, "sample": sample, **record._asdict()}, to_json(trajectory))
        for sample, (trajectory, record) in enumerate(zip(group.trajectories, known, strict=True))
    ]


def vote_line(
    phase: str, step: int, task_id: str, vote: VoteResult, *, correct: bool | None = None, labels: Labels | None = None
) -> str:
    """A line of `votes.jsonl`. `correct` says if the winner is true and `labels` holds both. Without a true answer both are null: they
    measure and are never fed back.
    """
    known = None if labels is None or labels.ground_truth is None else asdict(labels)
    return _with({"phase": phase, "step": step, "task_id": task_id, "correct": correct, "labels": known}, to_json(vote))


def eval_line(label: str, samples: TaskSamples, right: Sequence[bool | None]) -> str:
    """A line of `eval_samples.jsonl`: a problem's samples of the evaluation `label` under one way of sampling. `scores` are 1 for a
    right sample, 0 for another, None where nothing says which it is.
    """
    return _with(
        {"label": label, "scores": [None if each is None else float(each) for each in right]}, to_json(samples)
    )


def _with(fields: dict[str, object], line: str) -> str:
    """`line`, a JSON object, with `fields` put before its own; what is not finite becomes null."""
    return f"{json.dumps({key: _finite(value) for key, value in fields.items()}, allow_nan=False)[:-1]}, {line[1:]}"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
