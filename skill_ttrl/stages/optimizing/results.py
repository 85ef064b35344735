"""A trajectory as the text optimizer reads it: success, score, why it failed, and its turns, bounded in length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skill_ttrl.answers import correct
from skill_ttrl.optimize.transcript import clip
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.rollout.outcome import env_score, env_success
from skill_ttrl.types import Task, Trajectory

TURN_CHARS = 2000
"""Longest text of one turn in a conversation; of a longer one beginning and end stay."""
MOST_TURNS = 60
"""Most turns of a conversation; of a longer one the first and the last stay."""


def as_result(trajectory: Trajectory, *, show_reference: bool = True, success: bool | None = None) -> RolloutResult:
    """The result of one rollout.

    `hard` is what the environment says, where it says `won`; else a true answer decides; else the environment's return. `soft` is the
    environment's score, or the same as `hard`. A failed rollout is no success; one that nothing judges is marked `ungraded`, and one that
    the environment rewards although the true answer says that it is wrong `rewarded`.

    Args:
        trajectory: the rollout.
        show_reference: it holds the true answer of the task.
        success: overrides the rules above.
    """
    task, given = trajectory.task, success is not None
    success = is_success(trajectory) if success is None else success
    hard, score = int(bool(success)), env_score(trajectory)
    question = task.options.get("question")
    question = question if isinstance(question, str) else trajectory.goal
    extras: dict[str, Any] = {"stop_reason": trajectory.stop_reason}
    if success is None:
        extras["ungraded"] = True
    elif not (given or hard or trajectory.error) and trajectory.won is None and trajectory.env_return > 0:
        extras["rewarded"] = True
    if trajectory.bank_version is not None:
        extras |= {"skills_in_prompt": [*trajectory.skills_in_prompt], "retrieved": [*trajectory.retrieved]}
    return RolloutResult(
        id=task.id,
        hard=hard,
        soft=float(hard) if score is None or trajectory.error is not None else score,
        n_turns=len(trajectory.steps),
        fail_reason="" if hard else why_it_failed(trajectory, success, show_reference=show_reference),
        task_type=task.task_type,
        task_description=trajectory.goal,
        predicted_answer=trajectory.answer or "",
        question=question,
        reference_text=(true_answer(task) or "") if show_reference else "",
        conversation=conversation(trajectory),
        extras=extras,
    )


def true_answer(task: Task) -> str | None:
    """The true answer of a task, or the phrasings that its environment accepts (`SkillTTRL/QA-v0`); None where there is none."""
    accepted = task.options.get("answers")
    if task.ground_truth is None and isinstance(accepted, list) and accepted:
        return " | ".join(map(str, accepted))
    return task.ground_truth


def is_success(trajectory: Trajectory) -> bool | None:
    """Success of a rollout; None where neither the environment nor a true answer tells."""
    reference = trajectory.task.ground_truth
    if trajectory.error is None and trajectory.won is None and reference is not None:
        return bool(correct([(trajectory.answer, reference)])[0])
    return env_success(trajectory)


def why_it_failed(trajectory: Trajectory, success: bool | None, *, show_reference: bool) -> str:
    """The reason of a failure in words."""
    if trajectory.error is not None:
        return f"{trajectory.stop_reason}: {clip(trajectory.error, 500)}"
    invalid = sum(step.action_status == "invalid" for step in trajectory.steps)
    reasons = []
    if trajectory.stop_reason == "max_turns":
        reasons.append(f"the task was not done after {len(trajectory.steps)} turns")
    elif trajectory.stop_reason == "truncated":
        reasons.append(f"the episode was truncated after {len(trajectory.steps)} turns")
    last = trajectory.steps[-1].completion if trajectory.steps else None
    if last is not None and last.finish_reason == "length":
        reasons.append("the last reply reached its length limit")
    if invalid:
        reasons.append(f"{invalid} of {len(trajectory.steps)} actions were not valid")
    reference, score = true_answer(trajectory.task), env_score(trajectory)
    if reference is not None and trajectory.answer is None:
        reasons.append("no answer was found in the reply")
    elif reference is not None:
        expected = f", expected {clip(reference, 200)!r}" if show_reference else ""
        reasons.append(f"answered {clip(trajectory.answer or '', 200)!r}{expected}")
    elif score is not None and score > 0:
        reasons.append(f"only partly right (score {score:.2f})")
    if success is None:
        reasons.append("nothing tells whether it succeeded")
    return "; ".join(reasons) or "the task was not done"


def conversation(trajectory: Trajectory) -> list[dict[str, str]]:
    """Observations and replies, turn by turn; long texts and long episodes are cut in the middle.

    Text that the bank inserted into a completion is part of it.
    """
    turns: list[dict[str, str]] = []
    for step in trajectory.steps:
        said = step.action if step.completion is None else step.completion.text
        turns += [_turn("user", step.observation), _turn("assistant", said)]
    if trajectory.final_obs:
        turns.append(_turn("user", trajectory.final_obs))
    return shortened(turns)


def shortened(turns: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """At most `MOST_TURNS` turns, the first and the last ones; a line in between says how many are missing."""
    if len(turns) <= MOST_TURNS:
        return [*turns]
    half = (MOST_TURNS - 1) // 2
    missing = len(turns) - 2 * half
    return [*turns[:half], _turn("user", f"[... {missing} turns left out ...]"), *turns[-half:]]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": clip(content, TURN_CHARS)}
