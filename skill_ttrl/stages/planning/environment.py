"""Seconds of an environment's step, measured by taking some."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from statistics import median

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import make_env, resolve_env
from skill_ttrl.errors import ConfigError, SkillTTRLError
from skill_ttrl.rollout.info import admissible_actions, reset_options
from skill_ttrl.stages.doctor.preflight import AtOnce, TakesLongError
from skill_ttrl.stages.inputs.tasks import training_tasks
from skill_ttrl.types import Task

EPISODES, STEPS = 3, 5
"""Of the measurement, at most."""


def measure_env_seconds(config: SkillTTRLConfig) -> tuple[float, str]:
    """Median seconds of a step, over a few episodes of the first possible actions; and what it was measured on, if not on training tasks.

    Raises:
        ConfigError: the environment or its tasks cannot be had here, or only after work that takes long.
    """
    env_id = resolve_env(config.env.id)
    try:
        return _measure(config, env_id, training_tasks(config, env_id, config.data.train, AtOnce())[:EPISODES]), ""
    except TakesLongError as slow:
        reason = str(slow)
    except (SkillTTRLError, OSError) as error:
        reason = str(error).rstrip(".")
    try:  # the data of a task of one question may be missing: any question shows how long an answer takes
        question = Task(id="any", env_id=env_id, options={"question": "Compute 1+1."})
        return _measure(config, env_id, [question]), f" on a question of our own, as the tasks cannot be had: {reason}"
    except (SkillTTRLError, OSError):
        raise ConfigError(
            f"The time of a step of {env_id} cannot be measured here: {reason}. Give its seconds: --env-seconds 0.01, or the data."
        ) from None


def _measure(config: SkillTTRLConfig, env_id: str, tasks: Sequence[Task]) -> float:
    seconds = []
    with closing(make_env(env_id, **config.env.kwargs)) as env:
        for task in tasks:
            _, info = env.reset(seed=config.seed, options=reset_options(task))
            for _ in range(STEPS):
                actions = admissible_actions(info)
                began = time.perf_counter()
                _, _, terminated, truncated, info = env.step(actions[0] if actions else "<answer>2</answer>")
                seconds.append(time.perf_counter() - began)
                if terminated or truncated:
                    break
    return median(seconds)
