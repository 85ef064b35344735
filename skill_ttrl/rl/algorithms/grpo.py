"""GRPO and its kind: rollouts of a group against each other, from rewards to advantages (arXiv 2402.03300).

Formulas first (`group_advantages` and what spreads it over steps and tokens), then the algorithms: GRPO and its variants, and RLOO with a leave-one-out baseline.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Literal, Protocol

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.config.rl import build_from
from skill_ttrl.errors import EnvError
from skill_ttrl.registry import Registry
from skill_ttrl.rl.batch import Advantages, RolloutBatch
from skill_ttrl.types import Group, Trajectory, VoteResult, equal_rewards

# The protocol of an algorithm: its inputs, its outputs and the registry.


Requirement = Literal["votes", "episodes", "states", "critic"]
"""An input that an algorithm cannot do without: rewarded votes (`rl.reward: majority`), rollouts of several steps, the exact state
before each step, a critic (`rl.critic`)."""


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
    env_rewards: bool = False
    """The rewards are the environment's own (`rl.reward: env`); only then may an algorithm look at `Step.reward`."""
    main_reward: str = "majority"
    """Name of `rl.reward` among the rewards that `Trajectory.rewards` holds; it alone says whether a rollout is correct."""

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
    metrics: Mapping[str, float] = field(default_factory=dict)


class Algorithm(Protocol):
    """How rewards become advantages.

    Its class is called with its options once a run, and says as attributes: `options_type`, the options with their defaults and checks
    (a pydantic model); and where that differs from `BuiltIn` the `defaults` that it brings for other keys of `rl`, what it `requires`, and
    the other attributes there. One that follows some voting strategies only names them in `vote_strategies`.
    """

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate | Advantages:
        """Estimate the advantages of one step's rollouts."""


class BuiltIn:
    """Base of our algorithms: holds the options; a subclass states what differs."""

    options_type: ClassVar[type[Section]] = Section
    option_defaults: ClassVar[Mapping[str, Any]] = {}
    """Options whose default is another than that of `options_type`."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Values of other keys of `rl` where a config sets none."""
    requires: ClassVar[frozenset[Requirement]] = frozenset()
    whitens: ClassVar[bool] = False
    """A step's advantages are shifted and scaled to mean 0 and variance 1 over its tokens (verl does it in the estimator)."""

    def __init__(self, options: Any) -> None:
        self.options = options


ALGORITHMS: Registry[Any] = Registry("algorithm")


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


AdvantageEstimator = Callable[..., Tensor]
"""`f(rewards, groups, episodes=None)`: advantages (N,) of rewards (N,) of these groups (N,). With `episodes`, the episode of each reward, it
distinguishes the steps of an episode and lets each episode weigh the same; one that cannot raises `ValueError`."""


def read_groups(rewards: Rewards, groups: Groups) -> tuple[Float[Tensor, " N"], list[list[int]]]:
    """Rewards in float64, and the positions of each group's members, in order of first appearance.

    Raises:
        ValueError: the lengths differ.
    """
    rewards_N = torch.as_tensor(rewards, dtype=torch.float64)
    keys: Sequence[Hashable] = groups.tolist() if isinstance(groups, Tensor) else groups
    if rewards_N.ndim != 1 or len(keys) != len(rewards_N):
        raise ValueError(
            f"Expected one group id for each reward, found {len(keys)} ids and rewards of shape "
            f"{tuple(rewards_N.shape)}."
        )
    members: dict[Hashable, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        members[key].append(position)
    return rewards_N, list(members.values())


def read_episodes(episodes: Sequence[Hashable] | None, count: int) -> Sequence[Hashable]:
    """Episode of each reward; without `episodes` each reward is that of a whole rollout.

    Raises:
        ValueError: not one episode for each of `count` rewards.
    """
    if episodes is None:
        return range(count)
    if len(episodes) != count:
        raise ValueError(f"Expected one episode for each of {count} rewards, found {len(episodes)}.")
    return episodes


EPSILON = 1e-6
"""Added to standard deviations (verl)."""


# Group-relative advantages: a rollout is compared with the other rollouts of the same task.
#
# DeepSeekMath (arXiv 2402.03300), section 4.1.2: A_i = (r_i - mean(r)) / std(r) within a group. The divisor is a choice
# (`RewardScale`): with none this is Dr. GRPO's advantage (arXiv 2503.20783).


RewardScale = Literal["group", "none"]
"""Divisor of a group's centred rewards: the group's standard deviation, or nothing (verl's `norm_adv_by_std_in_grpo: false`); TRL's
`scale_rewards`."""


def group_advantages(
    rewards: Rewards,
    groups: Groups,
    epsilon: float = EPSILON,
    episodes: Sequence[Hashable] | None = None,
    scale: RewardScale = "group",
) -> Float[Tensor, " N"]:
    """Reward minus its group's mean, over what `scale` names.

    Deviations are unbiased (n - 1). A group of one keeps its reward (mean 0, deviation 1), as in verl; in TRL it gets 0.
    A larger one whose rewards are all equal gets exactly 0.

    With `episodes` a reward is that of one step, and each of a group's E episodes weighs the same, however many of its T_i
    steps are here: mean = 1/E sum_i 1/T_i sum_t r_it, variance = 1/(E - 1) sum_i 1/T_i sum_t (r_it - mean)^2. Where all
    steps of an episode have the same reward this is the z-score over episodes. The variance within episodes is part of it, so
    that with `group` no advantage is beyond sqrt(T_i (E - 1)).

    Args:
        rewards: One for each of N rollouts, or steps.
        groups: Group of each; any hashable ids, or a tensor of integers (N,).
        epsilon: Added to the divisor (verl: 1e-6, TRL: 1e-4).
        episodes: Episode of each step, of one group only; None: each reward is that of a whole rollout.
        scale: The divisor.

    Returns:
        Advantages (N,), float32.

    Raises:
        ValueError: the lengths differ.
    """
    rewards_N, members = read_groups(rewards, groups)
    owners = read_episodes(episodes, len(rewards_N))
    weights_N = _weights(owners)
    advantages_N = torch.zeros_like(rewards_N)
    for positions in members:
        rewards_G, weights_G = rewards_N[positions], weights_N[positions]
        lone = len({owners[place] for place in positions}) == 1
        if not lone and equal_rewards(rewards_G.tolist()):
            continue
        mean = 0.0 if lone else _mean(rewards_G, weights_G)
        divisor = 1.0
        if scale == "group":
            divisor = (1.0 if lone else _deviation(rewards_G, weights_G)) + epsilon
        advantages_N[positions] = (rewards_G - mean) / divisor
    return advantages_N.to(dtype=torch.float32)


def _weights(owners: Sequence[Hashable]) -> Float[Tensor, " N"]:
    """1 over the number of its episode's steps, for each reward: the weights of an episode add up to 1."""
    steps = Counter(owners)
    return torch.tensor([1 / steps[owner] for owner in owners], dtype=torch.float64)


def _mean(rewards_G: Tensor, weights_G: Tensor) -> float:
    return float((weights_G * rewards_G).sum() / weights_G.sum())


def _deviation(rewards_G: Tensor, weights_G: Tensor) -> float:
    """Unbiased standard deviation, the weights counting the observations; 0 for a single one."""
    count = float(weights_G.sum())
    squares = weights_G * (rewards_G - _mean(rewards_G, weights_G)).square()
    return float((squares.sum() / max(round(count) - 1, 1)).sqrt())


def compute_grpo_advantage(
    rewards: Float[Tensor, " N"],
    response_mask: Float[Tensor, "N T"],
    prompt_ids: Sequence[Hashable] | Tensor,
    epsilon: float = EPSILON,
    scale: RewardScale = "group",
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """GRPO advantages spread over the tokens of each response.

    Args:
        rewards: One for each response (N,).
        response_mask: 1 at response tokens, 0 elsewhere (N, T).
        prompt_ids: Group of each response (N,): integers or any hashable ids.
        epsilon: Added to the divisor (verl: 1e-6).
        scale: See `group_advantages`.

    Returns:
        (advantages, returns), both (N, T) and 0 outside the mask. Without a critic the two are the same.
    """
    advantages_N = group_advantages(rewards, prompt_ids, epsilon, scale=scale).to(response_mask.device)
    advantages_N_T = advantages_N[:, None] * response_mask
    return advantages_N_T, advantages_N_T.clone()


# Advantages of the steps of episodes: all carry their episode's outcome, less penalties of their own.
#
# The reward of step t of episode i is s_it = R_i - p_it. What a group's mean and deviation are taken over is a choice:
#
# - `episode`: each episode weighs the same, however long it is. Without penalties this is GRPO over episodes.
# - `step`: each step does, so that long episodes weigh more: what verl-agent, and with it SkillRL, computes (every step is a
#   row of its batch, and mean and deviation are those of a group's rows).


GroupLevel = Literal["episode", "step"]


def step_advantages(
    outcomes: Sequence[float],
    rewards: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    estimate: AdvantageEstimator,
    level: GroupLevel = "episode",
) -> list[list[float]]:
    """Estimate the advantage of each step of E episodes.

    Args:
        outcomes: Outcome of each episode (E).
        rewards: Reward of each step of each episode. An episode without steps has its outcome in the mean over episodes, and no
            advantages.
        groups: Group of each episode (E).
        estimate: Advantages from rewards, such as `group_advantages`.
        level: What mean and deviation are taken over, see above.

    Returns:
        A row for each episode, with one advantage for each of its steps.
    """
    if not rewards:
        return []
    if level == "step":
        given = iter(estimate(*_flat(rewards, groups)).tolist()) if any(map(len, rewards)) else iter(())
        return _rows(given, rewards)
    counted = [row or [outcome] for row, outcome in zip(rewards, outcomes, strict=True)]
    if all(map(equal_rewards, counted)):
        whole = estimate([row[0] for row in counted], groups).tolist()
        return [[value] * len(row) for value, row in zip(whole, rewards, strict=True)]
    episodes = [number for number, row in enumerate(counted) for _ in row]
    found = _rows(iter(estimate(*_flat(counted, groups), episodes=episodes).tolist()), counted)
    return [values[: len(row)] for values, row in zip(found, rewards, strict=True)]


def _flat(scores: Sequence[Sequence[float]], groups: Sequence[Hashable]) -> tuple[list[float], list[Hashable]]:
    owners = [group for group, row in zip(groups, scores, strict=True) for _ in row]
    return [score for row in scores for score in row], owners


def _rows(values: Iterator[float], like: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(islice(values, len(row))) for row in like]


class LevelOptions(Section):
    """Options of algorithms that distinguish the steps of an episode."""

    level: GroupLevel = "episode"
    """Unit of a group's statistics where rollouts have several steps. `episode`: each episode weighs the same, however long it
    is. `step`: each step does, so that long ones weigh more (verl-agent, SkillRL)."""


class GroupRelative(BuiltIn):
    """An algorithm whose advantages come from rewards and groups alone; subclasses have `estimate`."""

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step where steps of an episode differ, else one for each trajectory, as the level says."""
        level = self.options.level if isinstance(self.options, LevelOptions) else "episode"
        return AdvantageEstimate(relative_advantages(samples, self.estimate, level))

    def estimate(self, rewards: Rewards, groups: Groups, episodes: Sequence[Hashable] | None = None) -> Tensor:
        """Estimate advantages (N,) from rewards (N,) of these groups (N,), or of the steps of these episodes (N,)."""
        raise NotImplementedError


def relative_advantages(
    samples: TrainingSamples, estimate: AdvantageEstimator, level: GroupLevel = "episode"
) -> Advantages:
    """Estimate advantages from `token_level_rewards`.

    Args:
        samples: Rollouts with rewards.
        estimate: Maps rewards and groups onto advantages.
        level: What a group's statistics are taken over (`step_advantages`).

    Returns:
        One for each trajectory, or where steps of an episode differ one for each step.
    """
    rows, owners = samples.step_rewards, samples.owners
    if level == "step" or not all(map(equal_rewards, rows)):
        return step_advantages(samples.rewards, rows, owners, estimate, level)
    rewards = [row[0] if row else reward for row, reward in zip(rows, samples.rewards, strict=True)]
    return list(estimate(rewards, owners).tolist()) if rewards else []


def add_step_advantages(
    samples: TrainingSamples, episodes: Advantages, steps: Sequence[float], weight: float = 1.0
) -> list[list[float]]:
    """Add advantages of steps to `weight` times those of their episodes.

    Args:
        samples: Rollouts with rewards.
        episodes: As `relative_advantages` gives them.
        steps: One for each step, trajectory after trajectory.
        weight: Of the episodes.

    Returns:
        A row for each trajectory, with one advantage for each of its steps.
    """
    given = iter(steps)
    return [
        [weight * value + next(given) for value in by_step(whole, len(each.steps))]
        for each, whole in zip(samples.trajectories, episodes, strict=True)
    ]


def by_step(value: Any, steps: int) -> Sequence[float]:
    """The advantage of each step of a trajectory, where `relative_advantages` may have given one for all."""
    return value if isinstance(value, Sequence) else [value] * steps


class GRPOOptions(LevelOptions):
    """Options of GRPO."""

    scale_rewards: RewardScale = "group"
    """Divisor of a group's centred rewards. `group`: the group's standard deviation. `none`: nothing (verl: `norm_adv_by_std_in_grpo:
    false`; Dr. GRPO's default)."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the divisor (verl: 1e-6, TRL: 1e-4)."""


@ALGORITHMS.register("grpo")
class GRPO(GroupRelative):
    """Reward minus its group's mean, over the group's standard deviation."""

    options_type: ClassVar[type[Section]] = GRPOOptions

    def estimate(self, rewards: Rewards, groups: Groups, episodes: Sequence[Hashable] | None = None) -> Tensor:
        """Estimate advantages (N,) from rewards (N,) of these groups (N,)."""
        return group_advantages(rewards, groups, self.options.epsilon, episodes, self.options.scale_rewards)


SEQUENCE_MEAN, SUM_OVER_HORIZON = "seq-mean-token-mean", "seq-mean-token-sum-norm"
VARIANTS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    # Dr. GRPO (arXiv 2503.20783): no deviation, token losses summed over a constant length, no KL term.
    "dr_grpo": ({"scale_rewards": "none"}, {"loss_aggregation": SUM_OVER_HORIZON, "kl_coef": 0.0}),
    # DAPO (arXiv 2503.14476): clip-higher, token mean, dynamic sampling, soft overlong penalty, no KL term and no dual clip.
    "dapo": (
        {},
        {
            "loss": {"type": "ppo_clip", "clip_ratio": 0.2, "clip_ratio_high": 0.28, "dual_clip": None},
            "loss_aggregation": "token-mean",
            "dynamic_sampling": 10,
            "overlong_penalty": 1.0,
            "kl_coef": 0.0,
        },
    ),
    # GSPO (arXiv 2507.18071): ratios of sequences, with the clips of its section 5.1.
    "gspo": (
        {},
        {
            "loss": {"type": "gspo", "clip_ratio": 3e-4, "clip_ratio_high": 4e-4},
            "loss_aggregation": SEQUENCE_MEAN,
        },
    ),
    # CISPO (arXiv 2506.13585): clipped importance weights.
    "cispo": ({}, {"loss": {"type": "cispo"}, "loss_aggregation": "token-mean"}),
}
"""GRPO with other defaults: of its options, and of other keys of `rl`."""

for _name, (_options, _brings) in VARIANTS.items():
    _variant: Any = type(_name, (GRPO,), {"option_defaults": _options, "defaults": _brings})
    ALGORITHMS.register(_name)(_variant)


# A leave-one-out baseline in place of the group's mean.


@ALGORITHMS.register("rloo")
class RLOO(GroupRelative):
    """Reward minus the mean of the others of its group: REINFORCE with a leave-one-out baseline (arXiv 2402.14740).

    A group of one has no others: its baseline is 0, as in verl (SkyRL: its advantage is 0). A group whose rewards are all equal
    gets exactly 0. With `episodes`, a reward is that of one step, and the baseline is the mean over the other episodes, each of
    which weighs the same.
    """

    def estimate(
        self, rewards: Rewards, groups: Groups, episodes: Sequence[Hashable] | None = None
    ) -> Float[Tensor, " N"]:
        """Estimate advantages (N,) of rewards (N,) of these groups (N,), or of the steps of these episodes (N,)."""
        rewards_N, members = read_groups(rewards, groups)
        owners = read_episodes(episodes, len(rewards_N))
        advantages_N = rewards_N.clone()
        for positions in members:
            rewards_G = rewards_N[positions]
            names = [owners[place] for place in positions]
            numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
            if len(numbers) == 1:
                continue
            if equal_rewards(rewards_G.tolist()):
                advantages_N[positions] = 0.0
                continue
            episode_G = torch.tensor([numbers[name] for name in names])
            sums_E = torch.zeros(len(numbers), dtype=torch.float64).index_add(0, episode_G, rewards_G)
            means_E = sums_E / torch.bincount(episode_G)
            baseline_E = (means_E.sum() - means_E) / (len(numbers) - 1)
            advantages_N[positions] = rewards_G - baseline_E[episode_G]
        return advantages_N.float()
