"""History of the votes: flips and each prompt's past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from skill_ttrl.answers import bare_key, canonical
from skill_ttrl.types import VoteResult
from skill_ttrl.voting.tally import mean, tally

KEPT_RATIOS = 20
"""Latest majority ratios stored for each prompt (TTRL-Guard: 20)."""
STABLE = "stable"
"""Flag of a vote in which TTRL-Guard's weight for prompts that never flipped fired; it fires a limited number of times."""


@dataclass(frozen=True, slots=True)
class PromptHistory:
    """The votes of one prompt so far, as TTRL-Guard (arXiv 2605.19444) looks at them."""

    votes: int = 0
    """Number of votes."""
    winner: str | None = None
    """Canonical form of the latest winner; None where there was none yet."""
    ratios: tuple[float, ...] = ()
    """Majority ratios of the latest votes, oldest first, at most `KEPT_RATIOS`."""
    returns: int = 0
    """Votes that had a winner to be compared with an earlier one."""
    flips: int = 0
    """Returns whose winner differed from the one before."""
    quiet: int = 0
    """Votes since the latest flip; of one that never flipped, all its votes."""
    fired: int = 0
    """Times that the weight for prompts that never flipped has fired (`STABLE`)."""

    @property
    def flip_rate(self) -> float | None:
        """Flips over returns, in [0, 1]; None before the first return."""
        return self.flips / self.returns if self.returns else None

    def after(self, vote: VoteResult) -> PromptHistory:
        """The history with one vote more. An empty vote leaves the winner as it was and flips nothing."""
        winner = bare_key(canonical(vote.answer))
        returned = winner is not None and self.winner is not None
        flipped = returned and winner != self.winner
        return PromptHistory(
            votes=self.votes + 1,
            winner=self.winner if winner is None else winner,
            ratios=(*self.ratios, vote.majority_ratio)[-KEPT_RATIOS:],
            returns=self.returns + returned,
            flips=self.flips + flipped,
            quiet=0 if flipped else self.quiet + 1,
            fired=self.fired + (STABLE in vote.flags),
        )


@dataclass
class VoteHistory:
    """Winners by prompt over the steps of a run. What its figures say of a collapse is in `runs.stop_rules.collapse_signs`."""

    base_answers: dict[str, list[str | None]] = field(default_factory=dict)
    """Answers of the policy before training to each prompt, where the strategy needs them."""
    prompts: dict[str, PromptHistory] = field(default_factory=dict)
    """The votes of each prompt."""

    def of(self, prompt: str) -> PromptHistory:
        """Return the history of one prompt."""
        return self.prompts.get(prompt, PromptHistory())

    def record(self, votes: Mapping[str, VoteResult]) -> dict[str, float]:
        """Take in one step's votes by prompt id; gives the step's label-free figures.

        `majority_ratio` (TTRL): mean share of the winner. `abstained`: mean share of samples without an answer. `ties`: share
        of prompts with one. `winners`: prompts that have one. `distinct_winners`: different ones over that. `flip_rate`: share of prompts
        seen before whose winner changed. `prompt_flip_rate`: mean over the step's prompts of each one's flips over its
        returns in the whole run. The last two are absent where no prompt was seen before. `left_base`: share of prompts whose
        majority differs from that before training; absent where that is not known.
        """
        keys = {prompt: bare_key(canonical(vote.answer)) for prompt, vote in votes.items()}
        won = {prompt: key for prompt, key in keys.items() if key is not None}
        seen = [prompt for prompt in won if self.of(prompt).winner is not None]
        figures = {
            "majority_ratio": mean([vote.majority_ratio for vote in votes.values()]),
            "abstained": mean([vote.abstained / max(1, len(vote.matches)) for vote in votes.values()]),
            "ties": mean([float(vote.tie) for vote in votes.values()]),
        }
        if won:
            figures |= {"winners": float(len(won)), "distinct_winners": len(set(won.values())) / len(won)}
        if seen:
            figures["flip_rate"] = mean([float(won[prompt] != self.of(prompt).winner) for prompt in seen])
        if known := [prompt for prompt in votes if prompt in self.base_answers and votes[prompt].classes]:
            figures["left_base"] = mean([float(self._left_base(prompt, votes[prompt])) for prompt in known])
        self.prompts.update({prompt: self.of(prompt).after(vote) for prompt, vote in votes.items()})
        rates = [rate for prompt in votes if (rate := self.prompts[prompt].flip_rate) is not None]
        if rates:
            figures["prompt_flip_rate"] = mean(rates)
        return figures

    def _left_base(self, prompt: str, vote: VoteResult) -> bool:
        """Tell whether the samples' largest class is not a largest one of the answers before training."""
        before = tally(self.base_answers[prompt])
        largest = bare_key(canonical(vote.classes[0][0]))
        counts = {bare_key(key): count for key, count in before.votes.items()}
        return counts.get(largest, 0) < max(counts.values(), default=0)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> VoteHistory:
        """Restore what `state_dict` gave."""
        prompts = {
            prompt: PromptHistory(**{**saved, "ratios": tuple(saved["ratios"])})
            for prompt, saved in state["prompts"].items()
        }
        return cls(base_answers=state["base_answers"], prompts=prompts)
