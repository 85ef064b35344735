"""From a config to the parts of a run: policy, environments, tasks, meter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import check_text_env, make_env, resolve_env
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.chat import template_warning
from skill_ttrl.progress import Progress
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.stages.evaluation.controls import check_controls, lists_actions
from skill_ttrl.stages.inputs.env_defaults import warn_unlisted
from skill_ttrl.stages.inputs.tasks import (
    evaluation_split,
    fit_prompts,
    hold_out,
    leaks,
    other_family,
    source_tasks,
    training_tasks,
)
from skill_ttrl.stages.setup.checks import check_cut_series, check_states
from skill_ttrl.stages.setup.policy import PolicyBundle, build_policy, check_context
from skill_ttrl.stages.training.components import GateTasks, RolloutWorker, TrainingComponents
from skill_ttrl.stages.training.meter import Meter
from skill_ttrl.stages.training.run_bank import NoBank, RunBank
from skill_ttrl.types import Task

if TYPE_CHECKING:
    from skill_ttrl.rl.parallel.commands import Driver

NO_BANK = NoBank()


def build(
    config: SkillTTRLConfig,
    progress: Progress,
    *,
    weights: Path | None = None,
    bank: RunBank | NoBank = NO_BANK,
    stopping: Callable[[], bool] = lambda: False,
    warnings: list[str] | None = None,
    driver: Driver | None = None,
) -> tuple[TrainingComponents, Meter]:
    """Build the parts that act, and the meter, which alone holds the true answers.

    Args:
        config: the whole config.
        progress: reports what was left out.
        weights: a checkpoint folder to take the policy from, in place of `model.path`.
        bank: the run's skill bank.
        stopping: returns True once the user wants to stop; see `BackendContext`.
        warnings: gets lines for the summary on held-out tasks that are learned from.
        driver: the ranks that train together; None: this process alone.

    Raises:
        SkillTTRLError: a part cannot be made; the message names it.
    """
    from skill_ttrl.rl.parallel.commands import Driver
    from skill_ttrl.rl.parallel.ranks import ALONE

    driver = driver or Driver(ALONE)
    env_id = resolve_env(config.env.id)
    check_controls(config)
    train = training_tasks(config, env_id, config.data.train, progress)
    held_out = config.data.eval is not None or config.data.train is None
    evaluated = train
    if held_out:
        evaluated = source_tasks(
            config, env_id, config.data.eval, evaluation_split(config), config.env.eval_tasks, progress
        )
    envs = make_envs(config, [*train, *evaluated])
    check_states(config, envs.acquire(1)[0], train[0])
    found = [] if warnings is None else warnings
    with ExitStack() as stack:
        parts = build_learner_policy(config, driver, weights, progress.notice, stopping)
        stack.callback(parts.backend.close)
        check_context(config, parts)
        train = fit_prompts(train, config.data, parts.backend, parts.agent, progress)
        evaluated = fit_prompts(evaluated, config.data, parts.backend, parts.agent, progress) if held_out else train
        if held_out:
            found += [note for note in (other_family(config),) if note]
            found += leaks(config, train, evaluated)
        train, gate = hold_out(config, env_id, train, evaluated if held_out else None, progress, found)
        stack.pop_all()
    if unshown := bank.unshown([*train, *evaluated]):
        progress.notice(unshown, warning=True)
    # An environment keeps what it was reset with: one that saw a true answer is not trained in.
    answered = any(task.ground_truth is not None for task in evaluated)
    known = {task.id: task.ground_truth for task in train if task.ground_truth is not None}
    meter = Meter(known, evaluated, make_envs(config, evaluated) if answered else envs, not held_out)
    worker = RolloutWorker(config, parts.backend, parts.agent, envs)
    tested = GateTasks(gate, make_envs(config, gate)) if gate else None
    return TrainingComponents(worker, driver, [task.without_ground_truth() for task in train], bank, tested), meter


def build_learner_policy(
    config: SkillTTRLConfig,
    driver: Driver,
    weights: Path | None,
    notice: Callable[[str], None],
    stopping: Callable[[], bool],
) -> PolicyBundle:
    """Sampler and agent of a policy that learns, on all ranks of `driver`, whose objects get the policy (`make_replica`)."""
    from skill_ttrl.llm.hf import HFBackend
    from skill_ttrl.rl.parallel.backend import RanksBackend, RanksEngines, on_model
    from skill_ttrl.stages.setup.replica import make_replica  # torch, which what asks a remote model does not load

    def over_ranks(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return driver.run(on_model, function, *args, **kwargs)

    engine = backend_facts(config).engine
    parts = build_policy(
        config,
        weights=weights,
        trains=True,
        notice=notice,
        stopping=stopping,
        load=lambda: driver.run(make_replica, config, weights),
        # An engine in each rank's process takes the weights as they are gathered by all of them.
        over_ranks=over_ranks if driver.ranks.several and not engine else None,
    )
    assert parts.context.loaded is not None  # a sampler that lives elsewhere has not looked at it yet
    if refused := driver.objects["policy"].packing_refused:
        notice(f"Sequences are padded, not packed (model.packing): {refused}.")
    if driver.ranks.several and type(parts.backend) is HFBackend:
        return replace(parts, backend=RanksBackend(driver, parts.backend))
    if driver.ranks.several and engine:
        return replace(parts, backend=RanksEngines(driver, parts.backend))
    return parts


def build_for_eval(
    config: SkillTTRLConfig,
    problems: Mapping[str, Sequence[Task]],
    progress: Progress,
    *,
    weights: Path | None = None,
    bank: RunBank | NoBank = NO_BANK,
) -> tuple[RolloutWorker, dict[str, list[Task]]]:
    """Build the worker that evaluates a policy without training it; also returns the problems whose prompts fit.

    Args:
        config: the whole config; its `data` says no more than how long a prompt may be.
        problems: tasks by source, each with at least one.
        progress: reports what was left out.
        weights: as for `build`.
        bank: the skill bank, which the agent sees as it is now.

    Raises:
        SkillTTRLError: a part cannot be made; the message names it.
    """
    check_controls(config)
    every = [task for tasks in problems.values() for task in tasks]
    envs = make_envs(config, every)
    warn_unlisted(config, lists_actions(envs, every, config), progress)
    parts = build_policy(config, weights=weights, notice=progress.notice)
    if unformatted := template_warning(parts.backend, parts.agent.formatter.messages("?")):
        progress.notice(unformatted, warning=True)
    with ExitStack() as stack:
        stack.callback(parts.backend.close)
        check_context(config, parts)
        fitting = {
            name: fit_prompts(tasks, config.data, parts.backend, parts.agent, progress)
            for name, tasks in problems.items()
        }
        worker = RolloutWorker(config, parts.backend, parts.agent, envs)
        worker = worker.with_bank(bank.view())
        stack.pop_all()
    return worker, fitting


def make_envs(config: SkillTTRLConfig, tasks: Sequence[Task]) -> EnvPool:
    """Environments for these tasks, one made to see that it can play them.

    Raises:
        ConfigError, EnvError: it cannot, or episodes would end before their last problem.
    """
    check_cut_series(config, tasks)
    env_id = resolve_env(config.env.id)
    envs = EnvPool(lambda: make_env(env_id, **config.env.kwargs))
    check_text_env(envs.acquire(1)[0], tasks[0])
    return envs
