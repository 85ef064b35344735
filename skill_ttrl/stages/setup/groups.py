"""Groups that are too small to learn from, refused with the reason before anything is sampled."""

from __future__ import annotations

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError

VOTED = "majority"


def check_groups(config: SkillTTRLConfig) -> None:
    """Check that a vote has more than one voter, and that the algorithm can learn from groups of the trained size.

    Raises:
        ConfigError: each sample would win its own vote, or every advantage would be 0.
    """
    rollout, rl = config.rollout, config.rl
    if not {"rl", "vote_sft"} & {*config.phases}:
        return
    if rollout.n_votes_per_prompt == 1 and VOTED in (rl.reward, *rl.extra_rewards):
        raise ConfigError(
            f"The reward {VOTED} needs several votes, but rollout.n_votes_per_prompt is 1, and a single vote always agrees with "
            "itself. Raise it (TTRL: 64), or set another rl.reward."
        )
    if "rl" in config.phases and rollout.n_samples_per_prompt == 1 and not _learns_from_one(config):
        raise ConfigError(
            f"rl.algorithm={rl.algorithm['type']} compares the samples of a group, but rollout.n_samples_per_prompt is 1, so every "
            "advantage would be 0. Raise it, or set rl.algorithm=reinforce_plus_plus."
        )


def _learns_from_one(config: SkillTTRLConfig) -> bool:
    """Tell whether a group of one sample has an advantage, asking the algorithm where that follows from the rewards alone."""
    from skill_ttrl.rl.algorithms import GroupRelative, build_algorithm

    algorithm = build_algorithm(config.rl.algorithm)
    return not isinstance(algorithm, GroupRelative) or bool(algorithm.estimate([1.0, 0.0], [0, 1]).any())
