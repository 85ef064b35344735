"""Combinations of algorithm, loss, correction and KL that make no sense, refused with the reason before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms import ALGORITHMS, build_algorithm, requirements
from skill_ttrl.rl.correction import corrects


def check_algorithm(
    rl: RLConfig,
    *,
    vote_strategy: str,
    action_parser: str,
    multi_turn: bool,
) -> None:
    """Check that the algorithm exists, and that the run can give the algorithm its inputs.

    Args:
        rl: The settings, with the algorithm's own defaults.
        vote_strategy: `vote.strategy`.
        action_parser: `agent.action_parser`; with `none` no action is ever invalid.
        multi_turn: Rollouts may have several steps.

    Raises:
        ConfigError: there is no such algorithm, an option is wrong, or the combination makes no sense.
    """
    algorithm = build_algorithm(rl.algorithm)
    options = getattr(algorithm, "options", None)
    level = getattr(options, "level", None)
    penalty = f"rl.invalid_action_penalty_coef={rl.invalid_action_penalty_coef:g}"
    problems = [
        *_missing_inputs(rl, algorithm, multi_turn),
        *_vote_problems(rl, vote_strategy),
        *_reward_problems(rl, algorithm),
        *_settings_without_effect(rl),
        *_half_problems(rl),
    ]
    if rl.invalid_action_penalty_coef and action_parser == "none":
        problems.append(
            f"{penalty}, but with agent.action_parser=none no action is ever found invalid. Set agent.action_parser=action, or "
            "rl.invalid_action_penalty_coef=0."
        )
    if rl.invalid_action_penalty_coef and level != "step" and not getattr(algorithm, "distinguishes_steps", True):
        problems.append(
            f"{penalty}: {_named(rl)} cannot penalize single steps and let each episode weigh the same. Set "
            f"{'rl.algorithm.level=step, ' if level else ''}rl.invalid_action_penalty_coef=0, or rl.algorithm=grpo."
        )
    if problems:
        raise ConfigError("\n".join(problems))


def _missing_inputs(rl: RLConfig, algorithm: object, multi_turn: bool) -> Iterator[str]:
    """A line for each input that the algorithm requires and the run does not have."""
    requires = requirements(algorithm)
    if "votes" in requires and not rl.voted:
        yield f"{_named(rl)} learns from votes, but rl.reward is {rl.reward!r}. Set rl.reward=majority."
    if "critic" in requires and rl.critic is None:
        yield (
            f"{_named(rl)} needs a critic. Set rl.critic: {{}} for a value head on the policy's own decoder, or name a model in "
            "rl.critic.model; rl.algorithm=grpo and reinforce_plus_plus need none."
        )
    if rl.critic is not None and "critic" not in requires:
        yield f"rl.critic is set, but {_named(rl)} does not use a critic. Set rl.algorithm=gae, or remove rl.critic."
    if "extra_rewards" in requires and not rl.extra_rewards:
        yield (
            f"{_named(rl)} normalizes several rewards, and there is only rl.reward={rl.reward}. Set rl.extra_rewards, for example "
            "{format: 0.5}, or rl.algorithm=grpo."
        )
    if {"episodes", "states"} & requires and not multi_turn:
        yield (
            f"{_named(rl)} compares steps of episodes, but agent.max_turns is 1: each rollout has a single step. Use an environment "
            "of several turns (alfworld, webshop), or rl.algorithm=grpo."
        )


def _vote_problems(rl: RLConfig, strategy: str) -> Iterator[str]:
    """A line where the algorithm cannot follow the voting strategy, or would ignore or lose part of the reward."""
    kind = ALGORITHMS.get(rl.algorithm["type"])
    known: frozenset[str] | None = getattr(kind, "vote_strategies", None)
    if rl.voted and known is not None and strategy not in known:
        yield (
            f"{_named(rl)} cannot follow vote.strategy={strategy}. Set vote.strategy to one of {', '.join(sorted(known))}, or "
            "rl.algorithm=grpo, which follows all."
        )
    binary = getattr(kind, "binary_rewards", False)
    added = ["rl.extra_rewards"] if rl.extra_rewards else []
    added += ["rl.overlong_penalty"] if rl.overlong_penalty else []
    if (binary or getattr(kind, "own_rewards", False)) and added:
        yield f"{_named(rl)} computes its rewards from the votes alone, so {' and '.join(added)} would have no effect. Remove it."
    if binary and (rl.kl_in_reward or rl.invalid_action_penalty_coef):
        yield (
            f"{_named(rl)} needs rewards of 0 and 1, which rl.kl_in_reward and rl.invalid_action_penalty_coef change. Remove them; "
            "rl.kl_coef puts a KL term into the loss."
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
    problems = []
    if not gives_log_probs:
        problems.append(
            f"rollout.backend={backend} returns no log-probs, which the policy ratio and rl.rollout_correction need. Train with hf, vllm, "
            "or a backend of your own that returns them."
        )
    if corrects(rl, sampler_is_learner=sampler_is_learner) and truncates_sampling and not sampler_is_learner:
        problems.append(
            f"rl.rollout_correction compares the log-probs of {backend} with the learner's, but with rollout.top_p below 1 or "
            "rollout.top_k above 0 they come from a truncated distribution. Set rollout.top_p=1 and rollout.top_k=0, or "
            "rl.rollout_correction=none."
        )
    if problems:
        raise ConfigError("\n".join(problems))


def _settings_without_effect(rl: RLConfig) -> Iterator[str]:
    """A line for each setting of the loss, the KL divergence or lengths that contradicts another or has no effect."""
    loss = rl.loss["type"]
    meant = getattr(ALGORITHMS.get(rl.algorithm["type"]), "defaults", {}).get("loss", {}).get("type", loss)
    if meant not in (loss, "ppo_clip"):  # values for the default loss are no reason to refuse another
        yield (
            f"{_named(rl)} is GRPO with the loss {meant}, but rl.loss is {loss}. Set rl.loss.type={meant}, or rl.algorithm=grpo, which works with any loss."
        )
    if rl.ref_model_sync_steps and rl.kl_coef == 0 and rl.kl_in_reward is None:
        yield (
            f"rl.ref_model_sync_steps={rl.ref_model_sync_steps} refreshes a reference model, but with rl.kl_coef=0 and no "
            "rl.kl_in_reward there is none. Set one of them, or rl.ref_model_sync_steps=null."
        )
    if rl.ref_model_sync_steps and rl.stops_collapse:
        yield (
            f"rl.ref_model_sync_steps={rl.ref_model_sync_steps} replaces the weights of before RL, which rl.stop_rule=collapse gives back. "
            "Set one of them to null."
        )
    if rl.mini_batch_size is not None and rl.mini_batch_size > rl.prompts_per_step:
        yield (
            f"rl.mini_batch_size={rl.mini_batch_size}, but a step has rl.prompts_per_step={rl.prompts_per_step} prompts. Lower it, or "
            "set rl.mini_batch_size=null for one mini-batch per step."
        )


def _half_problems(rl: RLConfig) -> Iterator[str]:
    """A line where a wrong sample could earn so much that its probability would rise."""
    bonus = sum(max(0.0, weight) for weight in rl.extra_rewards.values())
    if bonus > 1 and rl.algorithm["type"] in ("nsr", "w_reinforce"):
        yield (
            f"The weights of rl.extra_rewards add up to {bonus:g}. A wrong sample could then earn more than 1, and {_named(rl)} would raise "
            "its probability. Let them add up to 1 at most."
        )


def _reward_problems(rl: RLConfig, algorithm: object) -> Iterator[str]:
    """A line where rewards are named twice, or the algorithm cannot take them with what is taken off them."""
    if rl.reward in rl.extra_rewards:
        yield f"rl.extra_rewards names {rl.reward} again, which is rl.reward with the weight 1. Remove it."
    taken_off = ["kl_in_reward"] if rl.kl_in_reward is not None else []
    taken_off += ["invalid_action_penalty_coef"] if rl.invalid_action_penalty_coef else []
    if getattr(getattr(algorithm, "options", None), "scale_rewards", None) == "mean":
        why = f"makes rewards below 0 possible, and {_named(rl)} divides by their mean"
        instead = "rl.algorithm.scale_rewards=group"
        taken_off += ["overlong_penalty"] if rl.overlong_penalty else []
        taken_off += [f"extra_rewards.{name}={weight:g}" for name, weight in rl.extra_rewards.items() if weight < 0]
    elif "extra_rewards" in requirements(algorithm):
        why, instead = f"changes the sum of the rewards, and {_named(rl)} takes each by itself", "rl.kl_coef"
    else:
        return
    for key in taken_off:
        yield f"rl.{key} {why}. Remove it, or set {instead}."


def _named(rl: RLConfig) -> str:
    return f"rl.algorithm={rl.algorithm['type']}"
