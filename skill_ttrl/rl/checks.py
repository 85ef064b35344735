"""Combinations of algorithm, loss, correction and KL that make no sense, refused with the reason before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms import ALGORITHMS, build_algorithm, requirements
from skill_ttrl.rl.learner import corrects


def check_algorithm(rl: RLConfig, *, vote_strategy: str, action_parser: str, multi_turn: bool) -> None:
    """Check that the algorithm exists, and that the run can give the algorithm its inputs.

    Args:
        rl: The settings, with the algorithm's own defaults.
        vote_strategy: `vote.strategy`.
        action_parser: `agent.action_parser`; with `none` no action is ever invalid.
        multi_turn: Rollouts may have several steps.

    Raises:
        ConfigError: there is no such algorithm, an option is wrong, or the combination makes no sense.
    """
    algorithm, named = build_algorithm(rl.algorithm), f"rl.algorithm={rl.algorithm['type']}"
    problems = [
        *_missing_inputs(rl, named, requirements(algorithm), multi_turn),
        *_wrong_rewards(rl, named, algorithm, vote_strategy, action_parser),
        *_settings_without_effect(rl, named),
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _missing_inputs(rl: RLConfig, named: str, requires: frozenset[str], multi_turn: bool) -> Iterator[str]:
    """A line for each input that the algorithm requires and the run does not have."""
    if "votes" in requires and not rl.voted:
        yield f"{named} learns from votes, but rl.reward is {rl.reward!r}. Set rl.reward=majority."
    if "critic" in requires and rl.critic is None:
        yield (
            f"{named} needs a critic. Set rl.critic: {{}} for a value head on the policy's own decoder, or name a model in "
            "rl.critic.model; rl.algorithm=grpo and reinforce_plus_plus need none."
        )
    if rl.critic is not None and "critic" not in requires:
        yield f"rl.critic is set, but {named} does not use a critic. Set rl.algorithm=gae, or remove rl.critic."
    if "extra_rewards" in requires and not rl.extra_rewards:
        yield (
            f"{named} normalizes several rewards, and there is only rl.reward={rl.reward}. Set rl.extra_rewards, for example "
            "{format: 0.5}, or rl.algorithm=grpo."
        )
    if {"episodes", "states"} & requires and not multi_turn:
        yield (
            f"{named} compares steps of episodes, but agent.max_turns is 1: each rollout has a single step. Use an environment "
            "of several turns (alfworld, webshop), or rl.algorithm=grpo."
        )


def _wrong_rewards(
    rl: RLConfig, named: str, algorithm: object, vote_strategy: str, action_parser: str
) -> Iterator[str]:
    """A line where the algorithm cannot follow the votes, or would ignore, lose or misread a part of the reward."""
    kind = ALGORITHMS.get(rl.algorithm["type"])
    known: frozenset[str] | None = getattr(kind, "vote_strategies", None)
    if rl.voted and known is not None and vote_strategy not in known:
        yield (
            f"{named} cannot follow vote.strategy={vote_strategy}. Set vote.strategy to one of {', '.join(sorted(known))}, or "
            "rl.algorithm=grpo, which follows all."
        )
    added = [f"rl.{name}" for name in ("extra_rewards", "overlong_penalty") if getattr(rl, name)]
    if getattr(kind, "own_rewards", False) and added:
        yield f"{named} computes its rewards from the votes alone, so {' and '.join(added)} would have no effect. Remove it."
    bonus = sum(max(0.0, weight) for weight in rl.extra_rewards.values())
    if bonus > 1 and rl.algorithm["type"] in ("nsr", "w_reinforce"):
        yield (
            f"The weights of rl.extra_rewards add up to {bonus:g}. A wrong sample could then earn more than 1, and {named} would raise "
            "its probability. Let them add up to 1 at most."
        )
    if rl.reward in rl.extra_rewards:
        yield f"rl.extra_rewards names {rl.reward} again, which is rl.reward with the weight 1. Remove it."
    taken_off = [f"rl.{name}" for name in ("kl_in_reward", "invalid_action_penalty_coef") if getattr(rl, name)]
    if "extra_rewards" in requirements(algorithm):
        for key in taken_off:
            yield f"{key} changes the sum of the rewards, and {named} takes each by itself. Remove it, or set rl.kl_coef."
    if rl.invalid_action_penalty_coef and action_parser == "none":
        yield (
            f"rl.invalid_action_penalty_coef={rl.invalid_action_penalty_coef:g}, but with agent.action_parser=none no action is ever "
            "found invalid. Set agent.action_parser=action, or rl.invalid_action_penalty_coef=0."
        )


def _settings_without_effect(rl: RLConfig, named: str) -> Iterator[str]:
    """A line for each setting of the loss or the KL divergence that contradicts another or has no effect."""
    loss = rl.loss["type"]
    meant = getattr(ALGORITHMS.get(rl.algorithm["type"]), "defaults", {}).get("loss", {}).get("type", loss)
    if meant not in (loss, "ppo_clip"):  # values for the default loss are no reason to refuse another
        yield (
            f"{named} is GRPO with the loss {meant}, but rl.loss is {loss}. Set rl.loss.type={meant}, or rl.algorithm=grpo, which works with any loss."
        )
    if rl.mini_batch_size is not None and rl.mini_batch_size > rl.prompts_per_step:
        yield (
            f"rl.mini_batch_size={rl.mini_batch_size}, but a step has rl.prompts_per_step={rl.prompts_per_step} prompts. Lower it, or "
            "set rl.mini_batch_size=null for one mini-batch per step."
        )


def check_correction(
    rl: RLConfig, *, backend: str, sampler_is_learner: bool, gives_log_probs: bool, truncates_sampling: bool
) -> None:
    """Check that the correction makes sense with what samples.

    Args:
        rl: The settings.
        backend: `rollout.backend`.
        sampler_is_learner: The learner's own model samples.
        gives_log_probs: The backend gives the log-prob each token was sampled with.
        truncates_sampling: `rollout.top_p` is below 1 or `rollout.top_k` above 0.

    Raises:
        ConfigError: the combination makes no sense.
    """
    if not gives_log_probs:
        raise ConfigError(
            f"rollout.backend={backend} returns no log-probs, which the policy ratio and rl.rollout_correction need. Train with hf, vllm, "
            "or a backend of your own that returns them."
        )
    if corrects(rl, sampler_is_learner=sampler_is_learner) and truncates_sampling and not sampler_is_learner:
        raise ConfigError(
            f"rl.rollout_correction compares the log-probs of {backend} with the learner's, but with rollout.top_p below 1 or "
            "rollout.top_k above 0 they come from a truncated distribution. Set rollout.top_p=1 and rollout.top_k=0, or "
            "rl.rollout_correction=none."
        )
