"""An algorithm that learns from the votes themselves: TTPO."""

from __future__ import annotations

from pydantic import Field

from skill_ttrl.config import Section
from skill_ttrl.rl.algorithms.grpo import (
    ALGORITHMS,
    AdvantageEstimate,
    BuiltIn,
    TrainingSamples,
    by_step,
    group_advantages,
    relative_advantages,
)

REWARDING = frozenset({"majority", "confidence"})
"""Voting strategies that it can follow."""


# TTPO: imitate the samples that agree with the vote, and learn from the others by a tenth of GRPO (arXiv 2608.27448).
#
# On hard prompts most labels are wrong, and yet most samples that disagree with them are wrong as well: the negative half of a vote is
# the safe half. The paper's text was not at hand. From notes of it: L = sum over agreeing samples of a distillation loss + 0.1 times
# the GRPO loss of the others. Inferred: that the distillation is the log-likelihood of the sample itself. It is expressed as an
# advantage of 1, whose gradient at the policy that sampled is that of the log-likelihood; over further updates of the same batch the
# clip of the loss bounds it.


AGREEING = "ttpo_agreeing"
"""Metric: share of the samples that are imitated."""


class TTPOOptions(Section):
    """Options of TTPO."""

    distill_weight: float = Field(default=1.0, ge=0)
    """Advantage of a sample that agrees with the vote."""
    grpo_weight: float = Field(default=0.1, ge=0)
    """Factor of the GRPO advantage of a sample that does not."""


@ALGORITHMS.register("ttpo")
class TTPO(BuiltIn):
    """Imitates the samples that agree with the vote, and learns a little from the others."""

    options_type = TTPOOptions
    requires = frozenset({"votes"})
    vote_strategies = REWARDING

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step."""
        assert samples.votes is not None  # required
        agrees = [match for vote in samples.votes for match in vote.matches]
        base = relative_advantages(samples, group_advantages)
        weight, imitated = self.options.grpo_weight, self.options.distill_weight
        rows = [
            [imitated if match else weight * each for each in by_step(value, len(rollout.steps))]
            for match, value, rollout in zip(agrees, base, samples.trajectories, strict=True)
        ]
        return AdvantageEstimate(rows, metrics={AGREEING: sum(agrees) / len(agrees)} if agrees else {})
