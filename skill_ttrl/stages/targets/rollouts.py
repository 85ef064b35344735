"""A policy opened to roll out skill documents: its `RollOutFn`, and the items of each split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from skill_ttrl.errors import DataError
from skill_ttrl.progress import Progress
from skill_ttrl.stages.optimizing.rollouts import PlaceDocument, PolicyRollouts, items_of
from skill_ttrl.stages.setup.build import build_for_eval
from skill_ttrl.stages.targets.resolve import EvalTarget
from skill_ttrl.types import Task


@contextmanager
def open_rollouts(
    target: EvalTarget,
    splits: Mapping[str, Sequence[Task]],
    place: PlaceDocument,
    progress: Progress,
    *,
    temperature: float = 0.0,
    show_reference: bool = True,
) -> Iterator[tuple[PolicyRollouts, dict[str, list[dict[str, Any]]]]]:
    """Load a policy, and yield its `RollOutFn` and the items of each split; closes the policy at the end.

    Args:
        target: the policy: a run, a checkpoint, a local or a remote model (`resolve_target`).
        splits: tasks by what they are for (`train`, `selection`, `test`). Prompts that are too long are left out.
        place: puts the document in front of the agent: `in_prompt`, or `as_bank(...)`.
        progress: reports what was left out.
        temperature: of the rollouts; 0 is greedy.
        show_reference: analysts read the true answers of these tasks.

    Raises:
        DataError: two tasks have one id.
        SkillTTRLError: a part cannot be made; the message names it.
    """
    with ExitStack() as stack:
        worker, fitting = build_for_eval(target.config, splits, progress, weights=target.weights)
        stack.callback(worker.close)
        tasks: dict[str, Task] = {}
        for task in (task for part in fitting.values() for task in part):
            if tasks.setdefault(task.id, task) != task:
                raise DataError(f"Two tasks have the id {task.id!r}. Ids must be unique over all splits.")
        rollouts = PolicyRollouts(worker, tasks, place, temperature, show_reference)
        yield rollouts, {name: items_of(part) for name, part in fitting.items()}
