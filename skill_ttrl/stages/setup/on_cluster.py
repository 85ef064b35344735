"""Workers of a Ray cluster for a run that trains (`scale.training`): they sample its rollouts, or hold its environments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.config.scale import LOCAL
from skill_ttrl.envs import make_env, resolve_env
from skill_ttrl.progress import Progress
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.scale.hosted_env import HostedEnv
from skill_ttrl.scale.run import open_hosts
from skill_ttrl.stages.setup.build import make_envs
from skill_ttrl.stages.setup.checks import rolls_out_on_workers, shares_rollouts
from skill_ttrl.stages.setup.rollout_workers import rolling_out_on_workers
from skill_ttrl.stages.training.components import TrainingComponents
from skill_ttrl.stages.training.meter import Meter
from skill_ttrl.types import Task

Parts = tuple[TrainingComponents, Meter]


@contextmanager
def on_cluster(components: TrainingComponents, meter: Meter, progress: Progress) -> Iterator[Parts]:
    """The parts of a run with workers that end with the block, where `scale.engine` asks for them; else as they are.

    Raises:
        ScaleError: there is no cluster, or its nodes are not ready.
        SkillTTRLError: a worker cannot make the policy or the environment.
    """
    config = components.config
    if config.scale.engine == LOCAL or not rolls_out_on_workers(config):
        yield components, meter
    elif shares_rollouts(config):
        with rolling_out_on_workers(components, meter.eval_tasks, progress) as sharing:
            yield sharing, meter
    else:
        with _hosting_environments(components, meter, progress) as parts:
            yield parts


@contextmanager
def _hosting_environments(components: TrainingComponents, meter: Meter, progress: Progress) -> Iterator[Parts]:
    config = components.config
    check = partial(check_environment, config, (components.train_tasks[0], meter.eval_tasks[0]))
    make = partial(make_env, resolve_env(config.env.id), **config.env.kwargs)
    expensive = bool(getattr(components.worker.envs.acquire(1)[0].unwrapped, "expensive", False))
    with ExitStack() as stack:
        hosts = stack.enter_context(open_hosts(make, check, config.scale, progress))

        def pool() -> EnvPool:
            found = EnvPool(lambda: HostedEnv(hosts, config.scale.max_retries, expensive))
            stack.callback(found.close)
            return found

        gate = components.gate and replace(components.gate, envs=pool())
        worker = replace(components.worker, envs=pool())
        yield replace(components, worker=worker, gate=gate), replace(meter, envs=pool())


def check_environment(config: SkillTTRLConfig, tasks: tuple[Task, ...]) -> None:
    """See that a node can make the environment and play a task: `scale.preflight.Check`.

    Raises:
        EnvError: the environment or its data are not there.
    """
    make_envs(config, tasks).close()
