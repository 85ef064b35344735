"""The samples of one prompt, and what a voting strategy may know about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skill_ttrl.types import Group, Trajectory
from skill_ttrl.voting.history import PromptHistory
from skill_ttrl.voting.tally import Tally, tally


@dataclass(frozen=True, slots=True)
class Ballot:
    """All samples of one prompt, and what a strategy may know about them. None: not known."""

    answers: tuple[str | None, ...]
    prompt: str = ""
    """Id of the prompt."""
    logprobs: tuple[float, ...] | None = None
    """Log-probability (nats) of each whole sample under the policy that drew it: the sum over its tokens."""
    lengths: tuple[int, ...] | None = None
    """Sampled tokens of each sample."""
    views: tuple[int, ...] | None = None
    """Which wording each sample answered: 0 the question as given, 1 its paraphrase."""
    history: PromptHistory | None = None
    """Earlier votes of this prompt."""
    base_answers: tuple[str | None, ...] | None = None
    """What the policy before training answered to the same prompt, one entry for each of its samples."""
    seed: int | None = None
    """For random choices; each prompt draws its own from it."""
    prompts: int = 1
    """Prompts of the step that this one belongs to."""
    skipped: int = 0
    """Prompts of the step that were skipped before this one."""
    keys: tuple[str | None, ...] | None = None
    """Class of each answer (`answers.canonicals`), where it was looked up with those of other ballots."""

    def tally(self) -> Tally:
        """The answers, counted."""
        return tally(self.answers, self.keys)


def ballot_of(group: Group, **known: Any) -> Ballot:
    """Build the ballot of a group of rollouts.

    Log-probabilities are set where every rollout with text has them, views where there are two of them. `known` are further
    fields of the ballot: `history`, `base_answers`, `seed`.
    """
    rollouts = group.trajectories
    written = [_written(trajectory) for trajectory in rollouts]
    scored = any(tokens for _, tokens in written)
    views = tuple(trajectory.prompt_variant for trajectory in rollouts)
    return Ballot(
        answers=tuple(group.answers),
        prompt=group.task.id,
        logprobs=tuple(logprob for logprob, _ in written) if scored else None,
        lengths=tuple(tokens for _, tokens in written) if scored else None,
        views=views if any(views) else None,
        **known,
    )


def _written(trajectory: Trajectory) -> tuple[float, int]:
    """Log-probability and number of a rollout's own sampled tokens."""
    total, count = 0.0, 0
    for step in trajectory.steps:
        if step.completion is not None:
            mask = step.completion.completion_mask or (True,) * len(step.completion.logprobs)
            own = [value for value, sampled in zip(step.completion.logprobs, mask, strict=True) if sampled]
            total, count = total + sum(own), count + len(own)
    return total, count
