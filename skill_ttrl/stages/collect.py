"""`skillttrl collect`: the tasks of an environment are played, and every episode is kept.

One line an episode (`types.Trajectory` as JSON), in the order of the tasks, whatever the number of processes; stopped at any
point and called again, it goes on and ends with the same bytes as one that was never stopped. Here plays a scripted agent, which needs no
model, which loads nothing of what a model takes; a policy plays in `targets.collect`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from skill_ttrl.agents.scripted import FIRST, ScriptedAgent, check_adviser, make_scripted_agent
from skill_ttrl.config import AgentConfig, CollectConfig, ScaleConfig, SkillTTRLConfig
from skill_ttrl.cores import cores
from skill_ttrl.envs import check_text_env, make_env, resolve_env
from skill_ttrl.envs.text_env import close_env
from skill_ttrl.errors import ConfigError, EnvError
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.rollout.outcome import EpisodeResult
from skill_ttrl.rollout.scripted import MOVES, Exploration, run_scripted_episode
from skill_ttrl.scale.cluster import open_pool
from skill_ttrl.signals import StopSignal
from skill_ttrl.stages.collecting.collection import (
    Collected,
    Collection,
    EpisodeWriter,
    TaskSelection,
    Unit,
    training_selection,
    written,
)
from skill_ttrl.stages.collecting.watch import find_scripted_agent
from skill_ttrl.types import Task
from skill_ttrl.workers import work

Played = tuple[str, EpisodeResult]
"""The line of an episode, and what is counted of it."""
_LISTING = {"action_order", "hidden_verbs", "actions", "action_parser", "max_turns"}
MOST_A_BATCH = 16
"""Most episodes that travel to a worker together."""
BATCHES = 64
"""Least number of batches, if there are so many episodes: then the workers finish at about the same time."""
_EPISODES_A_PROCESS = 64  # fewer are played sooner than another process has started


def run(
    selection: TaskSelection,
    *,
    agent: str = "expert",
    prompts: AgentConfig | None = None,
    explore: float | Sequence[float] | Exploration = 0.0,
    seed: int = 0,
    jobs: int | None = None,
    scale: ScaleConfig | None = None,
    output: str | Path | None = None,
    progress: Progress | None = None,
    timeout_s: float | None = None,
) -> Collected:
    """Run a scripted agent on tasks, in order, and store every episode.

    An episode in which the environment or the agent fails is data: its line has `error`, and it counts as no success.

    Args:
        selection: which tasks; the environment is made with its `kwargs`.
        agent: `expert`, `random`, `first`, `constant:TEXT`, `walkthrough`, or `module:attribute`, called without arguments
            (`agents.scripted.ScriptedAgent`). Each process has one, so `start` must forget earlier episodes.
        prompts: how a policy's prompts list the actions and how many turns it has: `first` then takes the action that such a
            prompt lists first. None: as the environment lists them.
        explore: probability, in [0, 1], that a step takes a random admissible action in place of the agent's own, which stays in
            the step's `info` as `expert_action`; a sequence: one for each rollout of a task in turn. See `Exploration`.
        seed: of the environment, where a task has none, and of the scripted agent, whose choices differ between rollouts of a task.
        jobs: processes; None: one for each core, and fewer where there is little to play. More than one start a fresh Python
            each, so that a script that calls this stands under `if __name__ == "__main__"`.
        scale: where the agent plays; None: on this machine.
        output: `FILE.jsonl`; the settings are stored in `FILE.jsonl.json`. None: nothing is stored.
        progress: reports episodes, success and notices.
        timeout_s: seconds that an episode may take; None: any time.

    Raises:
        ConfigError: there is no such agent, or a number is out of its range.
        EnvError: there is no such environment, split, type or data, or every episode failed.
        RunFolderError: `output` holds something else, or cannot be written.
        Interrupted: a signal came; what was played is kept where there is an `output`.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, found {jobs}.")
    scale = scale or ScaleConfig()
    if jobs is not None and scale.address is not None:
        raise ConfigError(
            f"--num-workers={jobs} sets processes on this machine. With scale.address={scale.address} set scale.workers instead."
        )
    collection = Collection(
        selection.made(selection.kwargs),
        agent,
        seed,
        output,
        progress or SilentProgress(),
        Exploration.of(explore),
    )
    return _collect(collection, prompts, jobs, scale, timeout_s)


def run_as_configured(
    config: SkillTTRLConfig,
    *,
    agent: str,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> Collected:
    """Have a scripted agent play what a run of `config` is measured on, so that both can be compared: same tasks, same turns.

    `first` takes the action that the config's prompts list first, `constant:TEXT` is read as the config reads a model's text.

    Args:
        config: its environment, `env.eval_split`, `env.eval_tasks` and `agent` are used.
        agent: see `run`.
        split: another split.
        limit: another number of tasks.
        seed: see `run`.
        jobs: see `run`.
        output: see `run`.
        progress: see `run`.

    Raises:
        ConfigError: the config is measured on tasks of files or families, which an agent does not play; or the order of the actions
            depends on the skills of a bank, which only the policy's own evaluation knows.
        SkillTTRLError: as for `run`.
    """
    env, source = config.env, config.data.eval or config.data.train
    if source is not None:
        raise ConfigError(
            f"This config evaluates on {source.path}, but an agent plays the environment's own tasks. Use --env instead of "
            "--config, or keep the config's prompts with: --set data.train=null --set data.eval=null."
        )
    bank = config.skills is not None and config.skills.enabled and config.skills.bank is not None
    if agent == FIRST and config.agent.action_order == "words" and bank:
        raise ConfigError(
            "With agent.action_order=words the bank's skills decide which action is listed first. Evaluate the policy instead: its "
            "table includes this agent. Or add: --set skills.enabled=false."
        )
    return run(
        TaskSelection(
            env.id,
            env.eval_split if split is None else split,
            env.kwargs,
            episodes=env.eval_tasks if limit is None else limit,
        ),
        agent=agent,
        prompts=config.agent,
        seed=seed,
        jobs=jobs,
        scale=config.scale,
        output=output,
        progress=progress,
        timeout_s=config.rollout.rollout_timeout_s,
    )


def _collect(
    collection: Collection, prompts: AgentConfig | None, jobs: int | None, scale: ScaleConfig, timeout_s: float | None
) -> Collected:
    selection, agent, explore = collection.selection, collection.agent, collection.explore
    if explore.advises:  # refused before anything is played
        check_adviser(make_scripted_agent(agent, resolve_env(selection.env), prompts))
    units = selection.units(collection.progress)
    make = partial(_Playing, selection.env, selection.kwargs, agent, prompts, collection.seed, explore, timeout_s)
    depends_on: dict[str, Any] = {"explore": explore.stated} if explore.advises else {}
    depends_on |= {
        name: value
        for name, value, default in (
            ("explore_moves", explore.moves, 0.0),
            ("explore_moves_like", list(explore.moves_like), list(MOVES)),
            ("explore_never", list(explore.never), []),
            ("max_steps", explore.max_steps, None),
        )
        if value != default
    }
    if prompts is not None:
        depends_on["prompts"] = prompts.model_dump(mode="json", include=_LISTING)
    return collection.run(units, depends_on, lambda writer: _play(make, writer, jobs, scale))


def collect_into(path: Path, config: SkillTTRLConfig, progress: Progress) -> Collected:
    """Run the collect phase of a run: the agent that `config.collect` names plays the run's training tasks. Resumes where it stopped.

    A plain model plays with the run's config, including its skill bank; a trained policy plays with its own config.

    Args:
        path: `FILE.jsonl` for the episodes.
        config: the run's.
        progress: reports episodes and success.

    Raises:
        SkillTTRLError: as for `run` and `targets.collect.run_policy`.
        Interrupted: a signal came; finished episodes are stored.
    """
    if find_scripted_agent(config.collect.agent, resolve_env(config.env.id)) is None:
        from skill_ttrl.stages.targets.collect import collect_for_run

        return collect_for_run(path, config, progress)
    asked = config.collect
    collection = Collection(training_selection(config), asked.agent, config.seed, path, progress, exploration(asked))
    # More processes need a script that stands under `if __name__ == "__main__"`, which a caller of a run need not know.
    return _collect(collection, None, 1, config.scale, config.rollout.rollout_timeout_s)


def exploration(asked: CollectConfig) -> Exploration:
    """The exploration that a config asks for."""
    listed = isinstance(asked.epsilon, list)
    chances = tuple(asked.epsilon) if isinstance(asked.epsilon, list) else (asked.epsilon,)
    moves, never = tuple(asked.explore_moves_like), tuple(asked.explore_never)
    return Exploration(chances, asked.explore_moves, asked.max_steps, listed, moves, never)


class _Playing:
    """Plays one unit after another in its process, with one environment and one scripted agent.

    Both are made anew after an episode that failed: what comes next must not depend on what a failure left behind.
    """

    def __init__(
        self,
        env: str,
        kwargs: Mapping[str, Any],
        agent: str,
        prompts: AgentConfig | None,
        seed: int,
        explore: Exploration,
        timeout_s: float | None,
    ) -> None:
        self._make_env = partial(make_env, env, **kwargs)
        self._make_agent = partial(make_scripted_agent, agent, resolve_env(env), prompts)
        self._play = partial(run_scripted_episode, seed=seed, explore=explore, timeout_s=timeout_s)
        if prompts is not None:
            self._play = partial(self._play, max_steps=prompts.max_turns)
        self._made: tuple[gymnasium.Env[Any, Any], ScriptedAgent] | None = None

    def __call__(self, unit: Unit) -> Played:
        """The line of the episode, and what is counted of it."""
        env, agent = self._made = self._made or self._make()
        task, attempt = unit
        played = self._play(env, task, agent, attempt=attempt)
        line, outcome = written(played)
        if outcome.error is not None:
            if played.stop_reason != "timeout":  # else it may be running, and closing it could take as long
                close_env(env)
            self._made = None
        return line, outcome

    def _make(self) -> tuple[gymnasium.Env[Any, Any], ScriptedAgent]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said already, where the tasks were listed
            return self._make_env(), self._make_agent()

    def check(self, tasks: Sequence[Task]) -> None:
        """See that agent and environment can be made where this is called, and that one of these tasks can be played.

        Raises:
            EnvError: they cannot, or its data are not there.
        """
        env, _ = self._make()
        try:
            for task in tasks:
                with suppress(EnvError):  # a task that fails is data
                    return check_text_env(env, task)
            check_text_env(env, tasks[0])
        finally:
            close_env(env)


def _play(make: partial[_Playing], writer: EpisodeWriter, jobs: int | None, scale: ScaleConfig) -> int:
    """Play what is left, in order."""
    left = writer.units[len(writer.outcomes) :]
    with ExitStack() as stack:
        if scale.address is None:
            jobs = jobs or min(cores(), max(1, len(left) // _EPISODES_A_PROCESS))
            results = work(make, left, jobs, partial(writer.progress.notice, warning=True))
        else:
            results = stack.enter_context(_on_workers(make, left, scale, writer.progress))
        stop = stack.enter_context(StopSignal())
        stack.enter_context(closing(results))
        for _ in left:
            with stop.interruptible(writer.leaving()):
                line, outcome = next(results)
            writer.show(outcome)
            writer.add(line, outcome)
    return 0


@contextmanager
def _on_workers(
    make: partial[_Playing], units: Sequence[Unit], scale: ScaleConfig, progress: Progress
) -> Iterator[Generator[Played]]:
    """Yield the result of each unit, in order, played by workers of a Ray cluster that end with the block.

    Raises:
        WorkerError: there is no cluster, or its nodes are not ready.
    """
    size = max(1, min(MOST_A_BATCH, len(units) // BATCHES))
    batches = [units[start : start + size] for start in range(0, len(units), size)]
    tried = [units[place][0] for place in dict.fromkeys((0, len(units) // 2, len(units) - 1))]
    check, setup = partial(_check, make, tried), partial(_set_up, make, tried)
    with open_pool(setup, check, scale, most=len(batches), progress=progress) as pool:
        yield (each for batch in pool.map(batches) for each in batch)


def _check(make: partial[_Playing], tasks: Sequence[Task]) -> None:
    make().check(tasks)


def _set_up(make: partial[_Playing], tasks: Sequence[Task]) -> tuple[Callable[[Sequence[Unit]], list[Played]], None]:
    """`workers.Setup`: plays batches. Checked again: the worker's node may have joined after the others were asked."""
    playing = make()
    playing.check(tasks)
    return lambda units: [playing(unit) for unit in units], None
