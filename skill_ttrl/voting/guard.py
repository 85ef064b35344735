"""TTRL-Guard (arXiv 2605.19444, §3.2 to §3.4): prompts whose winner changes count less, and minorities stay alive for a while.

FR is 1 where the winner differs from the prompt's vote before, else 0; MR is the majority ratio, its mean taken over the
latest `window` votes, this one included.

- FRS, the weight of the prompt's advantages: w = 1 - 0.5 FR; x 0.7 where MR > 0.6 and FR = 1; x 0.85 where the prompt
  never flipped, has `window` votes, mean MR > 0.6, and this has fired fewer than `window` times; at least 0.1.
- RCSU, skips: a prompt that flipped once, has `window` votes and mean MR > `risk_ratio` is skipped with
  `skip_probability`, in at most max(1, ⌊`skip_share` x prompts⌋) prompts of a step.
- MPS, the bonus of minorities, from a flip until `quiet_steps` votes without one: each sample of a class with at least
  max(1, ⌊n/4⌋) votes that did not win gets beta x votes / (votes of all such classes), in units of the mean |A| of the
  prompt after FRS. As published, beta x FR: so in the step of the flip alone. `hold_bonus` keeps it in the quiet
  steps too.
"""

from __future__ import annotations

import math
import random

from skill_ttrl.answers import bare_key
from skill_ttrl.types import VoteResult, derive_seed
from skill_ttrl.voting.ballot import Ballot
from skill_ttrl.voting.history import KEPT_RATIOS, STABLE, PromptHistory
from skill_ttrl.voting.metrics import mean
from skill_ttrl.voting.strategies import check_range, shaping, strategy
from skill_ttrl.voting.tally import Tally

FLIP, HIGH_RISK, MINORITY = "flip", "high_risk", "minority"
"""Flags: the winner changed; competed and then locked in; minorities are protected."""
HIGH_RATIO = 0.6
"""Majority ratio above which a vote is sure of itself (tau_MR)."""
SMALLEST_WEIGHT = 0.1
EXTRA_LOSS, STABLE_LOSS = 0.3, 0.15
"""Reductions of the weight where a confident vote flipped (lambda2), and where one never did (half of it)."""
FIRST_TERM = 0.5
"""Reduction for a flip (lambda1)."""


@strategy("guard", "history", "seed")
@shaping
def guard(
    ballot: Ballot,
    *,
    window: int = 5,
    risk_ratio: float = 0.7,
    skip_probability: float = 0.7,
    skip_share: float = 0.25,
    beta: float = 0.3,
    quiet_steps: int = 3,
    hold_bonus: bool = False,
) -> VoteResult:
    """The majority, with three guards against a collapse (TTRL-Guard, arXiv 2605.19444, §3.2 to §3.4).

    See the module for FR, FRS, RCSU and MPS.

    Args:
        ballot: With `history` and `seed`.
        window: W, votes.
        risk_ratio: theta_MR (0.5 in the published script for Qwen2.5-7B).
        skip_probability: p_skip.
        skip_share: Largest share of a step's prompts that is skipped.
        beta: Size of the bonus.
        quiet_steps: Votes without a flip after which minorities are left alone.
        hold_bonus: See above.

    Raises:
        ConfigError: an option is out of its range.
    """
    check_range(window, "window", 1, KEPT_RATIOS, whole=True)
    check_range(risk_ratio, "risk_ratio", 0, 1)
    check_range(skip_probability, "skip_probability", 0, 1)
    check_range(skip_share, "skip_share", 0, 1)
    check_range(beta, "beta", 0)
    check_range(quiet_steps, "quiet_steps", 1, whole=True)
    assert ballot.history is not None and ballot.seed is not None  # `vote` has looked
    counted = ballot.tally()
    past = ballot.history
    held = counted.result()
    now = past.after(held)
    flipped = now.flips > past.flips
    sure = mean(now.ratios[-window:]) if now.votes >= window else 0.0
    stable = not now.flips and sure > HIGH_RATIO and past.fired < window
    risky = bool(now.flips) and sure > risk_ratio
    minority = bool(now.flips) and now.quiet < quiet_steps
    flags = {FLIP: flipped, STABLE: stable, HIGH_RISK: risky, MINORITY: minority}
    return counted.result(
        weight=_weight(flipped, stable, held.majority_ratio),
        bonus=_bonus(counted, now, beta) if minority and (flipped or hold_bonus) else (),
        skipped=risky and _skips(ballot, skip_probability, skip_share),
        flags=tuple(flag for flag, is_set in flags.items() if is_set),
    )


def _weight(flipped: bool, stable: bool, agreement: float) -> float:
    """FRS: the weight of the prompt's advantages."""
    weight = 1.0 - FIRST_TERM * flipped
    if flipped and agreement > HIGH_RATIO:
        weight *= 1 - EXTRA_LOSS
    if stable:
        weight *= 1 - STABLE_LOSS
    return max(SMALLEST_WEIGHT, weight)


def _skips(ballot: Ballot, probability: float, share: float) -> bool:
    """RCSU: skip a prompt at risk, in at most `share` of a step's prompts."""
    assert ballot.seed is not None
    drawn = random.Random(derive_seed(ballot.seed, "guard-skip", ballot.prompt)).random() < probability
    return drawn and ballot.skipped < max(1, math.floor(share * ballot.prompts))


def _bonus(counted: Tally, now: PromptHistory, beta: float) -> tuple[float, ...]:
    """Bonus added to each sample's advantage, in units of the prompt's mean |A|; empty where there is no minority."""
    enough = max(1, len(counted.keys) // 4)
    minorities = {key: count for key, count in counted.votes.items() if count >= enough and bare_key(key) != now.winner}
    total = sum(minorities.values())
    return tuple(beta * minorities.get(key or "", 0) / total for key in counted.keys) if total else ()
