"""`skillttrl inspect` of single rollouts: a step of a run, a task over its steps, one episode or one line of a file to read.

Files are read line by line, because trajectories can be larger than memory.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.answers.equivalence import EquivalenceResult, decide
from skill_ttrl.commands.optimize_results import is_optimization
from skill_ttrl.commands.reports.bank import look
from skill_ttrl.commands.reports.page_charts import figure, six_figures
from skill_ttrl.commands.reports.summary_text import Inspection, short, turn_parts
from skill_ttrl.errors import ConfigError, RunFolderError, SkillBankError, did_you_mean
from skill_ttrl.runs.episode_logs import TRAJECTORIES, Place, find_episode
from skill_ttrl.runs.folder import RunFolder, SampleRecord, metric_rows
from skill_ttrl.runs.reader import read_rollout, rollout_facts
from skill_ttrl.sanitize import one_line
from skill_ttrl.storage.jsonl import leaving_out, parsed, whole_lines
from skill_ttrl.train.results import read_evaluations
from skill_ttrl.types import Step, Trajectory, VoteResult, split_thought

VOTE_COLUMNS = ("winner", "share", "classes", "flip", "correct")
ROLLOUT_COLUMNS = ("episode", "answer", "reward", "correct", "adv.", "text")
CLASSES = 4
"""Classes of a vote in a row of a table."""
CUT = 1000
"""Characters of a text in a transcript that is not shown in full."""
RULES = {"number": "equal as numbers", "text": "equal as texts", "symbolic": "equal by SymPy"}

Rows = Iterable[tuple[str, str | None]]
"""(name, text), one under the other; those without a text are not shown."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A record to be read."""

    title: str
    sections: Sequence[tuple[str, Rows]]
    """Titles and their rows."""
    record: Any
    """All of it, as in the file."""


@dataclass(frozen=True, slots=True)
class Held(VoteResult):
    """A line of `votes.jsonl`."""

    phase: str = ""
    step: int = 0
    task_id: str = ""
    correct: bool | None = None


def step_inspection(run: Path, step: int, *, limit: int = 10) -> Inspection:
    """The six figures of a step, its votes, and its rollouts with their ids, those of the most doubtful votes first.

    Raises:
        RunFolderError: it is no run.
        ConfigError: the run has no such step.
    """
    steps: dict[str, dict[int, dict[str, Any]]] = {}
    for row in metric_rows(_run_of(run), notes := list[str]()):
        steps.setdefault(row["phase"], {})[row["step"]] = row
    ranges = "; ".join(f"{name} {min(of)} to {max(of)}" for name, of in steps.items()) or "none yet"
    phase = "rl" if "rl" in steps else next((name for name, of in reversed(steps.items()) if step in of), "")
    if step not in steps.get(phase, {}):
        raise ConfigError(f"{run} has no step {step}{f' of {phase}' if phase else ''}. Steps: {ranges}.")
    figures, label = steps[phase][step], "after" if step == max(steps[phase]) else f"step {step + 1}"
    measured = [each.accuracy for each in read_evaluations(run, notes) if (phase, each.label) == ("rl", label)]
    figures["accuracy"] = measured[-1] if measured else None
    facts: dict[str, Any] = {"phase": f"{phase} (steps: {ranges})"}
    for pairs in [[("loss", "loss")], *six_figures(figures)]:
        texts = [f"{name} {figure(figures[key])}" for key, name in pairs if isinstance(figures.get(key), float)]
        facts |= {pairs[0][1]: ", ".join(texts).removeprefix(f"{pairs[0][1]} ")} if texts else {}
    held = [(vote, _cells(vote, flip)) for vote, flip, _ in votes_of(run, notes)]
    votes = [(vote.task_id, *cells) for vote, cells in held if (vote.phase, vote.step) == (phase, step)]
    votes.sort(key=lambda row: (row[5] != "no", row[4] != "yes", row[2]))
    notes += ["Wrong winners first, then flips, then by share."] if votes else []
    notes += [f"{len(votes) - limit} more votes: --rows {len(votes)}"] if len(votes) > limit else []
    rollouts: dict[str, list[list[Any]]] = {row[0]: [] for row in votes}
    for found, played in _played(run, notes, Place(phase, step)):
        rollouts.setdefault(found["task"], []).append(rollout_row(found, played))
    parts = _attempts([row for of in rollouts.values() for row in of], limit, f"{phase}:{step}")
    return Inspection("step", f"{run}, step {step}", facts, ("task", *VOTE_COLUMNS), votes[:limit], notes, parts=parts)


def task_inspection(run: Path, task: str, *, limit: int = 10) -> Inspection:
    """Each vote on a task over the steps, and the attempts of its last visit.

    Args:
        run: its folder.
        task: its id, or words of its first observation that no other task has.
        limit: most rows of a table.

    Raises:
        RunFolderError: it is no run.
        ConfigError: the run never visited the task.
    """
    known, votes, attempts = dict[str, str](), dict[str, list[Any]](), dict[str, list[list[Any]]]()
    notes = list[str]()
    for vote, flip, _ in votes_of(_run_of(run), notes):
        known[vote.task_id] = ""
        if vote.task_id == task:
            votes[f"{vote.phase}:{vote.step}"] = _cells(vote, flip)
    for found, played in _played(run, notes):
        known[found["task"]] = known.get(found["task"]) or (played.steps[0].observation if played.steps else "")
        if found["task"] == task:
            attempts.setdefault(f"{found['phase']}:{found['step']}", []).append(rollout_row(found, played))
    if not (visits := [*dict.fromkeys([*votes, *attempts])]):
        having = [name for name, text in known.items() if task.lower() in text.lower()]
        if len(having) == 1:
            return task_inspection(run, having[0], limit=limit)
        words = f" Several tasks have these words: {', '.join(having[:3])}."
        hint = words if having else did_you_mean(task, known, f"skillttrl inspect {run} --step N")
        raise ConfigError(f"{run} has no task {task!r}.{hint}")
    rows = []
    for place in visits:
        rewards = [float(row[2]) for row in attempts.get(place, []) if row[2] is not None]
        cells = votes.get(place, [None] * len(VOTE_COLUMNS))
        rows.append((place, *cells, short(fmean(rewards)) if rewards else None))
    parts = _attempts(attempts.get(visits[-1], []), limit, f"{visits[-1]}, the last visit")
    columns = ("step", *VOTE_COLUMNS, "reward")
    return Inspection("task", f"{run}, task {task}", {"visits": len(rows)}, columns, rows, notes, parts=parts)


def _run_of(path: Path) -> Path:
    if is_optimization(path) or not RunFolder.exists(path):
        raise RunFolderError(f"{path} is no run of training, so it has no steps, tasks or episodes to show.")
    return path


def votes_of(run: Path, notes: list[str]) -> Iterator[tuple[Held, bool | None, str]]:
    """Each vote of a run, oldest first; whether its winner is another than the one before (None: there is none), and the rule that made
    answers equal. What SymPy has to judge is compared as it is written. Lines that are no vote are left out and noted.
    """
    winners, path = dict[str, str](), run / "votes.jsonl"
    for line in whole_lines(path, notes) if path.is_file() else ():
        with leaving_out(notes):
            vote = parsed(*line, Held)
            answer, rule = vote.answer or "", "no answer" if vote.answer is None else RULES["symbolic"]
            if isinstance(found := decide(answer), EquivalenceResult) and answer:
                answer, rule = found.key, RULES[found.rule]
            yield vote, winners[vote.task_id] != answer if vote.task_id in winners else None, rule
            winners[vote.task_id] = answer


def _cells(vote: Held, flip: bool | None) -> list[Any]:
    classes = [f"{one_line(answer, 20)} ×{votes}" for answer, votes in vote.classes[:CLASSES]]
    classes += [f"{len(vote.classes) - CLASSES} more"] * (len(vote.classes) > CLASSES)
    classes += [f"no answer ×{vote.abstained}"] * bool(vote.abstained)
    return [*map(short, (vote.answer, vote.majority_ratio, ", ".join(classes), _yes(flip), _yes(vote.correct)))]


def _yes(value: float | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _played(run: Path, notes: list[str], at: Place | None = None) -> Iterator[tuple[dict[str, Any], Trajectory]]:
    """The facts of each rollout of a run's training, or of its step `at`, and the rollout. Other lines are left out and noted."""
    path = run / TRAJECTORIES
    for found in whole_lines(path, notes) if path.is_file() else ():
        with leaving_out(notes):
            if at is None or parsed(*found, Place) == at:
                yield read_rollout(*found)


def rollout_row(facts: Mapping[str, Any], played: Trajectory) -> list[Any]:
    """A rollout in the columns `ROLLOUT_COLUMNS`."""
    text = " ⏎ ".join(split_thought(step.model_text)[1] or step.action for step in played.steps)
    if played.stop_reason != "terminated":
        text = f"[{': '.join(filter(None, (played.stop_reason, played.error)))}] {text}"
    scores = played.answer, played.reward, _right(facts), _advantage(facts)
    return [facts["id"] or facts["task"], *map(short, (*scores, one_line(text, 80)))]


def _right(facts: Mapping[str, Any]) -> str | None:
    """Yes or no: the answer is the true one or, where none is known, the environment reports success."""
    return _yes(facts["success"] if facts["original_score"] is None else facts["original_score"])


def _advantage(facts: Mapping[str, Any]) -> float | None:
    known = [each for each in facts["advantages"] or () if each is not None]
    return fmean(known) if known else None


def _attempts(rows: Sequence[Sequence[Any]], limit: int, title: str) -> list[Inspection]:
    if not rows:
        return []
    notes = [f"{len(rows) - limit:,} more: --rows {len(rows)}"] if len(rows) > limit else []
    notes.append(f"One to read: --episode {shlex.quote(rows[0][0])}")
    return [Inspection("rollouts", title, {}, ROLLOUT_COLUMNS, rows[:limit], notes)]


# One record to read.


def read_transcript(path: Path, of: str | int, *, full: bool = False) -> Transcript:
    """A rollout of a run by its id (`Place.episode`); or any record of a JSONL file by its number from 1, or below 0 from the end.

    Raises:
        ConfigError: there is no such episode or row; or `of` is a number, and the path is no JSONL file.
        RunFolderError: `of` is an id, and the path is no run, or has no trajectories.
    """
    most = None if full else CUT
    if isinstance(of, str):
        return _transcript(of, *find_episode(_run_of(path), of), path, most)
    if path.suffix != ".jsonl" or not path.is_file():
        raise ConfigError(
            f"--row shows a line of a .jsonl file; {path} {'is none' if path.exists() else 'does not exist'}."
        )
    count = sum(1 for _ in whole_lines(path, []))
    if not of or count < abs(of):
        raise ConfigError(f"{path} has no row {of}. It has {count:,}: 1 to {count}, or from the end -1 to -{count}.")
    found = next(islice(whole_lines(path, []), of - 1 if of > 0 else count + of, None))
    return _transcript(f"row {of}", *found, path.parent, most)


def _transcript(title: str, where: str, line: bytes, run: Path, most: int | None) -> Transcript:
    title, record = f"{title}, {where}", parsed(where, line, dict[str, Any])
    if {"task", "steps", "stop_reason"} <= record.keys():
        facts, played = read_rollout(where, line)
        titles = _titles(run) if played.skills_in_prompt or played.retrieved else {}
        return Transcript(title, sections_of(played, facts, titles, most=most), record)
    # Of anything else the fields, and each object of a list, such as the samples of a problem, in a section of its own.
    several = [name for name, each in record.items() if isinstance(each, list) and each and isinstance(each[0], dict)]
    sections: list[tuple[str, Rows]] = [("", _fields({key: record[key] for key in record if key not in several}, most))]
    for name in several:
        sections += [(f"{name} {place}", _fields(each, most)) for place, each in enumerate(record[name], 1)]
    return Transcript(title, sections, record)


def _fields(record: Any, most: int | None) -> Rows:
    """The fields of an object; of one of its lists an element a line, where they are not plain."""
    rows: list[tuple[str, str | None]] = []
    for name, value in record.items() if isinstance(record, dict) else [("", record)]:
        thought, said = split_thought(value) if isinstance(value, str) else ("", json.dumps(value, ensure_ascii=False))
        if isinstance(value, list) and any(isinstance(each, list) for each in value):
            said = "\n".join(json.dumps(each, ensure_ascii=False) for each in value)
        rows += [("thought", _thought(thought, most)), (name, None if value is None else said)]
    return _cut(rows, most)


def sections_of(
    played: Trajectory,
    facts: Mapping[str, Any] | None = None,
    titles: Mapping[str, str] | None = None,
    *,
    most: int | None = CUT,
) -> list[tuple[str, Rows]]:
    """A rollout as what a person reads: its task, its turns and how it ended.

    Args:
        played: the rollout.
        facts: `rollout_facts` of it, where its scores are known.
        titles: of skills, by id.
        most: characters of each text, and thoughts are only counted; None: all of everything.
    """
    task, count, facts = played.task, len(played.steps), facts or rollout_facts(Place(), SampleRecord(), played)

    def named(ids: Sequence[str]) -> str:
        return ", ".join(f"{each} ({titles[each]})" if titles and titles.get(each) else each for each in ids)

    end = [
        ("observation", played.final_obs),
        ("answer", "none" if played.answer is None and played.reward is not None else played.answer),
        ("success" if facts["original_score"] is None else "correct", _right(facts)),
        ("reward", None if played.reward is None else f"{played.reward:g}"),
        ("rewards", ", ".join(f"{name} {value:g}" for name, value in played.rewards.items())),
        ("advantage", short(_advantage(facts))),
        ("stop", played.stop_reason),
        ("error", played.error),
        ("skills", named(played.skills_in_prompt)),
        ("retrieved", named(played.retrieved)),
    ]
    return [
        ("", [("task", f"{task.id} ({task.task_type})" if task.task_type else task.id), ("goal", played.goal)]),
        *((f"turn {number} of {count}", _turn(step, most)) for number, step in enumerate(played.steps, 1)),
        ("end", _cut(end, most)),
    ]


def _turn(step: Step, most: int | None) -> Rows:
    thought, said, calls = turn_parts(step)
    done, same = step.completion, step.action.strip() == said.strip()
    inserted = [done.text[start:end] for start, end in done.inserted_spans] if done else []
    status = f" [{': '.join(filter(None, (step.action_status, step.parse_error)))}]" if step.action_status else ""
    rows = [
        ("observation", step.observation),
        ("thought", _thought(thought, most)),
        *(("inserted", text) for text in inserted),
        ("said", said.strip()),
        ("action", "" if step.calls or (same and not status) else f"{'as said' if same else step.action}{status}"),
        *(pair for called, result in calls for pair in (("call", called), ("result", result))),
        ("completion", "" if done is None or done.finish_reason == "stop" else done.error or done.finish_reason),
        ("reward", f"{step.reward:g}" if step.reward else ""),
    ]
    return _cut(rows, most)


def _thought(text: str, most: int | None) -> str:
    return f"{len(text):,} characters: --full" if text and most else text


def _cut(rows: Rows, most: int | None) -> Rows:
    """Of a text that is too long its first `most` characters, and how many more there are."""
    for name, text in rows:
        more = len(text or "") - (most or len(text or ""))
        yield name, f"{(text or '')[:most]} … {more:,} more characters: --full" if more > 0 else text


def _titles(run: Path) -> dict[str, str]:
    """Titles of the skills in a run's bank; none where there is no bank to read, of which `inspect RUN` says why."""
    try:
        with look(run) as bank:
            return {skill.id: one_line(skill.title) for skill in bank.snapshot()}
    except SkillBankError:
        return {}
