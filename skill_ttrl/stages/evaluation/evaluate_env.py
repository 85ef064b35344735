"""`skillttrl evaluate SOURCE --env`: a policy on every task of one split of an environment, whatever it was trained in.

It is measured as on any other problems; right is what the environment calls so (`outcome.env_success`). A player that needs no
model is measured by `stages.collect.run`, which loads nothing of what a model takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import check_text_env, env_tasks, make_env, prepare_unit, resolve_env
from skill_ttrl.envs.lookup import refuse_split, split_argument
from skill_ttrl.errors import ConfigError
from skill_ttrl.progress import OPENING, Counting, Progress, SilentProgress, telling_warnings
from skill_ttrl.stages.collecting.watch import env_kwargs
from skill_ttrl.stages.evaluate import measure_subject
from skill_ttrl.stages.evaluation.results import Evaluation
from skill_ttrl.stages.setup.env_defaults import with_env_defaults
from skill_ttrl.stages.targets.resolve import EvalDataset, resolve_target
from skill_ttrl.types import Task


def measure_policy(
    source: str | Path,
    env: str,
    *,
    split: str,
    overrides: Sequence[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    limit: int | None = None,
    config: str | None = None,
    output: str | Path | None = None,
    chunk: int | None = None,
    use_bank: bool = True,
    progress: Progress | None = None,
) -> tuple[Evaluation, ...]:
    """Evaluate a policy on every task of a split of `env`, whatever it was trained in.

    A task counts as right where the environment says `won` in its `info`, or, where it says nothing, its return is above 0. What
    the policy's config does not state, prompts, parser and turns, is as the environment has it (`with_env_defaults`).

    Args:
        source: run folder, checkpoint, model's folder, model on the hub, or `openai:MODEL`; see `evaluate.run_all`.
        env: short name, Gymnasium id, or `module:EnvId-v0`.
        split: part of the environment's tasks.
        overrides: changes to the config, e.g. `eval.samples=1`; `env.kwargs.NAME=VALUE` is handed to the environment. Where the
            policy was trained in `env`, its arguments are those of the training, with these changes.
        kwargs: further arguments of the environment.
        limit: only so many tasks, spread over the split (`envs.tasks.spread`); None: all.
        config: a plain model's recipe or config file.
        output: folder to which samples are written as they are drawn.
        chunk: tasks drawn together; see `evaluate.run_all`. None: as many as the backend takes at once.
        use_bank: False measures without the skill bank.
        progress: receives the progress of sampling.

    Raises:
        SkillTTRLError: there is no such policy, environment or split, or it cannot be played by such a policy.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, found {limit}.")
    found = resolve_target(source, overrides, config=config, use_bank=use_bank)
    settings = _playing(found.config, env, split, overrides, kwargs or {})
    arguments = settings.env.kwargs
    progress = progress or SilentProgress()
    with telling_warnings(progress):
        (first,) = env_tasks(env, arguments, split, 1, Counting(progress, OPENING, prepare_unit(env, arguments)))
        said = _source(env, arguments, first)
    name = f"{env} {split}" + (f" ({said})" if said else "")
    # One environment an episode is held in memory, so that not all tasks are drawn together, as elsewhere.
    size = max(1, settings.rollout.max_batch_size // settings.eval.samples) if chunk is None else chunk
    return measure_subject(
        replace(found, config=settings),
        [EvalDataset(name, None, split, limit)],
        output=output,
        chunk=size,
        use_bank=use_bank,
        progress=progress,
    )


def _playing(
    config: SkillTTRLConfig, env: str, split: str, overrides: Sequence[str], kwargs: Mapping[str, Any]
) -> SkillTTRLConfig:
    """The policy's config with `env` and its arguments in place of the environment that it was trained in."""
    env_id = resolve_env(env)
    asked = {**env_kwargs(overrides, env_id), **kwargs}
    refuse_split(asked)
    settings = config.model_copy(deep=True)
    settings.env.id = env
    settings.env.kwargs = {**env_kwargs((), env_id, config), **asked, **split_argument(env, split)}
    return with_env_defaults(settings, playing=overrides)


def _source(env: str, kwargs: Mapping[str, Any], task: Task) -> str:
    """Where the environment says that its tasks come from (`info["source"]`); empty where it says nothing."""
    with closing(make_env(env, **kwargs)) as game:
        check_text_env(game, task)
        _, info = game.reset(seed=task.seed, options=dict(task.options))
    return str(info.get("source", ""))
