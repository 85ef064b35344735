"""The protocol of an algorithm: its inputs, its outputs and the registry."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from jaxtyping import Bool, Float
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.config.rl import build_from
from skill_ttrl.errors import EnvError
from skill_ttrl.registry import Registry
from skill_ttrl.rl.batch import Advantages, RolloutBatch
from skill_ttrl.types import Group, Trajectory, VoteResult

Requirement = Literal["votes", "episodes", "states", "critic", "greedy", "extra_rewards"]
"""An input that an algorithm cannot do without: rewarded votes (`rl.reward: majority`), rollouts of several steps, the exact state
before each step, a critic (`rl.critic`), a greedy rollout of each task, further rewards (`rl.extra_rewards`)."""


Rewards = Sequence[float] | Tensor
"""One number for each of N rollouts, or steps."""
Groups = Sequence[Hashable] | Tensor
"""The group of each: any hashable ids, or a tensor of integers (N,)."""


@dataclass(frozen=True)
class TrainingSamples:
    """The rollouts of one step that contribute to the loss. Further inputs of an algorithm become fields here."""

    groups: Sequence[Group]
    """Each trajectory carries its reward."""
    votes: Sequence[VoteResult] | None = None
    """The vote of each group, as it bears on these rollouts (`VoteResult.select`); None where votes are not rewarded."""
    invalid_action_penalty_coef: float = 0.0
    """Taken off the score of each step whose action was invalid."""
    batch: RolloutBatch | None = None
    """The same rollouts as tokens, with `scores_F`, `rewards_F` and `values_F`; None for texts without tokens."""
    voters: Sequence[Group] | None = None
    """All rollouts that voted on each group's task, those of the group among them (TTRL: 64, of which 32 are trained on); None where
    votes are not rewarded."""
    env_rewards: bool = False
    """The rewards are the environment's own (`rl.reward: env`); only then may an algorithm look at `Step.reward`."""
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of the further rewards that `Trajectory.rewards` holds by name (`rl.extra_rewards`); that of any other is 1."""
    main_reward: str = "majority"
    """Name of `rl.reward` among the rewards that `Trajectory.rewards` holds; it alone says whether a rollout is correct."""
    greedy_rewards: Sequence[float] | None = None
    """Reward of a greedy rollout of each group's task; None where no algorithm requires it."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """All of them, group after group (E)."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def rewards(self) -> list[float]:
        """Reward of each trajectory (E); 0 for one without a reward."""
        return [trajectory.reward or 0.0 for trajectory in self.trajectories]

    @property
    def owners(self) -> list[int]:
        """Position of the group of each trajectory (E)."""
        return [place for place, group in enumerate(self.groups) for _ in group.trajectories]

    @property
    def immediate_rewards(self) -> list[list[float]]:
        """Reward of each step of each trajectory, as it came: the environment's, or the trajectory's reward at its last step."""
        if self.env_rewards:
            return [[step.reward for step in each.steps] for each in self.trajectories]
        return [[0.0] * (len(each.steps) - 1) + [each.reward or 0.0] for each in self.trajectories]

    @property
    def states(self) -> list[list[str]]:
        """Exact state before each step of each trajectory, and that after its last (T + 1): `info["state"]`.

        Raises:
            EnvError: a step has none.
        """
        rows = []
        for each in self.trajectories:
            row = [each.start_state, *(step.info.get("state") for step in each.steps)]
            if not all(isinstance(state, str) and state for state in row):
                raise EnvError(
                    f'Task {each.task.id!r}: the environment does not name its state (info["state"]) at the start and with every '
                    "step, and the algorithm compares steps from one state."
                )
            rows.append([str(state) for state in row])
        return rows

    @property
    def step_scores(self) -> list[list[float]]:
        """Sum of `token_level_scores` of each step of each trajectory: its reward, less `invalid_action_penalty_coef` for an invalid action."""
        return self._by_step(self.rewards)

    @property
    def main_scores(self) -> list[list[float]]:
        """As `step_scores`, of `rl.reward` alone: without `rl.extra_rewards` and the length penalty."""
        return self._by_step([each.rewards.get(self.main_reward, each.reward or 0.0) for each in self.trajectories])

    def _by_step(self, rewards: Sequence[float]) -> list[list[float]]:
        """The reward of each step's trajectory (E), less the penalty of an invalid action."""
        return [
            [reward - self.invalid_action_penalty_coef * (step.action_status == "invalid") for step in each.steps]
            for each, reward in zip(self.trajectories, rewards, strict=True)
        ]

    @property
    def step_rewards(self) -> list[list[float]]:
        """Sum of `token_level_rewards` of each step of each trajectory: its score, less the KL penalty."""
        rows = self.step_scores
        if self.batch is not None:
            penalties_S = self.batch.sum_by_turn(self.batch.scores_F.double() - self.batch.rewards_F.double())
            for (trajectory, step), penalty in zip(self.batch.turn_places, penalties_S.tolist(), strict=True):
                rows[trajectory][step] -= penalty
        return rows


@dataclass(frozen=True, slots=True)
class AdvantageEstimate:
    """Advantages, and what came of them."""

    advantages: Advantages | Float[Tensor, " F"]
    """An entry for each trajectory, group after group, see `Advantages`; or one for each token of the flat batch."""
    returns_F: Float[Tensor, " F"] | None = None
    """Targets of the critic, where there is one."""
    trained_F: Bool[Tensor, " F"] | None = None
    """Tokens that are learnt from, where the algorithm drops some of them from the batch."""
    scores: Sequence[float] | None = None
    """Score of each trajectory, where the algorithm gives another than its reward: for the record."""
    metrics: Mapping[str, float] = field(default_factory=dict)


class Algorithm(Protocol):
    """How rewards become advantages.

    Its class is called with its options once a run, and says as attributes: `options_type`, the options with their defaults and checks
    (a pydantic model); and where that differs from `BuiltIn` the `defaults` that it brings for other keys of `rl`, what it `requires`, and
    the other attributes there. One that follows some voting strategies only names them in `vote_strategies`.
    """

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate | Advantages:
        """Estimate the advantages of one step's rollouts."""


class NoOptions(Section):
    """An algorithm without options."""


class BuiltIn:
    """Base of our algorithms: holds the options; a subclass states what differs."""

    options_type: ClassVar[type[Section]] = NoOptions
    option_defaults: ClassVar[Mapping[str, Any]] = {}
    """Options whose default is another than that of `options_type`."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Values of other keys of `rl` where a config sets none."""
    requires: ClassVar[frozenset[Requirement]] = frozenset()
    whitens: ClassVar[bool] = False
    """A step's advantages are shifted and scaled to mean 0 and variance 1 over its tokens (verl does it in the estimator)."""
    distinguishes_steps: ClassVar[bool] = True
    """The steps of an episode can have rewards of their own, and yet each episode weighs the same."""
    own_rewards: ClassVar[bool] = False
    """The votes alone decide its rewards."""

    def __init__(self, options: Any) -> None:
        self.options = options


ALGORITHMS: Registry[Any] = Registry("algorithm", key="rl.algorithm", confused_with="skill_ttrl.rl.losses:LOSSES")


def requirements(algorithm: object) -> frozenset[Requirement]:
    """The inputs that an algorithm, or a class of algorithms, cannot do without."""
    found: frozenset[Requirement] = getattr(algorithm, "requires", frozenset())
    return found


def build_algorithm(settings: Mapping[str, Any]) -> Algorithm:
    """Build the algorithm that `rl.algorithm` names.

    Args:
        settings: `type` (a registered name or `module:Class`) and that algorithm's options.

    Raises:
        ConfigError: there is no such algorithm, or an option is wrong.
    """
    built: Algorithm = build_from(ALGORITHMS, settings)
    return built
