"""GRPO: advantages within a group of rollouts of one task (arXiv 2402.03300), and a clipped surrogate loss.

Estimator and loss are exchangeable (`ADVANTAGES`, `LOSSES`). Steps of an episode may differ (`advantages.episodes`), and a
vote may shape the advantages of its prompt (`advantages.shaping`).
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import RLConfig, Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.advantages import ADVANTAGES, is_stepwise, shape_advantages, step_advantages
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, LossInputs, TrainingSamples
from skill_ttrl.rl.batch import Advantages
from skill_ttrl.rl.losses import LOSSES, ZERO_WITHOUT_ADVANTAGE, AggregationMode


class GRPOOptions(Section):
    """The fields of `RLConfig` of the same names, with their defaults."""

    advantage: str = "grpo"
    advantage_epsilon: float = Field(default=1e-6, gt=0)
    group_statistics: Literal["episodes", "steps"] = "episodes"
    invalid_penalty: float = Field(default=0.0, ge=0)
    loss: str = "ppo_clip"
    clip_ratio: float = Field(default=0.2, gt=0)
    clip_ratio_high: float | None = Field(default=None, gt=0)
    dual_clip: float | None = Field(default=3.0, gt=1)
    loss_aggregation: AggregationMode = "token-mean"

    @classmethod
    def from_settings(cls, rl: RLConfig) -> Self:
        """Take the options from the flat keys of the `rl` section."""
        return cls(**{name: getattr(rl, name) for name in cls.model_fields})

    @property
    def by_steps(self) -> bool:
        """The advantage of a step depends on more than its episode's reward."""
        return self.group_statistics == "steps" or self.invalid_penalty > 0


@ALGORITHMS.register("grpo")
class GRPO:
    """See the module.

    Raises:
        ConfigError: there is no such estimator or loss.
    """

    options_type: ClassVar[type[Section]] = GRPOOptions

    def __init__(self, options: GRPOOptions) -> None:
        self.options = options
        self._estimate = ADVANTAGES.get(options.advantage)
        self._loss = LOSSES.get(options.loss)

    @property
    def zero_without_advantage(self) -> bool:
        """See `Algorithm`."""
        return self.options.loss in ZERO_WITHOUT_ADVANTAGE

    def advantages(self, samples: TrainingSamples) -> Advantages:
        """One for each step where steps of an episode can differ, else one for each trajectory, shaped by its vote."""
        options, rewards, owners = self.options, samples.rewards, samples.owners
        epsilon = options.advantage_epsilon
        if options.by_steps:
            penalty = options.invalid_penalty
            steps = [each.steps for each in samples.trajectories]
            penalties = [[penalty * (step.verdict == "invalid") for step in row] for row in steps]
            return step_advantages(rewards, penalties, owners, self._estimate, epsilon, options.group_statistics)
        values = self._estimate(rewards, owners, epsilon).tolist() if rewards else []
        if samples.votes is None:
            return values
        given = iter(values)
        rows = [[next(given) for _ in group.trajectories] for group in samples.groups]
        shaped = [
            shape_advantages(vote, row, self._estimate, epsilon) for vote, row in zip(samples.votes, rows, strict=True)
        ]
        return [value for row in shaped for value in row]

    def loss(self, inputs: LossInputs) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """The loss of the options' name."""
        options = self.options
        return self._loss(
            inputs.log_probs,
            inputs.old_log_probs,
            inputs.advantages,
            inputs.response_mask,
            clip_ratio=options.clip_ratio,
            clip_ratio_high=options.clip_ratio_high,
            dual_clip=options.dual_clip,
            loss_agg_mode=options.loss_aggregation,
            denominators=inputs.denominators,
        )


def check_advantage(rl: RLConfig, *, vote_strategy: str, projection: str) -> None:
    """Check that `rl.advantage` exists and can do what is asked of the steps of an episode.

    Args:
        rl: The settings.
        vote_strategy: `vote.strategy`; all but `majority` shape the advantages of whole rollouts.
        projection: `agent.projection`; with `none` no action is ever invalid.

    Raises:
        ConfigError: it does not exist or cannot.
    """
    estimate = ADVANTAGES.get(rl.advantage)
    if not GRPOOptions.from_settings(rl).by_steps:
        return
    asked = f"rl.group_statistics={rl.group_statistics} with rl.invalid_penalty={rl.invalid_penalty:g}"
    if rl.reward == "majority" and vote_strategy != "majority":
        raise ConfigError(
            f"{asked} is about single steps, but vote.strategy={vote_strategy} shapes the advantages of whole tries. "
            "Take vote.strategy=majority, or rl.group_statistics=episodes and rl.invalid_penalty=0."
        )
    if rl.group_statistics == "episodes" and not is_stepwise(estimate):
        raise ConfigError(
            f"{asked}: the advantage {rl.advantage!r} does not take `episodes`, so it cannot penalise single steps and "
            "let each episode weigh the same. Take rl.group_statistics=steps, rl.invalid_penalty=0, or rl.advantage=grpo."
        )
    if rl.invalid_penalty and projection == "none":
        raise ConfigError(
            f"rl.invalid_penalty={rl.invalid_penalty:g}, but with agent.projection=none no action is ever found invalid. "
            "Set agent.projection=action, or rl.invalid_penalty=0."
        )
