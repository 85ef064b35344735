"""When to stop without labels: rules that look at the votes of a run and at nothing else.

A rule is one function from the steps done so far (lines of `metrics.jsonl`, oldest first), with options as keyword
arguments, to whether training should end after the last of them. One of your own is `module:function`. What each rule
costs against the best step in hindsight is measured in docs/evaluate.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.registry import Registry
from skill_ttrl.voting.strategies import mean

Rows = Sequence[Mapping[str, Any]]
"""Figures of each step, oldest first. Rules read those of the votes alone, no label."""
Rule = Callable[..., object]
"""(rows, **options) → true, or anything that counts as true, to stop after the last of the rows."""

RULES: Registry[Rule] = Registry("stopping rule", functions=True)


def stop_step(rows: Rows, rule: str, options: Mapping[str, Any] | None = None) -> int | None:
    """After how many of these steps `rule` would have ended training; None where it never does.

    Raises:
        ConfigError: no rule has this name, or an option is not one of its own or out of its range.
    """
    stop = find_rule(rule, options)
    done = (done for done in range(1, len(rows) + 1) if stop(rows[:done], **(options or {})))
    return next(done, None)


def find_rule(rule: str, options: Mapping[str, Any] | None = None) -> Rule:
    """The rule of this name, its options checked.

    Raises:
        ConfigError: see `stop_step`.
    """
    found = RULES.get(rule)
    known = dict(list(inspect.signature(found).parameters.items())[1:])
    for option, value in (options or {}).items():
        if option not in known:
            raise ConfigError(f"The stopping rule {rule!r} has no option {option!r}.{did_you_mean(option, known)}")
        whole = isinstance(known[option].default, int)
        if rule in RULES and (not isinstance(value, int if whole else int | float) or value <= 0):
            kind = "a whole number" if whole else "a number"
            raise ConfigError(f"The option {option} of the stopping rule {rule!r} is {kind} above 0, found {value!r}.")
    return found


COLLAPSE = "collapse"
NO_ANSWER = 0.9
"""Share of samples without an answer from which on nearly all abstain: there is nothing to vote on, and nothing else to say."""

LEAST_WINNERS = 4
"""Winners that a step needs to say how different they are."""


def collapse_signs(
    rows: Rows, *, agreement: float = 0.3, copied: float = 0.6, flips: float = 0.2, distinct: float = 0.5
) -> dict[str, str]:
    """Warnings that the votes collapse, by the words that they begin with; as a rule, any of them ends the run.

    `stages.rl.give_back` then returns the weights of before RL. docs/voting.md has what each sign finds.

    Args:
        rows: Figures of each step of RL.
        agreement: Weak votes: mean share of the winner among the answers given in the first 3 steps below it. RESTRAIN (arXiv 2510.02172) gives no reward
            on a prompt whose most frequent answer has too small a share; here the same doubt is about the mean prompt.
        copied: Copies: mean `copied_winners` of the latest 2 steps at or above it.
        flips: Flips: mean `flip_rate` of the latest 5 steps that have one above it (TTRL-Guard, arXiv 2605.19444).
        distinct: Few answers: mean `distinct_winners` of the latest 3 steps below this share of the first 3 steps', of steps with at
            least 4 `winners`.
    """
    found = {}
    voted = [row for row in rows if row.get("majority_ratio") is not None][:3]
    silent = mean(figures(voted, "abstained")) >= NO_ANSWER
    shares = [row["majority_ratio"] / max(1e-9, 1.0 - row.get("abstained", 0.0)) for row in voted]
    if len(shares) == 3 and not silent and mean(shares) < agreement:
        found["The first votes were weak"] = (
            f": their winners had less than {agreement:.0%} of the answers. A majority that is mostly wrong teaches errors; try a "
            "stronger base, more votes or easier tasks. rl.stop_options.agreement is the threshold of rl.stop_rule=collapse."
        )
    copies = figures(rows, "copied_winners")[-2:]
    if len(copies) == 2 and mean(copies) >= copied:
        found["The winners copy the question"] = (
            f": {mean(copies):.0%} of those in the latest 2 steps are words or numbers of it. If answers never stand in their questions, the "
            "policy is learning to repeat: set env.kwargs.copies=false (math), or show it more examples. If they do, ignore this, and with "
            "rl.stop_rule=collapse set rl.stop_options.copied=2."
        )
    changes = figures(rows, "flip_rate")[-5:]
    if len(changes) > 1 and mean(changes) > flips:
        found["Possible collapse"] = (
            f": over {flips:.0%} of the revisited prompts changed their winner. Rising agreement is then no sign of accuracy; stop, or "
            "see docs/voting.md."
        )
    apart = figures([row for row in rows if row.get("winners", 0) >= LEAST_WINNERS], "distinct_winners")
    before, now = mean(apart[:3]), mean(apart[-3:])
    if len(apart) > 5 and now < distinct * before:
        found["The prompts collapse to few answers"] = (
            f": {before:.2f} different winners a prompt in the first steps, {now:.2f} in the latest. If their true answers differ, the "
            "policy is learning one answer for everything: stop, and lower rl.learning_rate or raise rl.kl_coef; see docs/voting.md."
        )
    return {start: start + rest for start, rest in found.items()}


RULES.register(COLLAPSE)(collapse_signs)


@RULES.register("entropy")
def spent_entropy(rows: Rows, *, window: int = 3, share: float = 0.25) -> bool:
    """Little is left to vote on: mean entropy of the answers in the latest `window` steps below `share` of the first.

    Reinforcement pays for accuracy with entropy and gains no more once it is spent (arXiv 2505.22617, of the tokens'
    entropy; here it is that of the answers to a prompt, which needs no log-probs). It saves steps where training goes well;
    a collapse spends entropy just so, and is not noticed.
    """
    entropies = figures(rows, "answer_entropy")
    return len(entropies) > window and mean(entropies[-window:]) < share * mean(entropies[:window])


def figures(rows: Rows, name: str) -> list[float]:
    """The figure of each step that has it."""
    return [float(row[name]) for row in rows if row.get(name) is not None]
