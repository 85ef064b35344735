"""Votes, rollouts and skills of one run for the report: a row of every rollout, whole transcripts of a fair choice of them.

Files are streamed. What exceeds the budgets below is left out, and said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from skill_ttrl.answers.equivalence import EquivalenceResult, decide
from skill_ttrl.commands.reports.bank import look
from skill_ttrl.commands.reports.summary_text import turn_parts
from skill_ttrl.errors import DataError
from skill_ttrl.runs.checkpoint import list_checkpoints
from skill_ttrl.runs.episode_logs import COLLECTED, EVAL_TRAJECTORIES, TRAJECTORIES, Place
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.statistics import Interval, repeats_interval, wilson_interval
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.train.run import BEFORE
from skill_ttrl.types import Skill, Step, Trajectory, VoteResult, first_problem, from_json

READ = 200_000_000
"""Bytes of a file that are read; of a larger one the first and the last half of them."""
ROWS, CELLS, VERSIONS = 10_000, 4_000, 200
"""Rollouts with a row, votes with a cell, and versions of a bank or a document with their changes."""
WHOLE, TEXTS, TOKENS = 2_000, 2_500_000, 40_000
"""Rollouts with a whole transcript, characters of these, and tokens that are shown one by one."""
SAMPLES = 8
"""Samples of a group whose transcripts come before those of the others; the first quarter of them have their tokens shown."""
PROMPT, ANSWER, CLASSES = 2_000, 200, 12
"""Longest prompt and answer in characters, and classes of answers of one vote."""
RULES = {"number": "equal as numbers", "text": "equal as texts", "symbolic": "equal by SymPy"}
Group = tuple[str, int, str]
"""Phase, step and task of a group of rollouts."""
Row = tuple[Path, int, dict[str, Any]]
"""A rollout: its file, its place there in bytes, and its row in the page."""


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
    phase: str = "collect"
    step: int = 0
    sample: int = 0
    answer: str | None = None
    reward: float | None = None
    original_score: float | None = None
    advantages: list[float | None] | None = None
    error: str | None = None
    skills_in_prompt: list[str] | None = None
    retrieved: list[str] | None = None
    bank_version: int | None = None


@dataclass
class Found:
    """Rollouts of a run as they stand in the page, and what other parts of it need of them."""

    rollouts: dict[str, Any] | None = None
    groups: dict[Group, list[int]] = field(default_factory=lambda: defaultdict(list))
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
    found, size = Found(), 0
    rows = list[Row]()
    rewards: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    played = [path for name in (EVAL_TRAJECTORIES, TRAJECTORIES) if (path := run / name).is_file()]
    for path in played or [
        path for path in (run / COLLECTED,) if path.is_file()
    ]:  # else what was imitated is all there is
        size = path.stat().st_size
        for offset, row in _records(path, _Line):
            found.prompts.setdefault(row.task.id, row.steps[0].observation[:PROMPT] if row.steps else "")
            if row.reward is not None:
                rewards[row.phase, row.step][row.task.id].append(row.reward)
            rows.append((path, offset, _item(row)))
    if not rows:
        return found
    rows.sort(
        key=lambda row: row[0].name == EVAL_TRAJECTORIES and row[2]["phase"] != BEFORE
    )  # what was measured later comes last
    for step, groups in rewards.items():
        if interval := repeats_interval([fmean(each) for each in groups.values()]):
            found.spread[step] = interval
    steps = list(dict.fromkeys((item["phase"], item["step"]) for path, _, item in rows if path.name == TRAJECTORIES))
    chosen = set(spread(steps, max(2, len(steps) * ROWS // len(rows))))
    listed = [row for row in rows if row[0].name != TRAJECTORIES or (row[2]["phase"], row[2]["step"]) in chosen]
    items = [item for *_, item in listed]
    for index, item in enumerate(items):
        found.groups[item["phase"], item["step"], item["task"]].append(index)
    texts = _Transcripts(run)
    shown = texts.add(listed, _order(items, found.groups))
    said = {
        f"Of {size:,} bytes of {TRAJECTORIES} the first and the last part were read.": size > READ,
        f"Of {len(rows):,} rollouts {len(items):,} are listed, of steps spread over the run.": len(items) < len(rows),
        f"{shown:,} of {len(items):,} rollouts have their transcript: failures, first and last visits of tasks, and steps spread over the "
        "run. The others: skillttrl inspect RUN --episode ID.": shown < len(items),
    }
    left_out = " ".join(text for text, holds in said.items() if holds)
    phases = list(dict.fromkeys(item["phase"] for item in items))
    found.rollouts = {"texts": [*texts.places], "items": items, "left_out": left_out, "phases": phases}
    return found


def spread(values: Sequence[Any], most: int) -> list[Any]:
    """At most this many of the values, evenly spread, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / max(1, most - 1))] for place in range(most)]


def _records(path: Path, kind: Any) -> Iterator[tuple[int, Any]]:
    """Yield the whole lines of a file with their places in bytes, without the middle of one that is larger than `READ`."""
    size, offset = path.stat().st_size, 0
    with path.open("rb") as stream:
        while line := stream.readline():
            if line.endswith(b"\n") and not line.isspace():
                yield offset, _parsed(path, offset, line, kind)
            offset += len(line)
            if READ // 2 < offset < size - READ // 2:
                offset = stream.seek(size - READ // 2)
                offset += len(stream.readline())


def _parsed(path: Path, offset: int, line: bytes, kind: Any) -> Any:
    try:
        return from_json(kind, line)
    except ValidationError as error:
        raise DataError(f"{path}, byte {offset}: the line cannot be read: {first_problem(error)}.") from None


def _item(row: _Line) -> dict[str, Any]:
    """A row of the page; what is empty is left out."""
    item = {
        "id": Place(row.phase, row.step, row.sample).episode(row.task.id),
        **{"phase": row.phase, "step": row.step, "task": row.task.id, "sample": row.sample, "stop": row.stop_reason},
        **{
            "type": row.task.task_type or None,
            "reward": row.reward,
            "true": row.original_score,
            "bank": row.bank_version,
        },
        "advantage": row.advantages and [each and float(f"{each:.3g}") for each in row.advantages],
        **{"error": row.error and row.error[:PROMPT], "answer": row.answer and row.answer[:PROMPT]},
        **{"skills": row.skills_in_prompt or None, "retrieved": row.retrieved or None},
    }
    return {name: value for name, value in item.items() if value is not None}


def _order(items: Sequence[Mapping[str, Any]], groups: Mapping[Group, list[int]]) -> list[int]:
    """Rows in the order in which they get a transcript: failures, the first samples of groups, the other samples.

    Groups come in turns from three lists: first and last visits of one task, the last step, and all, spread over the steps.
    """
    visits, steps = defaultdict[Any, list[Group]](list), defaultdict[Any, list[Group]](list)
    for group in groups:
        visits[group[0], group[2]].append(group)
        steps[group[:2]].append(group)
    longest = sorted((each for each in visits.values() if len(each) > 1), key=lambda each: each[0][1] - each[-1][1])
    firsts, lasts = ([each[end] for each in longest] for end in (0, -1))
    everywhere = [group for turn in zip_longest(*steps.values()) for group in turn]
    turns = zip_longest(firsts, lasts, [*steps.values()][-1] if steps else [], everywhere)
    order = list(dict.fromkeys(group for turn in turns for group in turn if group is not None))
    failed = [index for index, item in enumerate(items) if "error" in item][: 5 * SAMPLES]
    parts = (groups[group][part] for part in (slice(SAMPLES), slice(SAMPLES, None)) for group in order)
    return list(dict.fromkeys([*failed, *(index for part in parts for index in part)]))


class _Transcripts:
    """Adds transcripts to rows until the budget is spent; equal texts are stored once."""

    def __init__(self, run: Path) -> None:
        self.places: dict[str, int] = {}
        self._size = self._tokens = 0
        self._pieces = _pieces(run)

    def add(self, rows: Sequence[Row], order: Sequence[int]) -> int:
        """Add those that fit, in this order. Returns their number."""
        with ExitStack() as stack:
            streams = {path: stack.enter_context(path.open("rb")) for path in {row[0] for row in rows}}
            for count, index in enumerate(order):
                if self._size > TEXTS or count == WHOLE:
                    return count
                path, offset, item = rows[index]
                stream = streams[path]
                stream.seek(offset)
                played = _parsed(path, offset, stream.readline(), Trajectory)
                item["turns"] = [self._turn(step, item["sample"] < SAMPLES // 4) for step in played.steps]
                if played.final_obs:
                    item["final"] = self._text(played.final_obs)
        return len(order)

    def _turn(self, step: Step, tokens: bool) -> dict[str, Any]:
        thought, said, _ = turn_parts(step)
        spans = step.completion.inserted_spans if step.completion is not None else ()
        if step.completion is not None and spans:  # skills are shown where they were inserted
            thought, said = "", step.completion.text
        calls = [
            [each.name, self._text(each.arguments), self._text(each.result or ""), each.error] for each in step.calls
        ]
        turn = {
            **{"obs": self._text(step.observation), "said": self._text(said), "reward": step.reward},
            "thought": self._text(thought) if thought else None,
            "action": self._text(step.action) if step.action != said else None,
            **{"calls": calls or None, "status": step.action_status, "why": step.parse_error or None},
            **{"inserted": spans or None, "tokens": self._shown_tokens(step) if tokens else None},
        }
        return {name: value for name, value in turn.items() if value is not None}

    def _text(self, text: str) -> int:
        if text not in self.places:
            self._size += len(text) + 20
        return self.places.setdefault(text, len(self.places))

    def _shown_tokens(self, step: Step) -> dict[str, Any] | None:
        found = step.completion
        if found is None or not self._pieces or not found.token_ids or self._tokens > TOKENS:
            return None
        self._tokens += len(found.token_ids)
        own = "".join("01"[each] for each in found.completion_mask or (True,) * len(found.token_ids))
        pieces = [self._pieces.get(each, "?") for each in found.token_ids]
        return {"pieces": pieces, "own": own, "logp": [round(each, 2) + 0.0 for each in found.logprobs]}


def _pieces(run: Path) -> dict[int, str]:
    """Texts of the tokens by id, from the tokenizer.json of the newest checkpoint; empty where it is of another kind."""
    files = [each.path / "tokenizer.json" for each in list_checkpoints(RunFolder(run, None))]
    try:
        found = parse_json(files[-1].read_bytes())
        vocabulary = {**found["model"]["vocab"], **{each["content"]: each["id"] for each in found["added_tokens"]}}
        of_bytes = "ByteLevel" in str(found["decoder"])
        return {int(number): _piece(str(text), of_bytes) for text, number in vocabulary.items()}
    except (OSError, ValueError, TypeError, KeyError, IndexError):  # the page shows texts alone
        return {}


_PLAIN = {*range(33, 127), *range(161, 173), *range(174, 256)}
_BYTES = {chr(each): each for each in _PLAIN} | {
    chr(256 + n): each for n, each in enumerate(sorted({*range(256)} - _PLAIN))
}
"""Bytes by the characters that stand for them in a vocabulary of bytes (GPT-2's)."""


def _piece(text: str, of_bytes: bool) -> str:
    if not of_bytes:
        return text.replace("▁", " ")
    return bytes(_BYTES[each] for each in text if each in _BYTES).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class _Vote(VoteResult):
    phase: str = ""
    step: int = 0
    task_id: str = ""
    correct: bool | None = None


def read_votes(run: Path, found: Found, strategy: str) -> dict[str, Any] | None:
    """The votes of a run, prompt by prompt; None where none was held.

    Raises:
        DataError: a line is no vote.
    """
    path = run / "votes.jsonl"
    tasks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    winners = dict[str, str]()
    for _, vote in _records(path, _Vote) if path.is_file() else ():
        key, rule = _class(vote.answer)
        cell = {
            **{
                "step": vote.step,
                "share": round(vote.majority_ratio, 4),
                "winner": vote.answer and vote.answer[:ANSWER],
            },
            **{"flip": winners.get(vote.task_id, key) != key, "correct": vote.correct, "tie": vote.tie},
            **{"abstained": vote.abstained, "rule": f"{rule}; strategy {strategy}"},
            "classes": [[answer[:ANSWER], votes] for answer, votes in vote.classes[:CLASSES]],
            "rollouts": found.groups.get((vote.phase, vote.step, vote.task_id), []),
        }
        winners[vote.task_id] = key
        tasks[vote.task_id].append(cell)
    if not tasks:
        return None
    chosen = spread(list(tasks), max(1, CELLS * len(tasks) // sum(map(len, tasks.values()))))
    return {
        "steps": sorted({cell["step"] for task in chosen for cell in tasks[task]}),
        "tasks": [{"id": task, "prompt": found.prompts.get(task, ""), "cells": tasks[task]} for task in chosen],
        "left_out": f"Votes on {len(chosen):,} of {len(tasks):,} prompts are shown."
        if len(chosen) < len(tasks)
        else "",
    }


def _class(answer: str | None) -> tuple[str, str]:
    """Key of an answer's class, and the rule behind it in words. What SymPy has to judge is compared as it is written."""
    if answer is None:
        return "", "no answer"
    found = decide(answer)
    return (found.key, RULES[found.rule]) if isinstance(found, EquivalenceResult) else (answer, RULES["symbolic"])


def read_skills(path: Path) -> dict[str, Any]:
    """A bank: its versions with their changes, and its skills now.

    Raises:
        SkillBankError: there is no bank, or it is damaged.
    """
    with look(path) as bank:
        updates, now = bank.history(), [*bank]
    versions = []
    for each in updates:
        changes = [
            {
                "kind": change.kind,
                "id": change.skill.id,
                "before": _text_of(change.before),
                "after": _text_of(change.after),
            }
            for change in each.changes
            if change.kind != "use"
        ]
        about = {name: getattr(each, name) for name in ("version", "step", "reason", "writer", "evidence")}
        versions += [about | {"changes": changes}] if changes else []
    return _skills(versions, [_skill(each) for each in now])


def _skills(versions: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shown = spread(versions, VERSIONS)
    left_out = f"{len(shown)} of {len(versions)} versions are shown." if len(shown) < len(versions) else ""
    return {"versions": shown, "now": now, "left_out": left_out}


def _text_of(skill: Skill | None) -> str | None:
    if skill is None:
        return None
    return "\n".join(filter(None, (skill.title, skill.when_to_apply and f"When: {skill.when_to_apply}", skill.text)))


def _skill(skill: Skill) -> dict[str, Any]:
    uses, successes = skill.stats.uses, skill.stats.successes
    interval = wilson_interval(successes, uses) if 0 < uses >= successes >= 0 else None
    renamed = {"when": skill.when_to_apply, "type": skill.task_type, "uses": uses, "successes": successes}
    return asdict(skill) | renamed | {"interval": interval, "stats": None}


def read_document(path: Path) -> dict[str, Any] | None:
    """The document of an optimization after each step that changed it, in the form of `read_skills`; None before the first."""
    versions, before = list[dict[str, Any]](), None
    for file in sorted(each for each in (path / "skills").glob("skill_v*.md") if each.stem[7:].isdecimal()):
        text, step = file.read_text(encoding="utf-8", errors="replace"), int(file.stem[7:])
        change = {"kind": "add" if before is None else "edit", "id": "document", "before": before, "after": text}
        about = {"version": step, "step": step, "reason": "", "writer": "", "evidence": []}
        versions += [about | {"changes": [change]}] if text != before else []
        before = text
    return _skills(versions, []) if versions else None
