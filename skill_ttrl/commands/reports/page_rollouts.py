"""Votes, rollouts and skills of one run for the report: a row of every rollout, whole transcripts of a fair choice of them.

Files are streamed. What exceeds the budgets below is left out, and said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from skill_ttrl.answers.equivalence import EquivalenceResult, decide
from skill_ttrl.commands.reports.bank import look
from skill_ttrl.commands.reports.summary_text import turn_parts
from skill_ttrl.errors import DataError, RunFolderError
from skill_ttrl.runs.checkpoint import list_checkpoints
from skill_ttrl.runs.episode_logs import TRAJECTORIES, Place
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.statistics import Interval, repeats_interval, wilson_interval
from skill_ttrl.storage.jsonl import parse_json, whole_lines
from skill_ttrl.types import (
    BankUpdate,
    Completion,
    Skill,
    Trajectory,
    VoteResult,
    first_problem,
    from_json,
)

READ = 200_000_000
"""Bytes of `trajectories.jsonl` that are read; of a larger file the first and the last half of them."""
ROWS, CELLS = 10_000, 4_000
"""Rollouts with a row, and votes with a cell."""
WHOLE, TEXTS, TOKENS = 2_000, 2_500_000, 40_000
"""Rollouts with a whole transcript, characters of these, and tokens that are shown one by one."""
FIRST_SAMPLES = 8
"""Samples of a group that come before the others of it, and the most that have their tokens shown is a quarter of them."""
PROMPT, ANSWER, CLASSES = 2_000, 200, 12
"""Longest prompt and answer of the votes in characters, and classes of answers of one."""
VERSIONS = 200
"""Versions of a bank or a document with their changes."""
RULES = {"number": "equal as numbers", "text": "equal as texts", "symbolic": "equal by SymPy"}
GroupKey = tuple[str, int, str]
"""Phase, step and task of a group of rollouts."""


@dataclass(frozen=True, slots=True)
class _Task:
    id: str
    task_type: str = ""


@dataclass(frozen=True, slots=True)
class _Turn:
    observation: str = ""


@dataclass(frozen=True, slots=True)
class _Line:
    """The part of a line of `trajectories.jsonl` that a row is made of."""

    task: _Task
    steps: tuple[_Turn, ...]
    stop_reason: str
    answer: str | None = None
    phase: str = ""
    step: int = 0
    sample: int = 0
    reward: float | None = None
    original_score: float | None = None
    advantages: list[float | None] | None = None
    error: str | None = None
    skills_in_prompt: tuple[str, ...] = ()
    retrieved: tuple[str, ...] = ()
    bank_version: int | None = None


@dataclass
class Found:
    """What was read of a run's rollouts."""

    rollouts: dict[str, Any] | None = None
    places: dict[GroupKey, list[int]] = field(default_factory=dict)
    """Of each group its rows in the page."""
    prompts: dict[str, str] = field(default_factory=dict)
    """First observation of each task."""
    spread: dict[tuple[str, int], Interval] = field(default_factory=dict)
    """Interval of the mean reward over the prompts of a step."""


def read_rollouts(run: Path) -> Found:
    """Read the rollouts of a run: rows, and the transcripts that were chosen.

    Raises:
        DataError: the file cannot be read, or a line is no rollout.
    """
    path, found = run / TRAJECTORIES, Found()
    if not path.is_file():
        return found
    rows = list[tuple[int, dict[str, Any]]]()
    rewards: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for offset, line in _lines(path):
        row = _parsed(path, offset, line, _Line)
        found.prompts.setdefault(row.task.id, row.steps[0].observation[:PROMPT] if row.steps else "")
        if row.reward is not None:
            rewards[row.phase, row.step][row.task.id].append(row.reward)
        rows.append((offset, _item(row)))
    for place, groups in rewards.items():
        interval = repeats_interval([fmean(each) for each in groups.values()])
        if interval is not None:
            found.spread[place] = interval
    size, whole = path.stat().st_size, len(rows)
    rows = _whole_steps(rows)
    groups_at: dict[GroupKey, list[int]] = defaultdict(list)
    for index, (_, item) in enumerate(rows):
        groups_at[item["phase"], item["step"], item["task"]].append(index)
    found.places = dict(groups_at)
    texts = _Transcripts(path, run)
    shown = texts.add(rows, _order(rows, found.places))
    left_out = [f"Of {size:,} bytes of {TRAJECTORIES} the first and the last part were read."] if size > READ else []
    left_out += (
        [f"Of {whole:,} rollouts {len(rows):,} are listed, of steps spread over the run."] if len(rows) < whole else []
    )
    left_out += (
        [
            f"Transcripts of {shown:,} of {len(rows):,} rollouts are in the page: the first and the last visit of tasks, "
            "failures, and steps spread over the run. Others: skillttrl inspect RUN --episode ID."
        ]
        if shown < len(rows)
        else []
    )
    items = [item for _, item in rows]
    phases = list(dict.fromkeys(item["phase"] for item in items))
    found.rollouts = {"texts": [*texts.places], "items": items, "left_out": " ".join(left_out), "phases": phases}
    return found


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole lines with their places in bytes, without the middle of a file that is larger than `READ`."""
    size, offset = path.stat().st_size, 0
    with path.open("rb") as stream:
        while line := stream.readline():
            if line.endswith(b"\n") and not line.isspace():
                yield offset, line
            offset += len(line)
            if size > READ and READ // 2 < offset < size - READ // 2:
                offset = stream.seek(size - READ // 2)
                offset += len(stream.readline())


def _parsed(path: Path, offset: int, line: bytes, kind: Any) -> Any:
    try:
        return from_json(kind, line)
    except ValidationError as error:
        raise DataError(f"{path}, byte {offset}: the line is no rollout: {first_problem(error)}.") from None


def _item(row: _Line) -> dict[str, Any]:
    """A row of the page; what is empty is left out."""
    item = {
        "id": Place(row.phase, row.step, row.sample).episode(row.task.id),
        "phase": row.phase,
        "step": row.step,
        "task": row.task.id,
        "sample": row.sample,
        "stop": row.stop_reason,
        "type": row.task.task_type or None,
        "reward": row.reward,
        "true": row.original_score,
        "advantage": row.advantages and [each and float(f"{each:.3g}") for each in row.advantages],
        "error": row.error and row.error[:PROMPT],
        "answer": row.answer and row.answer[:PROMPT],
        "skills": [*row.skills_in_prompt] or None,
        "retrieved": [*row.retrieved] or None,
        "bank": row.bank_version,
    }
    return {name: value for name, value in item.items() if value is not None}


def _whole_steps(rows: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """The rows of steps spread over the run, the first and the last among them, so that they are at most about `ROWS`."""
    steps = list(dict.fromkeys((item["phase"], item["step"]) for _, item in rows))
    most = max(2, len(steps) * ROWS // max(1, len(rows)))
    chosen = set(_spread(steps, most))
    return [row for row in rows if (row[1]["phase"], row[1]["step"]) in chosen]


def _spread(values: Sequence[Any], most: int) -> list[Any]:
    """At most this many of the values, evenly spread, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / max(1, most - 1))] for place in range(most)]


def _order(rows: Sequence[tuple[int, dict[str, Any]]], groups: dict[GroupKey, list[int]]) -> list[int]:
    """Rows in the order in which their transcripts go into the page: failures, then the first samples of groups, then the others.

    Groups come in turns from three lists: first and last visits of the same task, those of the last step, and steps spread over the run.
    """
    visits: dict[tuple[str, str], list[GroupKey]] = defaultdict(list)
    for key in groups:
        visits[key[0], key[2]].append(key)
    again = [each for each in visits.values() if len(each) > 1]
    again.sort(key=lambda each: each[0][1] - each[-1][1])  # the longest time between first
    twice = [key for each in again for key in (each[0], each[-1])]
    ends = dict[str, int]()
    for phase, step, _ in groups:
        ends[phase] = max(step, ends.get(phase, 0))
    last = [key for key in groups if key[1] == ends[key[0]]]
    by_step: dict[tuple[str, int], list[GroupKey]] = defaultdict(list)
    for key in groups:
        by_step[key[:2]].append(key)
    spread = [key for turn in zip_longest(*by_step.values()) for key in turn if key is not None]
    pairs = chain.from_iterable(zip_longest(twice[::2], twice[1::2], last, spread[::2], spread[1::2]))
    order = [key for key in dict.fromkeys(pairs) if key is not None]
    failed = [index for index, (_, item) in enumerate(rows) if "error" in item][: FIRST_SAMPLES * 5]
    first = [index for key in order for index in groups[key][:FIRST_SAMPLES]]
    return list(dict.fromkeys([*failed, *first, *(index for key in order for index in groups[key][FIRST_SAMPLES:])]))


class _Transcripts:
    """Adds transcripts to rows until the budget is spent; equal texts are stored once."""

    def __init__(self, path: Path, run: Path) -> None:
        self.places: dict[str, int] = {}
        self._path, self._size, self._tokens = path, 0, 0
        self._pieces = _pieces(run)

    def add(self, rows: Sequence[tuple[int, dict[str, Any]]], order: Sequence[int]) -> int:
        """Add those that fit, in this order. Returns their number."""
        with self._path.open("rb") as stream:
            for count, index in enumerate(order[:WHOLE]):
                if self._size > TEXTS:
                    return count
                offset, item = rows[index]
                stream.seek(offset)
                played = _parsed(self._path, offset, stream.readline(), Trajectory)
                item["turns"] = [self._turn(step, tokens=item["sample"] < FIRST_SAMPLES // 4) for step in played.steps]
                if played.final_obs:
                    item["final"] = self._text(played.final_obs)
        return min(WHOLE, len(order))

    def _turn(self, step: Any, *, tokens: bool) -> dict[str, Any]:
        thought, said, _ = turn_parts(step)
        spans: Sequence[tuple[int, int]] = ()
        if step.completion is not None and step.completion.inserted_spans:  # skills stand where they were inserted
            thought, said, spans = "", step.completion.text, step.completion.inserted_spans
        turn = {
            "obs": self._text(step.observation),
            "thought": self._text(thought) if thought else None,
            "said": self._text(said),
            "action": self._text(step.action) if step.action != said else None,
            "calls": [
                [each.name, self._text(each.arguments), self._text(each.result or ""), each.error]
                for each in step.calls
            ]
            or None,
            "reward": step.reward,
            "status": step.action_status,
            "why": step.parse_error or None,
            "inserted": [list(each) for each in spans] or None,
            "tokens": self._shown_tokens(step.completion) if tokens and step.completion is not None else None,
        }
        return {name: value for name, value in turn.items() if value is not None}

    def _text(self, text: str) -> int:
        if text not in self.places:
            self._size += len(text) + 20
        return self.places.setdefault(text, len(self.places))

    def _shown_tokens(self, found: Completion) -> dict[str, Any] | None:
        ids = found.token_ids
        if not self._pieces or not ids or self._tokens + len(ids) > TOKENS:
            return None
        self._tokens += len(ids)
        own = "".join("01"[each] for each in found.completion_mask or (True,) * len(ids))
        pieces, logp = [self._pieces.get(each, "?") for each in ids], [round(each, 2) for each in found.logprobs]
        return {"pieces": pieces, "own": own, "logp": logp}


def _pieces(run: Path) -> dict[int, str]:
    """Texts of the tokens by id, from the tokenizer.json of the newest checkpoint; empty where it is of another kind."""
    files = [each.path / "tokenizer.json" for each in list_checkpoints(RunFolder(run, None))]
    try:
        found = parse_json(files[-1].read_bytes())
        vocabulary = {**found["model"]["vocab"], **{each["content"]: each["id"] for each in found["added_tokens"]}}
        decode = _from_bytes if "ByteLevel" in str(found["decoder"]) else lambda piece: piece.replace("▁", " ")
        return {int(number): decode(piece) for piece, number in vocabulary.items()}
    except (OSError, ValueError, TypeError, KeyError, IndexError):  # the page shows texts alone
        return {}


_PLAIN = {*range(33, 127), *range(161, 173), *range(174, 256)}
_REST = [each for each in range(256) if each not in _PLAIN]
_BYTES = {chr(each): each for each in _PLAIN} | {chr(256 + place): each for place, each in enumerate(_REST)}
"""Bytes by the characters that stand for them in a vocabulary of bytes (GPT-2's)."""


def _from_bytes(piece: str) -> str:
    return bytes(_BYTES[each] for each in piece if each in _BYTES).decode(errors="replace")


# Votes.


@dataclass(frozen=True, slots=True)
class _Vote(VoteResult):
    phase: str = ""
    step: int = 0
    task_id: str = ""
    correct: bool | None = None


def read_votes(run: Path, found: Found, strategy: str) -> dict[str, Any] | None:
    """The votes of a run, prompt by prompt; None where none was held.

    Raises:
        RunFolderError: a line is no vote.
    """
    path = run / "votes.jsonl"
    if not path.is_file():
        return None
    tasks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    winners, count = dict[str, str](), 0
    for where, line in whole_lines(path, []):
        try:
            vote = from_json(_Vote, line)
        except ValidationError as error:
            raise RunFolderError(f"{where} is no vote: {first_problem(error)}.") from None
        key, rule = _class(vote.answer)
        cell = {
            "step": vote.step,
            "share": round(vote.majority_ratio, 4),
            "winner": vote.answer and vote.answer[:ANSWER],
            "flip": vote.task_id in winners and key != winners[vote.task_id],
            "correct": vote.correct,
            "classes": [[answer[:ANSWER], votes] for answer, votes in vote.classes[:CLASSES]],
            "abstained": vote.abstained,
            "tie": vote.tie,
            "rule": f"{rule}; {strategy}" if rule else strategy,
            "rollouts": found.places.get((vote.phase, vote.step, vote.task_id), []),
        }
        winners[vote.task_id] = key
        tasks[vote.task_id].append(cell)
        count += 1
    if not count:
        return None
    flipped = [task for task, cells in tasks.items() if any(cell["flip"] for cell in cells)]
    mean = count / len(tasks)
    chosen = {*_spread(list(tasks), max(1, int(CELLS / mean) // 2)), *_spread(flipped, max(1, int(CELLS / mean) // 2))}
    if count <= CELLS:
        chosen = set(tasks)
    shown = {task: cells for task, cells in tasks.items() if task in chosen}
    left_out = f"Votes of {len(shown):,} of {len(tasks):,} prompts are shown." if len(shown) < len(tasks) else ""
    return {
        "steps": sorted({cell["step"] for cells in shown.values() for cell in cells}),
        "tasks": [{"id": task, "prompt": found.prompts.get(task, ""), "cells": each} for task, each in shown.items()],
        "left_out": left_out,
    }


def _class(answer: str | None) -> tuple[str, str]:
    """Key of an answer's class, and the rule behind it in words. What SymPy has to judge is compared as it is written."""
    if answer is None:
        return "", ""
    found = decide(answer)
    return (found.key, RULES[found.rule]) if isinstance(found, EquivalenceResult) else (answer, RULES["symbolic"])


# Skills.


def read_skills(path: Path) -> dict[str, Any]:
    """A bank: its versions with their changes, and its skills now.

    Raises:
        SkillBankError: there is no bank, or it is damaged.
    """
    with look(path) as bank:
        updates, now = bank.history(), [*bank]
    told = [each for each in updates if any(change.kind != "use" for change in each.changes)]
    shown = _spread(told, VERSIONS)
    left_out = f"{len(shown)} of {len(told)} versions are shown." if len(shown) < len(told) else ""
    return {"versions": [_version(each) for each in shown], "now": [_skill(each) for each in now], "left_out": left_out}


def _version(update: BankUpdate) -> dict[str, Any]:
    changes = [
        {
            "kind": each.kind,
            "id": each.skill.id,
            "before": each.before and _text_of(each.before),
            "after": each.after and _text_of(each.after),
        }
        for each in update.changes
        if each.kind != "use"
    ]
    return {
        "version": update.version,
        "step": update.step,
        "reason": update.reason,
        "writer": update.writer,
        "changes": changes,
        "evidence": [*update.evidence],
    }


def _text_of(skill: Skill) -> str:
    return "\n".join(filter(None, (skill.title, skill.when_to_apply and f"When: {skill.when_to_apply}", skill.text)))


def _skill(skill: Skill) -> dict[str, Any]:
    stats = skill.stats
    known = 0 < stats.uses >= stats.successes >= 0
    return {
        "id": skill.id,
        "title": skill.title,
        "text": skill.text,
        "when": skill.when_to_apply,
        "tier": skill.tier,
        "type": skill.task_type,
        "uses": stats.uses,
        "successes": stats.successes,
        "interval": list(wilson_interval(stats.successes, stats.uses)) if known else None,
        "parents": [*skill.parents],
        "version": skill.version,
        "flags": [*skill.flags],
        "evidence": [*skill.evidence],
    }


def read_document(path: Path) -> dict[str, Any] | None:
    """The document of an optimization after each step that changed it, in the form of `read_skills`; None before the first."""
    files = sorted(each for each in (path / "skills").glob("skill_v*.md") if each.stem[7:].isdecimal())
    versions, before = list[dict[str, Any]](), None
    for file in _spread(files, VERSIONS):
        text, number = file.read_text(encoding="utf-8", errors="replace"), int(file.stem[7:])
        if text != before:
            change = {"kind": "add" if before is None else "edit", "id": "document", "before": before, "after": text}
            versions.append(
                {"version": number, "step": number, "reason": "", "writer": "", "changes": [change], "evidence": []}
            )
        before = text
    return {"versions": versions, "now": [], "left_out": ""} if versions else None
