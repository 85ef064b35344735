"""Episodes for the phase distill: taken one by one, counted by type, and so many of them kept that a file may be larger than memory."""

from __future__ import annotations

import heapq
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from skill_ttrl.skills.teachers.teacher import Case, case_of
from skill_ttrl.types import Step, Trajectory, derive_seed

SOURCE = "distill"
"""`source` of the skills, reason of the update and phase of the ledger."""
MOST_CASES = 500
"""Won, and lost, episodes of a type that are looked at."""
OBSERVATION_CHARS = 2000
"""Of each observation that is kept, so many characters."""
UNTYPED = "(no type)"


class Gathered:
    """Episodes one by one, as a teacher looks at them; of each type, won and lost, at most `MOST_CASES`, drawn evenly.

    Args:
        type_names: what the bank calls the types of tasks.
        seed: of the draws.
    """

    def __init__(self, type_names: Mapping[str, str], seed: int) -> None:
        self._type_names, self._seed = type_names, seed
        self._kept: dict[tuple[str, bool], list[tuple[int, int, Case]]] = defaultdict(list)
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._number = 0
        self._stated = False
        self.envs: set[str] = set()

    def take(self, trajectory: Trajectory) -> None:
        """One more."""
        task = trajectory.task
        self._number += 1
        self.envs.add(task.env_id)
        case = case_of(trajectory, self._type_names)
        if trajectory.error is not None or not trajectory.steps:
            self._counts[case.task_type]["failed"] += 1
            return
        self._stated = self._stated or bool(case.task)
        self._counts[case.task_type]["won" if case.won else "lost"] += 1
        heap = self._kept[case.task_type, case.won]
        rank = -derive_seed(self._seed, SOURCE, task.id, self._number)
        if len(heap) < MOST_CASES:
            heapq.heappush(heap, (rank, self._number, _lean(case)))
        elif rank > heap[0][0]:
            heapq.heapreplace(heap, (rank, self._number, _lean(case)))

    def cases(self) -> list[Case]:
        """Those that are kept, in the order in which they came."""
        everything = (each for heap in self._kept.values() for each in heap)
        return [case for _, _, case in sorted(everything, key=lambda each: each[1])]

    def counts(self) -> dict[str, dict[str, int]]:
        """See `Distilled.episodes`."""
        return {
            kind: {name: self._counts[kind][name] for name in ("won", "lost", "failed")}
            for kind in sorted(self._counts)
        }

    def notes(self) -> list[str]:
        """What is to be known of the episodes."""
        notes = []
        if len(self.envs) > 1:
            notes.append(
                f"The episodes are of {len(self.envs)} environments ({', '.join(sorted(self.envs))}): general principles and "
                "mistakes are taken from all of them together. A bank for each is cleaner."
            )
        failed = sum(each["failed"] for each in self._counts.values())
        if failed:
            notes.append(
                f"{failed} of {self._number} episodes ended by an error, or before a step, and are not looked at."
            )
        for (kind, won), heap in sorted(self._kept.items()):
            there = self._counts[kind]["won" if won else "lost"]
            if there > len(heap):
                how = "won" if won else "lost"
                notes.append(
                    f"{kind or UNTYPED}: {len(heap)} of {there:,} {how} episodes, drawn evenly, are looked at."
                )
        if self._number > failed and not self._stated:
            notes.append("No episode says what was to be done: skills cannot tell what a task names.")
        return notes


def _lean(case: Case) -> Case:
    """The case without tokens and what else no teacher looks at; equal texts are kept once."""
    steps = tuple(
        Step(
            step.observation[:OBSERVATION_CHARS],
            step.action,
            step.reward,
            step.terminated,
            step.truncated,
            admissible=tuple(map(sys.intern, step.admissible)),
            verdict=step.verdict,
            complaint=step.complaint,
        )
        for step in case.steps
    )
    return replace(case, steps=steps, last_observation=case.last_observation[:OBSERVATION_CHARS])
