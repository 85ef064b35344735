"""History of the votes: flips and each prompt's past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from skill_ttrl.answers import bare_key, canonical
from skill_ttrl.types import VoteResult
from skill_ttrl.voting.tally import mean, tally


@dataclass(frozen=True, slots=True)
class _Course:
    """The winners of one prompt so far."""

    winner: str | None = None
    """Canonical form of the latest winner; None where there was none yet."""
    returns: int = 0
    """Votes that had a winner to be compared with an earlier one."""
    flips: int = 0
    """Returns whose winner differed from the one before."""


@dataclass
class VoteHistory:
    """Winners by prompt over the steps of a run. What its figures say of a collapse is in `runs.stop_rules.collapse_signs`."""

    base_answers: dict[str, list[str | None]] = field(default_factory=dict)
    """Answers of the policy before training to each prompt, where the strategy needs them."""
    prompts: dict[str, _Course] = field(default_factory=dict)
    """The winners of each prompt."""

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
        old = {prompt: self.prompts.get(prompt, _Course()) for prompt in votes}
        seen = [prompt for prompt in won if old[prompt].winner is not None]
        figures = {
            "majority_ratio": mean([vote.majority_ratio for vote in votes.values()]),
            "abstained": mean([vote.abstained / max(1, len(vote.matches)) for vote in votes.values()]),
            "ties": mean([float(vote.tie) for vote in votes.values()]),
        }
        if won:
            figures |= {"winners": float(len(won)), "distinct_winners": len(set(won.values())) / len(won)}
        if seen:
            figures["flip_rate"] = mean([float(won[prompt] != old[prompt].winner) for prompt in seen])
        if known := [prompt for prompt in votes if prompt in self.base_answers and votes[prompt].classes]:
            figures["left_base"] = mean([float(self._left_base(prompt, votes[prompt])) for prompt in known])
        for prompt, key in won.items():  # a vote without a winner leaves the one before, and flips nothing
            before = old[prompt]
            flipped = before.winner is not None and key != before.winner
            self.prompts[prompt] = _Course(key, before.returns + (before.winner is not None), before.flips + flipped)
        courses = [self.prompts[prompt] for prompt in votes if prompt in self.prompts]
        rates = [course.flips / course.returns for course in courses if course.returns]
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
        prompts = {prompt: _Course(**saved) for prompt, saved in state["prompts"].items()}
        return cls(base_answers=state["base_answers"], prompts=prompts)
