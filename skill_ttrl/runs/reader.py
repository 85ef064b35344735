"""Reading a run back: `read_run(path)` gives its config, summary and data frames. It never writes and takes no lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.runs.checkpoint import edited_settings
from skill_ttrl.runs.episode_logs import Place
from skill_ttrl.runs.folder import WARNINGS, SampleRecord, Warned, read_run_json
from skill_ttrl.runs.summary import Summary, read_summary
from skill_ttrl.storage.jsonl import leaving_out, parsed, read_jsonl, whole_lines
from skill_ttrl.types import Trajectory

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(eq=False, repr=False)
class Run:
    """A run as it lies on the disk, each part read when it is first asked for. Make one with `read_run`."""

    path: Path
    """The folder."""
    info: dict[str, Any]
    """Content of `run.json`."""
    notes: list[str] = field(default_factory=list)
    """Lines that are missing, torn or damaged in the parts read so far."""

    @cached_property
    def config(self) -> SkillTTRLConfig:
        """The resolved configuration."""
        return load_config(self.path / "config.yaml", trust=True)  # it is shown

    @cached_property
    def edited(self) -> list[str]:
        """A sentence on settings of `config.yaml` that are not those of the newest checkpoint; empty where all are."""
        found = edited_settings(self.path, self.config)
        return [f"config.yaml is not that of the newest checkpoint: {'; '.join(found)}."] if found else []

    @cached_property
    def summary(self) -> Summary | None:
        """The outcome; None (and a note) while the run has not ended."""
        if not (self.path / "summary.json").exists():
            self.notes.append("summary.json is missing: the run has not ended.")
            return None
        return read_summary(self.path)

    @cached_property
    def metrics(self) -> DataFrame:
        """Figures by `phase` and `step` that a resumed run repeats exactly, one column each."""
        return self._frame("metrics.jsonl", "no step has ended yet")

    @cached_property
    def timings(self) -> DataFrame:
        """Wall times (seconds) and rates by `phase` and `step`."""
        return self._frame("timings.jsonl", "no step has ended yet")

    @cached_property
    def trajectories(self) -> DataFrame:
        """Every try: `phase`, `step`, `sample`, `task`, `steps` (with ids and log-probs), `answer`, `reward`, ..."""
        return self._frame("trajectories.jsonl", "no step has ended yet, or the run has run.save_trajectories: false")

    @cached_property
    def votes(self) -> DataFrame:
        """Every vote: `phase`, `step`, `task_id`, `answer`, `majority_ratio`, `matches`, `correct`, ..."""
        return self._frame("votes.jsonl", "no vote was counted yet, or the reward needs none")

    @cached_property
    def evaluations(self) -> DataFrame:
        """One row an evaluation: `label` ("before", "after", …), its figures, and `results` problem by problem."""
        return self._frame("evaluations.jsonl", "nothing was measured yet")

    def _frame(self, name: str, why_missing: str) -> DataFrame:
        import pandas

        if not (self.path / name).exists():
            self.notes.append(f"{name} is missing: {why_missing}.")
        return pandas.DataFrame.from_records(read_jsonl(self.path / name, self.notes))


def read_run(path: str | Path) -> Run:
    """Open a run folder for reading; works while the run is still going on.

    Raises:
        RunFolderError: not a run folder, or written under another schema version.
    """
    return Run(Path(path), read_run_json(path))


def warnings_of(run: Run) -> list[Warned]:
    """Warnings of a run, oldest first, each with the phase and step where it began; also of a run that has not ended."""
    file, found = run.path / WARNINGS, list[Warned]()
    for line in whole_lines(file, run.notes) if file.is_file() else ():
        with leaving_out(run.notes):
            found.append(parsed(*line, Warned))
    said = {each.text for each in found}
    # Warnings about the whole run have no step.
    further = [*run.edited, *(run.summary.warnings if run.summary else ())]
    return found + [Warned(text) for text in further if text not in said]


@dataclass(frozen=True, slots=True)
class Recorded(Trajectory):
    """A line of a file of rollouts: a rollout with its place in the run (`Place`) and its scores (`SampleRecord`)."""

    phase: str = ""
    step: int | None = None
    sample: int | None = None
    original_score: float | None = None
    advantages: Sequence[float | None] | None = None


def rollout_facts(place: Place, record: SampleRecord | Recorded, played: Trajectory) -> dict[str, Any]:
    """Plain facts of a rollout: its id, place, outcome, lengths and skills."""
    done = [(len(step.prompt_ids), step.completion.num_sampled_tokens) for step in played.steps if step.completion]
    facts: dict[str, Any] = {"id": None if place.step is None else place.episode(played.task.id)}
    facts |= {"task": played.task.id, "task_type": played.task.task_type, "turns": len(played.steps)}
    facts |= {"prompt_tokens": sum(each for each, _ in done), "sampled_tokens": sum(each for _, each in done)}
    facts |= {name: getattr(place, name) for name in ("phase", "step", "sample")}
    facts |= {"advantages": record.advantages, "original_score": record.original_score}
    own = "reward success answer stop_reason error skills_in_prompt retrieved bank_version".split()
    return facts | {name: getattr(played, name) for name in own}


def read_rollout(where: str, line: bytes) -> tuple[dict[str, Any], Recorded]:
    """A line of a file of rollouts: its facts, and all of it.

    Raises:
        DataError: it is no rollout.
    """
    found = parsed(where, line, Recorded)
    return rollout_facts(Place(found.phase, found.step, found.sample), found, found), found
