"""Rewards: what each try of a group earns. The one door from answers to the learner.

Label-free rewards are made without access to true answers: `build_reward` hands `references` to the `label` control and to
nothing else, and the tasks inside the groups carry none (`Task.without_ground_truth`). A reward of your own is
`module:function`, a function from one `Group` to one number for each of its trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from skill_ttrl.answers import compute_reward, extract, grade_answer, satisfied
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.registry import Registry, import_attribute, naming
from skill_ttrl.types import Group, VoteResult, derive_seed
from skill_ttrl.voting.strategies import compute_voting_rewards, mean, tally

Reward = Callable[[Group, VoteResult, int], Sequence[float]]
"""(group, its vote, seed) → one reward for each trajectory, in order."""

LARGEST_REWARD = 1e15
"""Largest magnitude of a reward: the squares that a group's deviation sums must stay within float32 (3.4e38)."""

REWARDS: Registry[Reward] = Registry("reward")
CONTROLS = ("random", "format")
"""Rewards that know neither votes nor true answers."""
MODEL_REWARD = "model:"
"""Begins the name of a reward that is a Hugging Face model."""
VERIFY = "verify"
"""The reward that asks the `check` of a task, which each must have."""
OVERLONG = "overlong"
"""Name of the length penalty (`rl.overlong_penalty`) among the rewards of a rollout."""


@REWARDS.register("majority")
def majority_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """1 for agreeing with the winner of the group's vote, else 0 (TTRL, eq. 3)."""
    return list(vote.sample_rewards)


@REWARDS.register("random")
def random_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """Control: a fair coin for each try."""
    rng = np.random.default_rng(derive_seed(seed, "random-reward", group.task.id))
    return [float(heads) for heads in rng.random(len(group.trajectories)) < 0.5]


@REWARDS.register("format")
def format_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """Control: 1 for giving any answer in the asked form, right or wrong."""
    return [float(answer is not None) for answer in group.answers]


@REWARDS.register(VERIFY)
def verify_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """1 for an answer that satisfies the task's `check`, else 0: no reference, and no vote."""
    return [float(right) for right in satisfied(group.answers, group.task.options["check"])]


@REWARDS.register("env")
def env_reward(group: Group, vote: VoteResult, seed: int) -> list[float]:
    """The environment's own return takes the vote's place (ALFWorld, WebShop).

    Raises:
        ConfigError: the environment says that it could not grade a try: it was given no true answer.
    """
    if any(trajectory.steps and trajectory.steps[-1].info.get("graded") is False for trajectory in group.trajectories):
        raise ConfigError(
            f"rl.reward=env, but {group.task.env_id} cannot grade without true answers, which training tasks lack. Use "
            "rl.reward=majority, or rl.reward=label as a control."
        )
    return [trajectory.env_return for trajectory in group.trajectories]


def label_reward(references: Mapping[str, str], group: Group, vote: VoteResult, seed: int) -> list[float]:
    """Control and ceiling: 1 for the true answer. `references` maps task ids to true answers."""
    reference = references.get(group.task.id)
    if reference is None:
        raise ConfigError(f"rl.reward=label needs a true answer for every training task; {group.task.id!r} has none.")
    return [grade_answer(answer, reference)["score"] for answer in group.answers]


def build_reward(
    name: str, references: Mapping[str, str], score: Callable[[Group], Sequence[float]] | None = None
) -> Reward:
    """The reward that `rl.reward` names, checked to give one finite number for each try.

    Args:
        name: `majority`, `verify`, `random`, `format`, `env`, `label`, `module:function`, or `model:PATH`.
        references: true answers by task id. Only `label` is given them.
        score: what `model:` scores with (see `llm.reward_model`).

    Raises:
        ConfigError: nothing has this name, or `label` is asked and there are no true answers.
    """
    if name == "label":
        if not references:
            raise ConfigError("rl.reward=label needs true answers, and the training tasks have none.")
        return partial(label_reward, references)
    if score is not None or ":" in name:
        return partial(_checked, name, score or import_attribute(name, "reward"))
    if name not in REWARDS:
        known = [*REWARDS, "label", "module:function", "model:PATH"]
        raise ConfigError(f"Unknown reward {name!r}.{did_you_mean(name, known)}")
    return REWARDS.get(name)


def _checked(
    name: str, function: Callable[[Group], Sequence[float]], group: Group, vote: VoteResult, seed: int
) -> list[float]:
    with naming(f"The reward {name!r}", f"on task {group.task.id!r}"):
        given = function(group)
    try:
        values = [as_reward(value) for value in given]
        problem = "" if len(values) == len(group.trajectories) else f"{len(values)} of them"
    except (TypeError, ValueError) as error:
        problem = str(error)
    if problem:
        raise ConfigError(
            f"Reward {name!r} must return one finite number of at most {LARGEST_REWARD:g} for each of the {len(group.trajectories)} "
            f"rollouts of task {group.task.id!r}; it returned {given!r:.200} ({problem:.200})."
        )
    return values


def as_reward(value: Any) -> float:
    """A reward as the learner can take it.

    Raises:
        ValueError: it is no number (a text that spells one is none), not finite, or larger than `LARGEST_REWARD`.
        TypeError: nothing makes a number of it.
    """
    if isinstance(value, str | bytes):
        raise ValueError(f"{value!r:.80}, a text")
    number = float(value)
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(f"{number:g}")
    return number


@dataclass(frozen=True)
class RewardSet:
    """Rewards by name; the first is `rl.reward`, whose weight is 1."""

    rewards: Mapping[str, Reward]
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the further ones (`rl.extra_rewards`)."""

    def __call__(self, group: Group, vote: VoteResult, seed: int) -> Group:
        """The group, each rollout carrying its reward, and where there are several each of them by name.

        Args:
            group: Rollouts of one task.
            vote: Their vote.
            seed: For rewards that draw.
        """
        rows = {name: list(reward(group, vote, seed)) for name, reward in self.rewards.items()}
        if len(rows) == 1:
            return group.with_rewards(next(iter(rows.values())))
        parts = [{name: row[place] for name, row in rows.items()} for place in range(len(group.trajectories))]
        return group.with_rewards([self.total(part) for part in parts], parts)

    def total(self, part: Mapping[str, float]) -> float:
        """The weighted sum of one rollout's rewards."""
        return sum(self.weights.get(name, 1.0) * value for name, value in part.items())


def late_vote(vote: VoteResult, answers: Sequence[str | None], late: str | None) -> VoteResult:
    """A vote as it bears on one answer that did not take part: it is rewarded as those that gave the same one, else with 0.

    Args:
        vote: What the `answers` voted.
        answers: Of the rollouts that voted.
        late: The further answer; None: none was given.
    """
    *classes, own = tally([*answers, late]).class_ids
    same = classes.index(own) if own >= 0 and own in classes else None
    if same is None:
        return VoteResult(vote.answer, vote.majority_ratio, (False,), vote.classes)
    return vote.select([same])


class RewardManager:
    """Majority-vote rewards for plain texts, and their measurement."""

    def compute_majority_rewards(
        self, responses: Sequence[str], prompt_ids: Sequence[object] | None = None, n_per_prompt: int = 64
    ) -> dict[str, list[float] | list[str | None]]:
        """Vote within each prompt's responses.

        Args:
            responses: texts, those of one prompt side by side.
            prompt_ids: prompt of each response; without it every `n_per_prompt` responses are one prompt.
            n_per_prompt: responses a prompt.

        Returns:
            `rewards` (one for each response), `majority_answers` and `agreement_ratios` (one for each prompt, in order of
            first appearance).

        Raises:
            ValueError: the number of responses is not a multiple of `n_per_prompt`, or ids and responses differ in number.
        """
        if prompt_ids is None:
            if len(responses) % n_per_prompt:
                raise ValueError(f"{len(responses)} responses are not a multiple of n_per_prompt={n_per_prompt}.")
            prompt_ids = [number // n_per_prompt for number in range(len(responses))]
        positions: dict[object, list[int]] = {}
        for position, (prompt, _) in enumerate(zip(prompt_ids, responses, strict=True)):
            positions.setdefault(prompt, []).append(position)
        rewards = [0.0] * len(responses)
        answers: list[str | None] = []
        ratios: list[float] = []
        for members in positions.values():
            group, answer, agreement = compute_voting_rewards([extract(responses[place]) for place in members])
            for place, value in zip(members, group, strict=True):
                rewards[place] = value
            answers.append(answer)
            ratios.append(agreement)
        return {"rewards": rewards, "majority_answers": answers, "agreement_ratios": ratios}

    def compute_gt_metrics(
        self, responses: Sequence[str], ground_truths: Sequence[str]
    ) -> dict[str, float | list[float]]:
        """Grade responses against true answers, to measure and never to train.

        Args:
            responses: whole texts.
            ground_truths: true answer of each.

        Returns:
            `scores` (see `compute_reward`), their mean `mean_score`, and `accuracy`, the share of scores above 1/2; 0 of nothing.

        Raises:
            ValueError: the two differ in number.
        """
        pairs = zip(responses, ground_truths, strict=True)
        scores = [compute_reward(text, true)["score"] for text, true in pairs]
        right = [float(score > 0.5) for score in scores]
        return {"accuracy": mean(right), "scores": scores, "mean_score": mean(scores)}
