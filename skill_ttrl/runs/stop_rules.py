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

Rows = Sequence[Mapping[str, Any]]
"""Figures of each step, oldest first. Rules read `majority_ratio`, `answer_entropy` and `flip_rate`: no label."""
Rule = Callable[..., bool]
"""(rows, **options) → whether to stop after the last of the rows."""

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


@RULES.register("majority_ratio")
def weak_agreement(rows: Rows, *, window: int = 3, threshold: float = 0.3) -> bool:
    """The winners have too few of the votes to be trusted: mean majority ratio of the latest `window` steps below `threshold`.

    RESTRAIN (arXiv 2510.02172) gives no reward on a prompt whose most frequent answer has a share below its kappa; here
    the same doubt about the mean prompt ends the run. Agreement that *rises* is no sign of anything: it rises in a
    collapse too.
    """
    shares = _figures(rows, "majority_ratio")[-window:]
    return len(shares) == window and _mean(shares) < threshold


@RULES.register("flip_rate")
def many_flips(rows: Rows, *, window: int = 5, threshold: float = 0.2, at_least: int = 2) -> bool:
    """Winners change: mean flip rate of the latest `window` steps that have one above `threshold`.

    TTRL-Guard (arXiv 2605.19444) calls a prompt's flips the mark of a vote that is not to be trusted, over windows of 5. A
    step has a flip rate once a prompt comes round again, so the first epoch passes unseen; `at_least` so many steps must
    have one.
    """
    rates = _figures(rows, "flip_rate")[-window:]
    return len(rates) >= at_least and _mean(rates) > threshold


@RULES.register("entropy")
def spent_entropy(rows: Rows, *, window: int = 3, share: float = 0.25) -> bool:
    """Little is left to vote on: mean entropy of the answers in the latest `window` steps below `share` of the first.

    Reinforcement pays for accuracy with entropy and gains no more once it is spent (arXiv 2505.22617, of the tokens'
    entropy; here it is that of the answers to a prompt, which needs no log-probs). It saves steps where training goes well;
    a collapse spends entropy just so, and is not noticed.
    """
    entropies = _figures(rows, "answer_entropy")
    return len(entropies) > window and _mean(entropies[-window:]) < share * _mean(entropies[:window])


def _figures(rows: Rows, name: str) -> list[float]:
    """The figure of each step that has it."""
    return [float(row[name]) for row in rows if row.get(name) is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
