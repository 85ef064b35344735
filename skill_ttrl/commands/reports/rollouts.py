"""`skillttrl inspect` of single rollouts: a step of a run, a task over its steps, one episode or one line of a file to read.

Files are read line by line, because trajectories can be larger than memory.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.commands.optimize_results import is_optimization
from skill_ttrl.commands.reports.bank import bank_folder, look
from skill_ttrl.commands.reports.inspect import parsed
from skill_ttrl.commands.reports.summary_text import Inspection, figure, short, six_figures, turn_parts
from skill_ttrl.errors import ConfigError, DataError, RunFolderError, SkillBankError, did_you_mean
from skill_ttrl.rollout.outcome import TaskSamples
from skill_ttrl.runs.episode_logs import TRAJECTORIES, Place, find_episode, placed_lines
from skill_ttrl.runs.folder import RunFolder, SampleRecord, metric_rows
from skill_ttrl.sanitize import one_line
from skill_ttrl.storage.jsonl import whole_lines
from skill_ttrl.train.results import read_evaluations
from skill_ttrl.types import Step, Trajectory, VoteResult, split_thought
from skill_ttrl.voting.rewards import VoteHistory

VOTE_COLUMNS = ("task", "winner", "share", "classes", "flip", "correct")
VISIT_COLUMNS = ("step", "winner", "share", "classes", "flip", "correct", "reward")
ROLLOUT_COLUMNS = ("episode", "answer", "reward", "correct", "adv.", "text")
CLASSES = 4
"""Classes of a vote in a row of a table."""
CUT = 1000
"""Characters of a text in a transcript that is not shown in full."""

UNSCORED = SampleRecord()

Section = tuple[str, list[tuple[str, str]]]
"""A title, and (name, text) one under the other."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A record to be read."""

    title: str
    sections: Sequence[Section]
    record: Mapping[str, Any]
    """All of it, as in the file."""


# A step, and a task over the steps.


@dataclass(frozen=True, slots=True)
class Visit:
    """Whose vote a line of `votes.jsonl` is."""

    phase: str
    step: int
    task_id: str
    correct: bool | None = None


@dataclass
class Votes:
    """The votes of a run, one after another."""

    run: Path
    tasks: dict[str, None] = field(default_factory=dict)
    """Those seen so far."""

    def __iter__(self) -> Iterator[tuple[Visit, list[Any]]]:
        """(visit, cells of a row without its first) of each vote, oldest first."""
        history, path = VoteHistory(), self.run / "votes.jsonl"
        for where, line in whole_lines(path, []) if path.is_file() else ():
            visit, vote = parsed(where, line, Visit), parsed(where, line, VoteResult)
            self.tasks[visit.task_id] = None
            flipped = history.record({visit.task_id: vote}).get("flip_rate")
            classes = [f"{one_line(answer, 20)} ×{votes}" for answer, votes in vote.classes[:CLASSES]]
            classes += [f"{len(vote.classes) - CLASSES} more"] * (len(vote.classes) > CLASSES)
            classes += [f"no answer ×{vote.abstained}"] * bool(vote.abstained)
            cells = vote.answer, vote.majority_ratio, ", ".join(classes), yes(flipped), yes(visit.correct)
            yield visit, [*map(short, cells)]


def yes(value: float | None) -> str | None:
    """A truth as a cell."""
    return None if value is None else "yes" if value else "no"


def step_inspection(run: Path, step: int, *, limit: int = 10) -> Inspection:
    """The six figures of a step, its votes, and its rollouts with their ids.

    Raises:
        RunFolderError: it is no run.
        DataError: the run has no such step.
    """
    steps: dict[str, dict[int, dict[str, Any]]] = {}
    for row in metric_rows(_run_of(run)):
        steps.setdefault(row["phase"], {})[row["step"]] = row
    ranges = {name: f"{name} {min(of)} to {max(of)}" for name, of in steps.items()}
    having = [name for name, of in steps.items() if step in of]
    if not having:
        raise DataError(f"{run} has no step {step}. Steps: {'; '.join(ranges.values()) or 'none yet'}.")
    phase = "rl" if "rl" in having else having[-1]
    figures = {**steps[phase][step], **_measured(run, phase, step, max(steps[phase]))}
    facts: dict[str, Any] = {"phase": f"{phase} (steps: {'; '.join(ranges.values())})"}
    if "loss" in figures:
        facts["loss"] = figure(figures["loss"])
    known = [name for name, value in figures.items() if isinstance(value, float)]
    facts |= {
        pairs[0][1]: ", ".join(
            [figure(figures[pairs[0][0]]), *(f"{label} {figure(figures[name])}" for name, label in pairs[1:])]
        )
        for pairs in six_figures(known)
    }
    votes = [(visit.task_id, *cells) for visit, cells in Votes(run) if (visit.phase, visit.step) == (phase, step)]
    votes.sort(key=lambda row: (row[5] != "no", row[4] != "yes", row[2]))
    notes = ["Wrong winners first, then flips, then by share."] if votes else []
    notes += [f"{len(votes) - limit} more votes: --rows {len(votes)}"] if len(votes) > limit else []
    rows: dict[str, list[list[Any]]] = {row[0]: [] for row in votes}
    count = 0
    for where, line, place in _lines(run):
        if place == Place(phase, step):
            count += 1
            of = rows.setdefault(parsed(where, line, _OfTask).task.id, [])
            if len(of) < limit:
                of.append(_row(where, line, place))
    parts = _attempts([row for of in rows.values() for row in of][:limit], count, f"{phase}:{step}")
    return Inspection("step", f"{run}, step {step}", facts, VOTE_COLUMNS, votes[:limit], notes, parts=parts)


def task_inspection(run: Path, task: str, *, limit: int = 10) -> Inspection:
    """Each vote on a task over the steps, and the attempts of its last visit.

    Raises:
        RunFolderError: it is no run.
        DataError: the run never visited the task.
    """
    votes = Votes(_run_of(run))
    visits: dict[tuple[str, int | None], list[Any]] = {
        (visit.phase, visit.step): cells for visit, cells in votes if visit.task_id == task
    }
    rewards: dict[tuple[str, int | None], list[str | None]] = {}
    attempts, last = list[Sequence[Any]](), Place()
    for where, line, place in _lines(run):
        votes.tasks[found := parsed(where, line, _OfTask).task.id] = None
        if found != task:
            continue
        if place != last:
            attempts, last = [], place
        attempts.append(_row(where, line, place))
        rewards.setdefault((place.phase, place.step), []).append(attempts[-1][2])
    if not visits and not attempts:
        raise DataError(
            f"{run} has no task {task!r}.{did_you_mean(task, votes.tasks, f'skillttrl inspect {run} --step N')}"
        )
    rows = []
    for phase, step in dict.fromkeys([*visits, *rewards]):
        values = [float(value) for value in rewards.get((phase, step), []) if value is not None]
        cells = visits.get((phase, step), [None] * (len(VISIT_COLUMNS) - 2))
        rows.append((f"{phase}:{step}", *cells, short(fmean(values)) if values else None))
    parts = _attempts(attempts[:limit], len(attempts), f"{last.phase}:{last.step}, the last visit")
    return Inspection("task", f"{run}, task {task}", {"visits": len(rows)}, VISIT_COLUMNS, rows, parts=parts)


def _run_of(path: Path) -> Path:
    if is_optimization(path) or not RunFolder.exists(path):
        raise RunFolderError(f"{path} is no run of training, so it has no steps, tasks or episodes to show.")
    return path


def _measured(run: Path, phase: str, step: int, last: int) -> dict[str, float]:
    """The accuracy that was measured of the policy after a step; empty where none was."""
    label = "after" if step == last else f"step {step + 1}"
    found = [each.accuracy for each in read_evaluations(run) if each.label == label and phase == "rl"]
    return {"accuracy": found[-1]} if found and found[-1] is not None else {}


@dataclass(frozen=True, slots=True)
class _Named:
    id: str


@dataclass(frozen=True, slots=True)
class _OfTask:
    """Whose rollout a line is: much faster to read than all of it."""

    task: _Named


def _lines(run: Path) -> Iterator[tuple[str, bytes, Place]]:
    path = run / TRAJECTORIES
    yield from placed_lines(path, []) if path.is_file() else ()


def _row(where: str, line: bytes, place: Place) -> list[Any]:
    record, played = parsed(where, line, SampleRecord), parsed(where, line, Trajectory)
    known = [each for each in record.advantages or () if each is not None]
    text = " ⏎ ".join(split_thought(step.model_text)[1] or step.action for step in played.steps)
    if played.stop_reason != "terminated":
        text = f"[{': '.join(filter(None, (played.stop_reason, played.error)))}] {text}"
    cells = played.answer, played.reward, _right(record, played), fmean(known) if known else None, one_line(text, 80)
    return [place.episode(played.task.id), *map(short, cells)]


def _right(record: SampleRecord, played: Trajectory) -> str | None:
    """Whether the answer is the true one; else whether the environment calls it a success."""
    return yes(played.success if record.original_score is None else record.original_score)


def _attempts(rows: Sequence[Sequence[Any]], count: int, title: str) -> list[Inspection]:
    if not rows:
        return []
    notes = [f"{count - len(rows):,} more: --rows {count}"] if count > len(rows) else []
    notes.append(f"One to read: --episode {rows[0][0]}")
    return [Inspection("rollouts", title, {}, ROLLOUT_COLUMNS, rows, notes)]


# One record to read.


def episode_transcript(run: Path, episode: str, *, full: bool = False) -> Transcript:
    """The rollout with this id (`Place.episode`).

    Raises:
        RunFolderError: it is no run, or has no trajectories.
        DataError: it has no such episode.
    """
    where, line = find_episode(_run_of(run), episode)
    return _transcript(f"{episode}, {where}", where, line, run, full)


def row_transcript(path: Path, row: int, *, full: bool = False) -> Transcript:
    """A record of a JSONL file by its number from 1, or from the end below 0: a rollout, a vote, samples, or anything else.

    Raises:
        ConfigError: the path is no JSONL file.
        DataError: the file has no such row.
    """
    if path.suffix != ".jsonl" or not path.is_file():
        raise ConfigError(f"--row shows a line of a .jsonl file; {path} is none.")
    count, kept = 0, deque[tuple[str, bytes]](maxlen=max(1, -row))
    for count, found in enumerate(whole_lines(path, []), 1):
        kept.append(found)
        if count == row:
            break
    if not row or count < abs(row):
        raise DataError(f"{path} has no row {row}. It has {count:,}: 1 to {count}, or from the end -1 to -{count}.")
    where, line = kept[0 if row < 0 else -1]
    return _transcript(f"row {row}, {where}", where, line, path.parent, full)


def _transcript(title: str, where: str, line: bytes, run: Path, full: bool) -> Transcript:
    record, most = parsed(where, line, dict[str, Any]), None if full else CUT
    if {"task", "steps", "stop_reason"} <= record.keys():
        played, scores = parsed(where, line, Trajectory), parsed(where, line, SampleRecord)
        titles = _titles(run) if played.skills_in_prompt or played.retrieved else {}
        sections = sections_of(played, scores, titles, most=most)
    elif {"task_id", "classes", "majority_ratio"} <= record.keys():
        sections = [("", _filled(_of_vote(parsed(where, line, Visit), parsed(where, line, VoteResult)), most))]
    elif {"task", "samples"} <= record.keys():
        sections = _of_samples(parsed(where, line, TaskSamples), most)
    else:
        texts = [
            (name, each if isinstance(each, str) else json.dumps(each, ensure_ascii=False))
            for name, each in record.items()
        ]
        sections = [("", _filled(texts, most))]
    return Transcript(title, sections, record)


def sections_of(
    played: Trajectory,
    record: SampleRecord = UNSCORED,
    titles: Mapping[str, str] | None = None,
    *,
    most: int | None = CUT,
) -> list[Section]:
    """A rollout as what a person reads: its task, its turns and how it ended.

    Args:
        played: the rollout.
        record: its scores and advantages, where they are known.
        titles: of skills, by id.
        most: characters of each text, and thoughts are only counted; None: all of everything.
    """
    task, titles = played.task, titles or {}
    kind = f" ({task.task_type})" if task.task_type else ""
    head = {"task": task.id + kind, "goal": played.goal, "true answer": task.ground_truth}
    turns = [
        (f"turn {number} of {len(played.steps)}", _turn(step, record.advantages, number - 1, most))
        for number, step in enumerate(played.steps, 1)
    ]

    def named(ids: Sequence[str]) -> str:
        return ", ".join(f"{each} ({titles[each]})" if titles.get(each) else each for each in ids)

    rewards = ", ".join(f"{name} {value:g}" for name, value in played.rewards.items())
    end = {
        "observation": played.final_obs,
        "answer": "none" if played.answer is None and played.reward is not None else played.answer,
        "success" if record.original_score is None else "correct": _right(record, played),
        "reward": None if played.reward is None else f"{played.reward:g}{f' ({rewards})' if rewards else ''}",
        "stop": played.stop_reason,
        "error": played.error,
        "skills": named(played.skills_in_prompt),
        "retrieved": named(played.retrieved),
        "bank": None if played.bank_version is None else f"version {played.bank_version}",
    }
    return [("", _filled(head.items(), most)), *turns, ("end", _filled(end.items(), most))]


def _turn(step: Step, advantages: Sequence[float | None] | None, place: int, most: int | None) -> list[tuple[str, str]]:
    thought, said, calls = turn_parts(step)
    done = step.completion
    inserted = [] if done is None else [done.text[start:end] for start, end in done.inserted_spans]
    same = step.action.strip() == said.strip()
    status = f" [{': '.join(filter(None, (step.action_status, step.parse_error)))}]" if step.action_status else ""
    advantage = advantages[place] if advantages and place < len(advantages) else None
    rows: list[tuple[str, Any]] = [
        ("observation", step.observation),
        ("left out", ", ".join(f"{count} {what}" for what, count in step.truncated_parts.items())),
        ("thought", f"{len(thought):,} characters: --full" if thought and most else thought),
        *(("inserted", text) for text in inserted),
        ("said", said.strip()),
        ("action", "" if step.calls or (same and not status) else f"{'as said' if same else step.action}{status}"),
        *(pair for called, result in calls for pair in (("call", called), ("result", result))),
        ("completion", "" if done is None or done.finish_reason == "stop" else done.error or done.finish_reason),
        ("reward", f"{step.reward:g}" if step.reward else ""),
        ("advantage", short(advantage)),
    ]
    return _filled(rows, most)


def _of_vote(visit: Visit, vote: VoteResult) -> list[tuple[str, str | None]]:
    return [
        ("task", visit.task_id),
        ("step", f"{visit.phase}:{visit.step}"),
        ("winner", f"{vote.answer or 'none'}{', a tie' if vote.tie else ''}"),
        ("share", short(vote.majority_ratio)),
        ("correct", yes(visit.correct)),
        ("classes", "\n".join(f"{answer} ×{votes}" for answer, votes in vote.classes)),
        ("no answer", f"×{vote.abstained}" if vote.abstained else None),
    ]


def _of_samples(found: TaskSamples, most: int | None) -> list[Section]:
    sections: list[Section] = [
        ("", _filled([("task", found.task.id), ("draw", found.draw), ("source", found.source)], most))
    ]
    for number, each in enumerate(found.samples, 1):
        thought, said = split_thought(each.text)
        rows = [
            ("thought", f"{len(thought):,} characters: --full" if thought and most else thought),
            ("said", said.strip()),
            ("answer", each.answer or "none"),
            ("correct", yes(each.is_correct)),
            ("score", short(each.score)),
            ("error", each.error),
        ]
        sections.append((f"sample {number} of {len(found.samples)}", _filled(rows, most)))
    return sections


def _filled(rows: Iterable[tuple[str, str | None]], most: int | None) -> list[tuple[str, str]]:
    """The rows that have a text, and of a longer one its first `most` characters and how many more there are."""
    return [
        (
            name,
            text
            if most is None or len(text) <= most
            else f"{text[:most]} … {len(text) - most:,} more characters: --full",
        )
        for name, text in rows
        if text
    ]


def _titles(run: Path) -> dict[str, str]:
    """Titles of the skills in a run's bank; none where there is no bank to read, of which `inspect RUN` says why."""
    try:
        if bank_folder(run) == run:
            return {}
        with look(run) as bank:
            return {skill.id: one_line(skill.title) for skill in bank.snapshot()}
    except SkillBankError:
        return {}
