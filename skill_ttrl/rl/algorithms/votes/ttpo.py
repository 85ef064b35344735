"""TTPO: imitate the samples that agree with the vote, and learn from the others by a tenth of GRPO (arXiv 2608.27448).

On hard prompts most labels are wrong, and yet most samples that disagree with them are wrong as well: the negative half of a vote is
the safe half. The paper's text was not at hand. From notes of it: L = sum over agreeing samples of a distillation loss + 0.1 times
the GRPO loss of the others. Inferred: that the distillation is the log-likelihood of the sample itself. It is expressed as an
advantage of 1, whose gradient at the policy that sampled is that of the log-likelihood; over further updates of the same batch the
clip of the loss bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from skill_ttrl.config import Section
from skill_ttrl.rl.advantages import group_advantages
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.group_relative.relative import by_step, relative_advantages

AGREEING = "ttpo_agreeing"
"""Metric: share of the samples that are imitated."""


class TTPOOptions(Section):
    """Options of TTPO."""

    distill_weight: float = Field(default=1.0, ge=0)
    """Advantage of a sample that agrees with the vote."""
    grpo_weight: float = Field(default=0.1, ge=0)
    """Factor of the GRPO advantage of a sample that does not."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the group's standard deviation."""


@ALGORITHMS.register("ttpo")
class TTPO:
    """See the module."""

    options_type: ClassVar[type[Section]] = TTPOOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[frozenset[Requirement]] = frozenset({"votes"})
    vote_strategies: ClassVar[frozenset[str]] = frozenset({"majority", "gated", "confidence", "harmonic"})

    def __init__(self, options: TTPOOptions) -> None:
        self.options = options

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step."""
        assert samples.votes is not None  # required
        agrees = [match for vote in samples.votes for match in vote.matches]
        base = relative_advantages(samples, partial(group_advantages, epsilon=self.options.epsilon))
        rows = [
            self._row(match, by_step(value, len(each.steps)))
            for match, value, each in zip(agrees, base, samples.trajectories, strict=True)
        ]
        return AdvantageEstimate(rows, metrics={AGREEING: sum(agrees) / len(agrees)} if agrees else {})

    def _row(self, agrees: bool, values: Sequence[float]) -> list[float]:
        if agrees:
            return [self.options.distill_weight] * len(values)
        return [self.options.grpo_weight * value for value in values]
