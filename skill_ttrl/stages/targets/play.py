"""One episode of a policy to watch: a rollout on an environment that tells what happens in it."""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.envs import resolve_env
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.llm.openai.ledger import annotate_budget_error, track_usage
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.rollout import rollout
from skill_ttrl.rollout.turns import RolloutSettings
from skill_ttrl.stages.collecting.watch import Stopped, TextEnvironment, Watch, WatchedEnv, ended, env_kwargs
from skill_ttrl.stages.targets.resolve import EvalTarget, in_env, resolve_target
from skill_ttrl.stages.targets.trained import PolicySource, load_policy
from skill_ttrl.types import Task, Trajectory


def find_policy(
    name: str, env: str, overrides: Sequence[str] = (), *, config: str | None = None, use_bank: bool = True
) -> EvalTarget:
    """The policy that is meant, as it plays in an environment (`with_env_defaults`).

    Args:
        env: what it is to play.
        name: a run folder, a checkpoint, a model's folder, `owner/name`, `openai` or `openai:MODEL`.
        overrides: changes to its config.
        config: a plain model's recipe.
        use_bank: False where it plays without its skill bank.

    Raises:
        ConfigError, RunFolderError, ModelError: see `resolve_target`.
    """
    found = resolve_target(name, overrides, config=config, use_bank=use_bank)
    return in_env(found, env, env_kwargs(overrides, resolve_env(env), found.config), overrides)


def play_policy(
    env: TextEnvironment,
    task: Task,
    policy: PolicySource,
    *,
    seed: int,
    watch: Watch,
    temperature: float = 0.0,
    use_bank: bool = True,
) -> Trajectory:
    """Let a policy play `task`, as its training episodes go.

    Args:
        env: is reset; stays open.
        task: what is played.
        policy: a trained policy, a plain model or a remote one. Its config sets prompts and sampling.
        seed: of its random choices.
        watch: called with every scene.
        temperature: 0 is greedy.
        use_bank: False plays without its skill bank.

    Raises:
        ConfigError, ModelError: it cannot be asked like this.
    """
    config, watched = policy.config, WatchedEnv(env, task, watch)
    with (
        track_usage(None, config.endpoints) as ledger,
        ledger.phase("play"),
        annotate_budget_error("Raise it, or play a shorter game."),
        load_policy(policy, use_bank) as parts,
    ):
        work = rollout(
            [task],
            1,
            envs=EnvPool(lambda: watched),
            agent=parts.agent,
            backend=parts.backend,
            settings=RolloutSettings(
                Sampling(temperature=temperature, max_new_tokens=config.rollout.max_new_tokens),
                seed,
                max_turns=config.agent.max_turns,
                max_prompt_tokens=config.data.max_prompt_tokens,
                constrain=config.agent.structured_actions,
                schedule="sync",
            ),
        )
        try:
            (group,) = wait_for(work)
        except Stopped as stopped:
            return ended(watched, stopped)
    return group.trajectories[0]
