"""The rewards of a run."""

from __future__ import annotations

from functools import partial

from skill_ttrl.config.rl import OverlongConfig
from skill_ttrl.errors import ConfigError, EnvError
from skill_ttrl.llm.reward_model import RewardModel
from skill_ttrl.rl.learn import overlong_penalties
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.info import failure, reset_options
from skill_ttrl.signals import FAILURES
from skill_ttrl.stages.inputs.pin import FOLDER_DIGEST
from skill_ttrl.stages.training.components import TrainingComponents
from skill_ttrl.stages.training.meter import Meter
from skill_ttrl.types import Group, Task, VoteResult
from skill_ttrl.voting.rewards import MODEL_REWARD, OVERLONG, Reward, RewardSet, build_reward


def make_rewards(components: TrainingComponents, meter: Meter) -> RewardSet:
    """The rewards that `rl.reward` and `rl.extra_rewards` name. The `label` control is the only one that holds the true answers.

    Raises:
        ConfigError: one cannot be computed in this run.
        EnvError: the environment fails at the first task.
    """
    rl = components.config.rl
    names = [rl.reward, *rl.extra_rewards]
    if components.config.evolve is not None and "env" not in names:
        instead = "Leave it out: no success is known that it could go by."
        check_graded(components.train_tasks[0], components.worker.envs, "There is an evolve section", instead)
    gate = components.gate
    if gate is not None:
        instead = "Give skills.gate.data tasks with their true answers, or leave skills.gate out."
        check_graded(gate.tasks[0], gate.envs, "There is a gate (skills.gate)", instead)
    rewards = {name: _make_reward(name, components, meter) for name in names}
    if rl.overlong is not None and rl.overlong.penalty:
        rewards[OVERLONG] = partial(_length_penalty, rl.overlong, components.config.rollout.max_new_tokens)
    return RewardSet(rewards, rl.extra_rewards)


def _length_penalty(settings: OverlongConfig, limit: int, group: Group, vote: VoteResult, seed: int) -> list[float]:
    """A reward: the penalty of each rollout's length."""
    return overlong_penalties(group, settings, limit)


def _make_reward(name: str, components: TrainingComponents, meter: Meter) -> Reward:
    config = components.config
    asked = f"rl.reward={name}" if name == config.rl.reward else f"rl.extra_rewards.{name}"
    if name == "env":
        instead = "Use rl.reward=majority, or rl.reward=label as a control."
        check_graded(components.train_tasks[0], components.worker.envs, asked, instead)
    if name.startswith(MODEL_REWARD):
        pinned = config.rl.reward_revision or ""
        commit = None if pinned.startswith(FOLDER_DIGEST) else pinned or None
        scorer = RewardModel(name.removeprefix(MODEL_REWARD), revision=commit, device=str(components.policy.device))
        return build_reward(name, {}, scorer)
    if name != "label":
        return build_reward(name, {})
    tasks = components.train_tasks
    missing = [task.id for task in tasks if task.id not in meter.references]
    if missing:
        raise ConfigError(
            f"{asked} needs a true answer for every training task; {len(missing)} of {len(tasks)} have none, first {missing[0]!r}. "
            "Use rl.reward=majority, or remove those tasks."
        )
    return build_reward(name, meter.references)


def check_graded(task: Task, envs: EnvPool, asked: str, instead: str) -> None:
    """Raise `ConfigError` where the environment says that it cannot grade a task as it is given."""
    env = envs.acquire(1)[0]
    try:
        env.reset(seed=task.seed, options=reset_options(task))
        graded = env.step("")[4].get("graded")
    except FAILURES as raised:
        raise EnvError(f"{task.env_id} failed on task {task.id!r}: {failure(raised)}") from raised
    if graded is False:
        raise ConfigError(
            f"{asked}, but {task.env_id} cannot grade without true answers, which these tasks lack. {instead}"
        )
