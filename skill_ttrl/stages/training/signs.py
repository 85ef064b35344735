"""Signs that a run cannot work, as warnings: in the steps of its RL training, and in its votes with and without its skill bank.

The votes' own signs are in `runs.stop_rules`. The metrics that need labels only measure: a warning is all that comes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skill_ttrl.answers import canonical
from skill_ttrl.runs.stop_rules import NO_ANSWER, figures
from skill_ttrl.stages.evaluation.results import Evaluation
from skill_ttrl.statistics import Interval
from skill_ttrl.voting.tally import mean

EARLY = 5
"""Steps after which the signs that need no course are looked at for the first time."""
INVALID = 0.9
"""Share of invalid actions from which on nearly all of them are."""
CUT_OFF = 0.5
"""Share of completions that were cut off from which on that is why they earn nothing."""
RISE = 0.1
"""Least rise of the agreement, from the first third of the steps to the last."""
NEVER_TRUE = 0.05
"""Share of true winners below which nearly none is."""
OTHER_WINNERS = 0.5
"""Share of the problems with another winner from which on a bank decides the votes."""
BANK_RISE = 0.1
"""Least difference of agreement that is worth a warning where no labels are known."""

HOW_TO_ANSWER = r"Answers are read from \boxed{63} or <answer>63</answer>: request this form in the prompt (agent.template), use it in the demonstrations (sft.data), or read the samples in steps[] of trajectories.jsonl."
Rows = Sequence[Mapping[str, Any]]
"""Figures of each step, oldest first."""


def early_signs(rows: Rows, *, answers: bool = True) -> dict[str, str]:
    """Warnings that a few steps are enough for, by the words that they begin with; `answers`: the reward looks at answers."""
    abstained = figures(rows, "abstained")
    if answers and abstained and mean(abstained) >= NO_ANSWER:  # all other signs follow from it
        start = "Almost no sample contained an answer"
        cut_off = mean(figures(rows, "completions/clipped_ratio") or [0.0]) >= CUT_OFF
        why = "Most were truncated: raise rollout.max_new_tokens." if cut_off else HOW_TO_ANSWER
        return {start: f"{start} ({mean(abstained):.0%} abstained over {steps_of(len(abstained))}). {why}"}
    found = {}
    uniform, invalid = figures(rows, "frac_reward_zero_std"), figures(rows, "invalid_actions")
    # Samples of equal reward can have advantages without a group's mean (`psr`, `gae`).
    learned = any(row.get(f"advantage/{name}") for row in rows for name in ("max", "min"))
    if uniform and min(uniform) == 1.0 and not learned:
        clipped, reward = mean(figures(rows, "completions/clipped_ratio") or [0.0]), mean(figures(rows, "reward"))
        why = "The cold start is too weak, or the tasks are too hard: collect more demonstrations, or start with easier tasks."
        if reward > 0.5:
            why = "The policy already gets all of this reward; harder tasks would show differences."
        elif clipped >= CUT_OFF:
            why = f"{clipped:.0%} of the completions were truncated: raise rollout.max_new_tokens."
        found["No reward differed"] = (
            f"within any group in {steps_of(len(uniform))} (mean reward {reward:.2f}), so no sample was better than another. {why}"
        )
    elif rows and all(map(_idle, rows)):
        why = "rewards differed, but every advantage was 0. Check the options of rl.algorithm, and the advantages in trajectories.jsonl."
        found["No step changed the weights"] = f"in {steps_of(len(rows))}: {why}"
    if invalid and mean(invalid) >= INVALID:
        found["Nearly all actions were invalid"] = (
            f"({mean(invalid):.0%} over {steps_of(len(invalid))}): the policy does not write them in the required form. See "
            "steps[].parse_error in trajectories.jsonl; a longer cold start helps, or another agent.action_parser."
        )
    return {start: f"{start} {rest}" for start, rest in found.items()}


def late_signs(rows: Rows, *, answers: bool = True) -> dict[str, str]:
    """`early_signs`, and what the whole course says."""
    agreement, right = figures(rows, "majority_ratio"), figures(rows, "label_accuracy")
    third = max(1, len(rows) // 3)
    begun, ended = mean(agreement[:third]), mean(agreement[-third:])
    found = early_signs(rows, answers=answers)
    if len(agreement) > 1 and right and ended - begun >= RISE and mean(right[-third:]) < NEVER_TRUE:
        found["Agreement rose"] = (
            f"Agreement rose from {begun:.2f} to {ended:.2f}, but only {mean(right[-third:]):.1%} of the latest votes were correct "
            "(diagnostic only): the policy learns to agree on wrong answers. Use a longer cold start or easier problems; see "
            "docs/voting.md."
        )
    return found


def steps_of(count: int) -> str:
    """A number of steps in words."""
    return f"{count} step{'s' * (count != 1)}"


def _idle(row: Mapping[str, Any]) -> bool:
    """Tell whether an update had samples, and none that pulled on the weights. One that the critic's warm-up left out has no rate."""
    return row.get("updates") == 0 == row.get("skipped_updates") and row.get("learning_rate") is not None


def bank_votes(after: Evaluation | None, off: Evaluation | None) -> dict[str, float]:
    """Agreement with the bank and without it, maj@k without it, and the share of problems with another winner; empty without votes."""
    if after is None or off is None:
        return {}
    pairs = [
        (one.majority_answer, other.majority_answer) for one, other in zip(after.results, off.results, strict=True)
    ]
    if all(one is None for one, _ in pairs) or after.majority_ratio is None or off.majority_ratio is None:
        return {}
    differ = [(None if one is None else canonical(one)) != (None if other is None else canonical(other)) for one, other in pairs]  # fmt: skip
    found = {
        "majority_ratio": after.majority_ratio,
        "majority_ratio_no_skills": off.majority_ratio,
        "other_winners": sum(differ) / len(differ),
    }
    if after.majority is not None and off.majority is not None:
        found |= {"majority": after.majority, "majority_no_skills": off.majority}
    return found


def bank_warning(votes: dict[str, float], change: Interval | None) -> str | None:
    """A warning where the bank makes votes agree on wrong answers, or decides them where no label tells; else None.

    Args:
        votes: see `bank_votes`.
        change: interval of maj@k with the bank less maj@k without it; None where there are no labels.
    """
    if not votes or votes["majority_ratio"] <= votes["majority_ratio_no_skills"]:
        return None
    more = f"agreement is {votes['majority_ratio']:.2f} with it and {votes['majority_ratio_no_skills']:.2f} without it"
    if change is not None:
        if change[1] >= 0:
            return None
        return (
            f"The skill bank makes the votes agree on wrong answers: {more}, but {votes['majority']:.2f} of the winners are correct "
            f"with it and {votes['majority_no_skills']:.2f} without it (diagnostic only). Find the wrong skill: skillttrl inspect "
            "RUN/bank."
        )
    if (
        votes["other_winners"] < OTHER_WINNERS
        or votes["majority_ratio"] - votes["majority_ratio_no_skills"] < BANK_RISE
    ):
        return None
    return (
        f"The skill bank decides the votes: {votes['other_winners']:.0%} of the problems have another winner with it than "
        f"without it, and {more}. No labels tell which winners are correct: give data.eval some true answers, or check a few by "
        "hand."
    )
