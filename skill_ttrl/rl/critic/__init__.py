"""The critic: values of tokens, and how they are learned."""

from skill_ttrl.rl.critic.critic import Critic
from skill_ttrl.rl.critic.value_loss import clipped_value_loss, compute_value_loss, explained_variance

__all__ = ["Critic", "clipped_value_loss", "compute_value_loss", "explained_variance"]
