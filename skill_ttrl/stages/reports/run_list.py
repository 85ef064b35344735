"""`skillttrl inspect`: the runs in a folder, each with what it reached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from skill_ttrl.config import load_config
from skill_ttrl.errors import RunFolderError, SkillTTRLError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.identity import read_run_json
from skill_ttrl.runs.reader import read_run
from skill_ttrl.stages.optimizing.run_folder import is_optimization
from skill_ttrl.stages.optimizing.summary import read_summary
from skill_ttrl.statistics import Interval
from skill_ttrl.storage.jsonl import read_jsonl


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run. Figures are None where they were not measured; of a run that has not ended, `before` and `after` stand alone."""

    path: str
    created: str
    """When it was begun, ISO 8601."""
    kind: str = "train"
    """`train`, or `optimize` for the optimization of a document; then `before` and `after` are test success with the first and the best."""
    name: str = ""
    seed: int | None = None
    phases: tuple[str, ...] = ()
    reward: str = ""
    ended: bool = False
    problems: int | None = None
    samples: int | None = None
    before: float | None = None
    """avg@k before the reinforcement."""
    after: float | None = None
    change: Interval | None = None
    """Interval of the paired change of avg@k."""
    seconds: float | None = None
    """Wall time of its phases."""
    warnings: int = 0
    fault: str | None = None
    """Why it cannot be read; the rest is then unknown."""


def runs_in(folder: str | Path) -> list[Path]:
    """Run folders in `folder` and one level below it, such as `seed-0` of a folder of seeds, in the order of their names."""
    folder = Path(folder)
    found = []
    for entry in sorted(folder.iterdir()):
        if RunFolder.exists(entry):
            found.append(entry)
        elif entry.is_dir() and not entry.is_symlink():
            found += [inner for inner in sorted(entry.iterdir()) if RunFolder.exists(inner)]
    return found


def list_runs(folder: str | Path = "runs") -> list[ListedRun]:
    """All runs in a folder.

    Raises:
        RunFolderError: there is no such folder.
    """
    if not Path(folder).is_dir():
        raise RunFolderError(f"There is no folder {folder}. Runs are made by `skillttrl train`; name another folder.")
    return [_listed(path) for path in runs_in(folder)]


def _listed(path: Path) -> ListedRun:
    try:
        created = str(read_run_json(path).get("created", ""))
        if is_optimization(path):
            return _optimization(path, created)
        run = read_run(path)
        config, summary = run.config, run.summary
        reached = {} if summary else _reached(path)
    except SkillTTRLError as error:  # one damaged run hides no other
        return ListedRun(str(path), "", fault=str(error))
    listed = ListedRun(str(path), created, "train", config.name, config.seed, tuple(config.phases), config.rl.reward)
    if summary is None:
        return replace(listed, before=reached.get("before"), after=reached.get("after"))
    return replace(
        listed,
        ended=True,
        problems=summary.problems,
        samples=summary.samples,
        before=summary.accuracy_before,
        after=summary.accuracy_after,
        change=summary.intervals.get("accuracy_change"),
        seconds=sum(seconds for phase, seconds in summary.seconds.items() if "." not in phase),
        warnings=len(summary.warnings),
    )


def _optimization(path: Path, created: str) -> ListedRun:
    config, summary = load_config(path / "config.yaml", trust=True), read_summary(path)
    listed = ListedRun(str(path), created, "optimize", config.name, config.seed, ("optimize",))
    if summary is None:
        return listed
    first, best, change = summary.test_first, summary.test_best, summary.test_change
    return replace(
        listed,
        ended=True,
        problems=None if first is None else first.items,
        samples=None if first is None else 1,
        before=None if first is None else first.hard,
        after=None if best is None else best.hard,
        change=None if change is None else (change[1], change[2]),
    )


def _reached(path: Path) -> dict[str, float | None]:
    """avg@k of each evaluation that a run has made so far, by label."""
    file = path / "evaluations.jsonl"
    lines = read_jsonl(file)
    return {line.get("label", ""): line.get("accuracy") for line in lines}
