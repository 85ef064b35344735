"""Votes, rollouts and skills of one run for the report: a row of every rollout, whole transcripts of a fair choice of them.

Files are streamed. What exceeds the budgets below is left out, and said.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.commands.reports.bank import look
from skill_ttrl.commands.reports.rollouts import votes_of
from skill_ttrl.commands.reports.summary_text import turn_parts
from skill_ttrl.runs.checkpoint import read_tokenizer
from skill_ttrl.runs.episode_logs import COLLECTED, DAGGERED, EVAL_TRAJECTORIES, TRAJECTORIES, Place
from skill_ttrl.runs.reader import Recorded, Run, read_rollout
from skill_ttrl.statistics import Interval, mean_interval, repeats_interval, wilson_interval
from skill_ttrl.storage.jsonl import TORN, leaving_out, parsed
from skill_ttrl.train.run import BEFORE
from skill_ttrl.types import Skill, Step, Trajectory

READ = 200_000_000
"""Bytes of a file that are read; of a larger one the first and the last half of them."""
ROWS, CELLS, VERSIONS = 10_000, 4_000, 200
"""Rollouts with a row, votes with a cell, and versions of a bank or a document with their changes."""
WHOLE, TEXTS, TOKENS = 2_000, 2_500_000, 40_000
"""Rollouts with a whole transcript, characters of these, and tokens that are shown one by one."""
EPISODES = 400
"""Episodes to imitate with a row."""
IMITATED = {COLLECTED: "collect", DAGGERED: "dagger_round"}
"""Files of episodes to imitate, whose lines state no phase, and their phases."""
SAMPLES = 8
"""Samples of a group whose transcripts come before those of the others; the first quarter of them have their tokens shown."""
PROMPT, ANSWER, CLASSES = 2_000, 200, 12
"""Longest prompt and answer in characters, and classes of answers of one vote."""
NAMES = {"id": "id", "phase": "phase", "step": "step", "task": "task", "task_type": "type", "sample": "sample", "stop_reason": "stop",
         "reward": "reward", "original_score": "true", "advantages": "advantage", "answer": "answer", "error": "error",
         "skills_in_prompt": "skills", "retrieved": "retrieved", "bank_version": "bank"}  # fmt: skip
"""Names in the page of facts of a rollout."""
Group = tuple[str, int, str]
"""Phase, step and task of a group of rollouts."""
Row = tuple[Path, int, dict[str, Any]]
"""A rollout: its file, its place there in bytes, and its row in the page."""


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


def read_rollouts(run: Run) -> Found:
    """Read the rollouts of a run: rows, and the transcripts that were chosen.

    A run that only imitated has no rollouts of its own training: its collected episodes, or those of its first DAgger round, are shown with
    those of its evaluations. Lines that are no rollout are left out and noted.
    """
    found, rows, seen = Found(), list[Row](), Counter[str]()
    rewards: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    trained = [TRAJECTORIES] if (run.path / TRAJECTORIES).is_file() else IMITATED
    paths = [path for name in (EVAL_TRAJECTORIES, *trained) if (path := run.path / name).is_file()]
    for path in paths:
        first = run.config.dagger.episodes if path.name == DAGGERED else None
        for offset, facts, played in _played(path, run.notes, first):
            task = facts["task"]
            if facts["step"] is None:
                place = Place(IMITATED.get(path.name, "collect"), 0, seen[task])
                facts |= {"id": place.episode(task), "phase": place.phase, "step": 0, "sample": place.sample}
                facts["original_score"] = None if played.success is None else float(played.success)
                seen[task] += 1
            found.prompts.setdefault(task, played.steps[0].observation[:PROMPT] if played.steps else "")
            if played.reward is not None and math.isfinite(played.reward):
                rewards[facts["phase"], facts["step"] or 0][task].append(played.reward)
            rows.append((path, offset, _item(facts)))
    if not rows:
        return found
    # What was measured later comes last.
    rows.sort(key=lambda row: row[0].name == EVAL_TRAJECTORIES and row[2]["phase"] != BEFORE)
    for step, groups in rewards.items():
        means = [fmean(each) for each in groups.values()]
        inside = len(means) > 1 and min(means) >= 0 and max(means) <= 1
        if interval := mean_interval(means) if inside else repeats_interval(means):
            found.spread[step] = interval
    steps = list(dict.fromkeys((item["phase"], item["step"]) for path, _, item in rows if path.name == TRAJECTORIES))
    chosen = set(spread(steps, max(2, len(steps) * ROWS // len(rows))))
    listed = [row for row in rows if row[0].name != TRAJECTORIES or (row[2]["phase"], row[2]["step"]) in chosen]
    items = [item for *_, item in listed]
    for index, item in enumerate(items):
        found.groups[item["phase"], item["step"], item["task"]].append(index)
    texts = _Transcripts(run.path)
    shown = texts.add(listed, _order(items, found.groups))
    said = {f"Of {path.name} the first and the last part were read.": path.stat().st_size > READ for path in paths}
    said |= {
        f"Of {len(rows):,} rollouts {len(items):,} are listed, of steps spread over the run.": len(items) < len(rows),
        f"{shown:,} of {len(items):,} rollouts have their transcript: some failures and some rewarded though wrong, then the first {SAMPLES} of a "
        "task at its first and last visit, and of steps spread over the run. The others: skillttrl inspect RUN --episode ID.": shown
        < len(items),
        "Of an evaluation a few rollouts of some tasks are kept.": paths[0].name == EVAL_TRAJECTORIES,
        f"Of the episodes to imitate at most {EPISODES} are listed, evenly spread.": len(seen) > 0,
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


def _played(path: Path, notes: list[str], first: int | None) -> Iterator[tuple[int, dict[str, Any], Recorded]]:
    """The rollouts of a file with their places in bytes; of episodes to imitate a few of the first ones, or of all."""
    for where, offset, line in _spread_lines(path, notes, first) if path.name in IMITATED else _lines(path, notes):
        with leaving_out(notes):
            yield offset, *read_rollout(where, line)


def _lines(path: Path, notes: list[str]) -> Iterator[tuple[str, int, bytes]]:
    """Yield the whole lines of a file with their names and their places in bytes, without the middle of one that is larger than `READ`."""
    size, offset, number = path.stat().st_size, 0, 1
    with path.open("rb") as stream:
        while line := stream.readline():
            if not line.endswith(b"\n"):
                notes.append(TORN.format(path))
            elif not line.isspace():
                yield f"{path}:{number}" if number else f"{path}, byte {offset}", offset, line
            offset += len(line)
            number += bool(number)
            if READ // 2 < offset < size - READ // 2:
                offset = stream.seek(size - READ // 2)
                offset += len(stream.readline())
                number = 0  # not known any more


def _spread_lines(path: Path, notes: list[str], first: int | None) -> Iterator[tuple[str, int, bytes]]:
    """As `_lines`, a few of the first ones, or of all."""
    wanted = {*spread([offset for _, offset, _ in islice(_lines(path, []), first)], EPISODES)}
    return (found for found in _lines(path, notes) if found[1] in wanted)


def _item(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the page; what is empty is left out."""
    item = {name: facts[of] for of, name in NAMES.items() if facts[of] not in (None, "", ())}
    return item | {name: item[name][:PROMPT] for name in ("error", "answer") if name in item}


def _order(items: Sequence[Mapping[str, Any]], groups: Mapping[Group, list[int]]) -> list[int]:
    """Rows in the order in which they get a transcript: failures and wrong ones that were rewarded, the first samples of groups, the others.

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
    odd = ("error" in each or (each.get("reward", 0) > 0 and each.get("true") == 0) for each in items)
    failed = [index for index, each in enumerate(odd) if each][: WHOLE // 4]
    parts = (groups[group][part] for part in (slice(SAMPLES), slice(SAMPLES, None)) for group in order)
    return list(dict.fromkeys([*failed, *(index for part in parts for index in part)]))


class _Transcripts:
    """Adds transcripts to rows until the budget is spent; equal texts are stored once."""

    def __init__(self, run: Path) -> None:
        self.places: dict[str, int] = {}
        self._size = self._tokens = 0
        self._tokenizer = read_tokenizer(run)

    def add(self, rows: Sequence[Row], order: Sequence[int]) -> int:
        """Add those that fit, in this order. Returns their number."""
        for count, index in enumerate(order):
            if self._size > TEXTS or count == WHOLE:
                return count
            path, offset, item = rows[index]
            with path.open("rb") as stream:
                stream.seek(offset)
                played = parsed(str(path), stream.readline(), Trajectory)
            item["turns"] = [self._turn(step, item.get("sample", 0) < SAMPLES // 4) for step in played.steps]
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
        if found is None or self._tokenizer is None or not found.token_ids or self._tokens > TOKENS:
            return None
        self._tokens += len(found.token_ids)
        own = "".join("01"[each] for each in found.completion_mask or (True,) * len(found.token_ids))
        pieces = [self._tokenizer.decode([each], skip_special_tokens=False) for each in found.token_ids]
        return {"pieces": pieces, "own": own, "logp": [round(each, 2) + 0.0 for each in found.logprobs]}


def read_votes(run: Run, found: Found, strategy: str) -> dict[str, Any] | None:
    """The votes of a run, prompt by prompt; None where none was held."""
    tasks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for vote, flip, rule in votes_of(run.path, run.notes):
        cell = {name: getattr(vote, name) for name in ("step", "correct", "tie", "abstained")}
        cell |= {"share": round(vote.majority_ratio, 4), "flip": flip is True, "rule": f"{rule}; strategy {strategy}"}
        cell["winner"] = vote.answer and vote.answer[:ANSWER]
        cell["classes"] = [[answer[:ANSWER], votes] for answer, votes in vote.classes[:CLASSES]]
        cell["rollouts"] = found.groups.get((vote.phase, vote.step, vote.task_id), [])
        tasks[vote.task_id].append(cell)
    if not tasks:
        return None
    chosen = spread(list(tasks), max(1, CELLS * len(tasks) // sum(map(len, tasks.values()))))
    return {
        "steps": sorted({cell["step"] for task in chosen for cell in tasks[task]}),
        "tasks": [{"id": task, "prompt": found.prompts.get(task, ""), "cells": tasks[task]} for task in chosen],
        "left_out": f"Votes on {len(chosen):,} of {len(tasks):,} prompts are shown." * (len(chosen) < len(tasks)),
    }


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
            {"kind": one.kind, "id": one.skill.id, "before": _text_of(one.before), "after": _text_of(one.after)}
            for one in each.changes
            if one.kind != "use"
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
