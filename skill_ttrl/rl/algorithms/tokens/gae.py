"""PPO's advantages: generalised advantage estimation with a critic (arXiv 1506.02438; PPO: arXiv 1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import Field

from skill_ttrl.config import Section
from skill_ttrl.rl.advantages import compute_gae_advantage
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.tokens.reinforce import ReinforcePlusPlusOptions, tokens_of
from skill_ttrl.rl.algorithms.tokens.rows import TokenRows


class GAEOptions(ReinforcePlusPlusOptions):
    """Options of GAE."""

    lam: float = Field(default=1.0, ge=0, le=1)
    """Trace decay from a token to the next (verl: 1; PPO for RLHF: 0.95)."""
    step_lam: float | None = Field(default=None, ge=0, le=1)
    """Trace decay from a step's last token to the next step's first, with level `episode`; None: `lam`."""


@ALGORITHMS.register("ppo")
@ALGORITHMS.register("gae")
class GAE:
    """Advantages of the tokens over the values of a critic, whitened over the batch."""

    options_type: ClassVar[type[Section]] = GAEOptions
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({"whiten_advantages": True})
    requires: ClassVar[frozenset[Requirement]] = frozenset({"critic"})
    takes_shaped_votes = False

    def __init__(self, options: GAEOptions) -> None:
        self.options = options

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each token, and the returns that the critic learns from.

        Raises:
            ValueError: the batch has no values.
        """
        batch, options = tokens_of(samples), self.options
        if batch.values_F is None:
            raise ValueError("GAE needs the values of a critic (RolloutBatch.values_F).")
        rows = TokenRows.of(batch, options.level)
        found, returns = compute_gae_advantage(
            rows.rewards(batch, samples.rewards, options.level),
            rows.padded(batch.values_F),
            rows.mask_N_T,
            rows.per_token(options.gamma, options.step_gamma),
            rows.per_token(options.lam, options.step_lam),
        )
        length = len(batch.tokens_F)
        return AdvantageEstimate(rows.flat(found, length), returns_F=rows.flat(returns, length))
