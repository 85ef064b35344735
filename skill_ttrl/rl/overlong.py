"""DAPO's treatment of overlong responses: a soft penalty on the reward, and a filter of truncated samples (arXiv 2503.14476, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from skill_ttrl.config.rl import OverlongConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.types import Group, Trajectory


def length_penalty(length: int, limit: int, buffer: int, factor: float) -> float:
    """Penalty of a response, at most 0 (equation 13): it begins where `buffer` tokens are left and reaches -`factor` at the limit.

    Args:
        length: Sampled tokens.
        limit: Longest possible response.
        buffer: Tokens before the limit, at least 1.
        factor: Penalty at the limit.
    """
    excess = length - (limit - buffer)
    return -factor * min(max(excess / buffer, 0.0), 1.0)


def overlong_penalties(group: Group, settings: OverlongConfig, limit: int) -> list[float]:
    """Penalty of each rollout: that of its longest response. `limit`: `rollout.max_new_tokens`."""
    buffer = min(settings.buffer or max(limit // 5, 1), limit)

    def longest(trajectory: Trajectory) -> int:
        return max((step.completion.num_sampled_tokens for step in trajectory.steps if step.completion), default=0)

    return [length_penalty(longest(each), limit, buffer, settings.factor) for each in group.trajectories]


def truncated_turns(batch: RolloutBatch, trajectories: Sequence[Trajectory]) -> Bool[Tensor, " S"]:
    """Turns whose completion ended at the token limit.

    Args:
        batch: S turns.
        trajectories: The rollouts that were packed into it, group after group.
    """
    done = [trajectories[number].steps[step].completion for number, step in batch.turn_places]
    return torch.tensor([each is not None and each.finish_reason == "length" for each in done], dtype=torch.bool)


def without_truncated(batch: RolloutBatch, trajectories: Sequence[Trajectory]) -> tuple[RolloutBatch, dict[str, float]]:
    """Take truncated responses out of the loss and its means; advantages of the others stay as they are.

    Returns:
        (batch, metrics): `filtered_overlong`, the share of turns.
    """
    truncated_S = truncated_turns(batch, trajectories)
    trained_F = batch.trained_F & ~truncated_S[batch.turn_F]
    metrics = {"filtered_overlong": float(truncated_S.float().mean()) if len(batch) else 0.0}
    return replace(batch, trained_F=trained_F, advantages_F=batch.advantages_F * trained_F), metrics
