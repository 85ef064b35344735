"""What votes were before: flips, and the label-free signs of a collapse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from skill_ttrl.answers import canonical
from skill_ttrl.types import VoteResult
from skill_ttrl.voting.metrics import mean

FIRST_STEPS = 3
"""Steps whose mean agreement says how sure the base model is."""
LATEST_FLIPS = 5
"""Steps over which the flip rate is averaged."""
WEAK_AGREEMENT = 0.3
HIGH_FLIP_RATE = 0.2
"""Thresholds of the warnings, set between the two shipped examples: `docs/voting.md` has both courses."""


@dataclass
class VoteHistory:
    """Winners by prompt over the steps of a run: flips, and the label-free signs of a collapse.

    Consensus that rises because the policy sharpens what it knows leaves each prompt's winner where it was. In a collapse
    winners change when a prompt comes round again (TTRL-Guard, arXiv 2605.19444, calls this the flip rate).
    """

    winners: dict[str, str] = field(default_factory=dict)
    """Canonical winner of each prompt at its last vote."""
    first_agreements: list[float] = field(default_factory=list)
    """Mean agreement of the first steps."""
    latest_flips: list[float] = field(default_factory=list)
    """Flip rates of the latest steps that had one."""

    def record(self, votes: Mapping[str, VoteResult]) -> dict[str, float]:
        """Take in one step's votes by prompt id; gives the step's label-free figures.

        `agreement`: mean share of the winner (TTRL: majority_ratio). `abstained`: mean share of samples without an answer.
        `ties`: share of prompts with one. `distinct_winners`: different winners over prompts that have one. `flip_rate`:
        share of prompts seen before whose winner changed; absent where none was seen before.
        """
        keys = {prompt: canonical(vote.answer) for prompt, vote in votes.items()}
        won = {prompt: key for prompt, key in keys.items() if key is not None}
        seen = [prompt for prompt in won if prompt in self.winners]
        figures = {
            "agreement": mean([vote.agreement for vote in votes.values()]),
            "abstained": mean([vote.abstained / max(1, len(vote.matches)) for vote in votes.values()]),
            "ties": mean([float(vote.tie) for vote in votes.values()]),
        }
        if won:
            figures["distinct_winners"] = len(set(won.values())) / len(won)
        if seen:
            figures["flip_rate"] = mean([float(won[prompt] != self.winners[prompt]) for prompt in seen])
            self.latest_flips = [*self.latest_flips, figures["flip_rate"]][-LATEST_FLIPS:]
        if len(self.first_agreements) < FIRST_STEPS:
            self.first_agreements.append(figures["agreement"])
        self.winners.update(won)
        return figures

    def warnings(self) -> list[str]:
        """What the votes themselves say against trusting them; no label is looked at."""
        found = []
        if len(self.first_agreements) == FIRST_STEPS and mean(self.first_agreements) < WEAK_AGREEMENT:
            found.append(
                f"The first votes were weak: their winners had under {WEAK_AGREEMENT:.0%} of the samples. A majority that "
                "is mostly wrong teaches what is wrong; try a stronger base, more votes or easier tasks."
            )
        if len(self.latest_flips) > 1 and mean(self.latest_flips) > HIGH_FLIP_RATE:
            found.append(
                f"Possible collapse: over {HIGH_FLIP_RATE:.0%} of the prompts that came round again had another winner "
                "than before. Agreement that rises in this way is no sign of accuracy; stop, or see docs/voting.md."
            )
        return found

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> VoteHistory:
        """The history that `state_dict` described."""
        return cls(**state)
