"""EVOL-RL: the majority selects, novelty varies (arXiv 2509.15194). GRPO on the rewards of `rl.advantages.novelty`.

It brings the paper's upper clip of 0.28 and entropy bonus of 0.003. Two differences: novelty is measured among the samples that are
trained on, and unless an embedder is named, by the token n-grams of completions in place of Qwen3-Embedding-4B: no second
model is needed, and a paraphrase counts as novel.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.registry import import_attribute, naming
from skill_ttrl.rl.advantages import cosine_similarity, evol_rl_rewards, group_advantages, ngram_similarity
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Requirement, TrainingSamples
from skill_ttrl.rl.algorithms.group_relative.relative import relative_advantages, rescored
from skill_ttrl.types import Group, Trajectory, VoteResult

SIMILARITY = "evol_rl_similarity"
"""Metric: mean similarity of two samples of a prompt."""
Embedder = Callable[[Sequence[str]], Any]
"""Maps N texts onto vectors (N, D)."""


class EvolRLOptions(Section):
    """Options of EVOL-RL."""

    ngram: int = Field(default=3, ge=1)
    """Tokens of an n-gram, by which completions are compared where there is no embedder."""
    embedder: str | None = None
    """`module:function` from a list of texts to vectors (N, D), whose cosine is the similarity; None: n-grams."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the group's standard deviation."""


@ALGORITHMS.register("evol_rl")
class EvolRL:
    """See the module."""

    options_type: ClassVar[type[Section]] = EvolRLOptions
    defaults: ClassVar[Mapping[str, Any]] = {
        "loss": {"type": "ppo_clip", "clip_ratio_high": 0.28},
        "entropy_coef": 0.003,
    }
    own_rewards: ClassVar[bool] = True
    requires: ClassVar[frozenset[Requirement]] = frozenset({"votes"})
    vote_strategies: ClassVar[frozenset[str]] = frozenset({"majority", "gated", "confidence", "harmonic"})

    def __init__(self, options: EvolRLOptions) -> None:
        self.options = options
        self.embed: Embedder | None = import_attribute(options.embedder, "embedder") if options.embedder else None

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each trajectory; for each step where steps of an episode differ."""
        assert samples.votes is not None  # required
        found = [self._of_prompt(group, vote) for group, vote in zip(samples.groups, samples.votes, strict=True)]
        rewards = [reward for row, _ in found for reward in row]
        likeness = [value for _, value in found if value is not None]
        return AdvantageEstimate(
            relative_advantages(rescored(samples, rewards), partial(group_advantages, epsilon=self.options.epsilon)),
            scores=rewards,
            metrics={SIMILARITY: sum(likeness) / len(likeness)} if likeness else {},
        )

    def _of_prompt(self, group: Group, vote: VoteResult) -> tuple[list[float], float | None]:
        """(reward of each sample, mean similarity of two of them)."""
        if not group.trajectories:
            return [], None
        similarity_N_N = self._similarity(group)
        answered_N = np.array([answer is not None for answer in group.answers])
        count = len(answered_N)
        between = (similarity_N_N.sum() - np.trace(similarity_N_N)) / (count * (count - 1)) if count > 1 else None
        return evol_rl_rewards(similarity_N_N, np.array(vote.matches, dtype=bool), answered_N).tolist(), between

    def _similarity(self, group: Group) -> Any:
        if self.embed is None:
            return ngram_similarity([_tokens(each) for each in group.trajectories], self.options.ngram)
        with naming(f"The embedder {self.options.embedder!r}", f"at task {group.task.id!r}"):
            vectors_N_D = np.asarray(self.embed([each.text for each in group.trajectories]), dtype=np.float64)
        if vectors_N_D.ndim != 2 or len(vectors_N_D) != len(group.trajectories) or not np.isfinite(vectors_N_D).all():
            raise ConfigError(
                f"The embedder {self.options.embedder!r} must give finite vectors of shape ({len(group.trajectories)}, D), found "
                f"{vectors_N_D.shape}."
            )
        return cosine_similarity(vectors_N_D)


def _tokens(trajectory: Trajectory) -> Sequence[Hashable]:
    """The tokens that the model itself wrote, in all of its steps; its words where no tokens are known."""
    written: list[int] = []
    for step in trajectory.steps:
        if step.completion is not None:
            ids, mask = step.completion.token_ids, step.completion.completion_mask
            written += ids if mask is None else [token for token, own in zip(ids, mask, strict=True) if own]
    return written or trajectory.text.split()
