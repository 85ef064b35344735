"""`skillttrl collect`: the tasks of an environment are played, and every episode is kept.

One line an episode (`types.Trajectory` as JSON), in the order of the tasks, whatever the number of processes; stopped at any
point and called again, it goes on and ends with the same bytes as one that was never stopped. Here plays a player that needs no
model, which loads nothing of what a model takes; a policy plays in `collect_policy`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from skill_ttrl.agents.players.scripted_agent import FIRST, Player, WalkthroughPlayer, make_player
from skill_ttrl.config import AgentConfig, SkillTTRLConfig
from skill_ttrl.cores import cores
from skill_ttrl.envs import make_env, resolve_env
from skill_ttrl.envs.contract import close_env
from skill_ttrl.envs.lookup import refuse_split, split_argument
from skill_ttrl.errors import ConfigError
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.rollout.scripted import play_episode
from skill_ttrl.signals import StopSignal
from skill_ttrl.stages.collecting.collection import (
    PHASE,
    Collected,
    Place,
    Tally,
    Unit,
    open_file,
    training_place,
    written,
)
from skill_ttrl.stages.collecting.watch import find_player
from skill_ttrl.stages.evaluation.outcomes import Outcome
from skill_ttrl.workers import work

_LISTING = {"order", "unlisted", "actions", "projection", "max_turns"}
_EPISODES_A_PROCESS = 64  # fewer are played sooner than another process has started


def run(
    env: str,
    *,
    agent: str = "expert",
    prompts: AgentConfig | None = None,
    split: str = "train",
    kwargs: Mapping[str, Any] | None = None,
    types: Sequence[str] = (),
    episodes: int | None = None,
    tries: int = 1,
    explore: float = 0.0,
    seed: int = 0,
    jobs: int | None = None,
    output: str | Path | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> Collected:
    """Have a player play the tasks of a split in their order, and keep every episode.

    An episode in which the environment or the player fails is data: its line has `error`, and it counts as no success.

    Args:
        env: short name, Gymnasium id, or `module:EnvId-v0`.
        agent: `expert`, `random`, `first`, `constant:TEXT`, `walkthrough`, or `module:attribute`, called without arguments
            (`agents.player.Player`). Each process has one, so `start` must forget earlier episodes.
        prompts: how a policy's prompts list the actions and how many turns it has: `first` then takes the action that such a
            prompt lists first. None: as the environment lists them.
        split: part of the environment's tasks.
        kwargs: handed to the environment.
        types: only tasks of these types; empty: all.
        episodes: so many, of tasks spread over the split and its types (`envs.lookup.spread`); None: all.
        tries: episodes of each task; they begin alike, and the player's choices differ.
        explore: chance of a step, in [0, 1], that any admissible action is taken in place of the player's own, which stays in the
            step's `info` as `advice`.
        seed: of the environment, where a task has none, and of the player.
        jobs: processes; None: one for each core, and fewer where there is little to play. More than one start a fresh Python
            each, so that a script that calls this stands under `if __name__ == "__main__"`.
        output: `FILE.jsonl`; what it was made with stands in `FILE.jsonl.json`. None: nothing is kept.
        confidence: level of the intervals, in (0, 1).
        progress: told of episodes, success and what was found.

    Raises:
        ConfigError: there is no such agent, or a number is out of its range.
        EnvError: there is no such environment, split, type or data, or every episode failed.
        RunFolderError: `output` holds something else, or cannot be written.
        Interrupted: a signal came; what was played is kept where there is an `output`.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, found {jobs}.")
    refuse_split(kwargs or {})
    place = Place(env, split, {**(kwargs or {}), **split_argument(env, split)}, tuple(types), episodes, tries)
    return _collect(place, agent, prompts, explore, seed, jobs, output, confidence, progress or SilentProgress())


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
    """Have a player play what a run of `config` is measured on, so that both can be compared: same tasks, same turns.

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
            f"This config is measured on {source.path}, but an agent plays the environment's own tasks, which are others. With --env "
            "instead of --config it plays those; to play them with these prompts: --set data.train=null --set data.eval=null."
        )
    bank = config.skills is not None and config.skills.use and config.skills.bank is not None
    if agent == FIRST and config.agent.order == "words" and bank:
        raise ConfigError(
            "With agent.order=words the skills of the bank decide which action a prompt lists first. Evaluate the policy: its table "
            "shows the agent first under the same bank. Or measure without: --set skills.use=false."
        )
    return run(
        env.id,
        agent=agent,
        prompts=config.agent,
        split=env.eval_split if split is None else split,
        kwargs=env.kwargs,
        episodes=env.eval_tasks if limit is None else limit,
        seed=seed,
        jobs=jobs,
        output=output,
        confidence=config.eval.confidence,
        progress=progress,
    )


def _collect(
    place: Place,
    agent: str,
    prompts: AgentConfig | None,
    explore: float,
    seed: int,
    jobs: int | None,
    output: str | Path | None,
    confidence: float,
    progress: Progress,
) -> Collected:
    _refuse_exploring(make_player(agent, resolve_env(place.env), prompts), explore)  # before anything is played
    units = place.units(progress)
    began = time.perf_counter()
    with ExitStack() as stack:
        file = None
        if output is not None:
            more = ({"explore": explore} if explore else {}) | _made_with(prompts)
            made_with = place.made_with(units, agent, seed, more)
            file = stack.enter_context(open_file(output, made_with))
        tally = Tally(units, file, progress)
        tally.read_kept()
        make = partial(_Playing, place.env, place.kwargs, agent, prompts, seed, explore)
        left = len(units) - len(tally.outcomes)
        _play(make, tally, jobs or min(cores(), max(1, left // _EPISODES_A_PROCESS)))
        return tally.found(
            place, agent, seed, confidence=confidence, seconds=time.perf_counter() - began, explore=explore
        )


def collect_into(path: Path, config: SkillTTRLConfig, progress: Progress) -> Collected:
    """The phase collect of a run: whoever `config.collect` names plays the run's training tasks, and goes on where it stopped.

    A policy plays as the run's own config says, its skill bank included; one that was trained, as its own config says.

    Args:
        path: `FILE.jsonl` for the episodes.
        config: the run's.
        progress: told of episodes and success.

    Raises:
        SkillTTRLError: as for `run` and `collect_policy.run_policy`.
        Interrupted: a signal came; what was played is kept.
    """
    if find_player(config.collect.agent, resolve_env(config.env.id)) is None:
        from skill_ttrl.stages.collecting.policy import collect_for_run

        return collect_for_run(path, config, progress)
    jobs = 1  # more need a script that stands under `if __name__ == "__main__"`, which a caller of a run need not know
    asked, place = config.collect, training_place(config)
    return _collect(place, asked.agent, None, asked.explore, config.seed, jobs, path, config.eval.confidence, progress)


def _made_with(prompts: AgentConfig | None) -> dict[str, Any]:
    """The settings of a policy's prompts that decide an episode of a player."""
    return {} if prompts is None else {"prompts": prompts.model_dump(mode="json", include=_LISTING)}


def _refuse_exploring(player: Player, explore: float) -> None:
    if not 0 <= explore <= 1:
        raise ConfigError(f"explore is a share of the steps, from 0 to 1, found {explore:g}.")
    if explore and isinstance(player, WalkthroughPlayer):
        raise ConfigError(
            "explore has no meaning with walkthrough: it replays a solution without looking, so that it is lost after the first "
            "other action. Take the expert."
        )


class _Playing:
    """Plays one unit after another in its process, with one environment and one player.

    Both are made anew after an episode that failed: what comes next must not depend on what a failure left behind.
    """

    def __init__(
        self,
        env: str,
        kwargs: Mapping[str, Any],
        agent: str,
        prompts: AgentConfig | None,
        seed: int,
        explore: float,
    ) -> None:
        self._make_env = partial(make_env, env, **kwargs)
        self._make_player = partial(make_player, agent, resolve_env(env), prompts)
        self._play = partial(play_episode, seed=seed, explore=explore)
        if prompts is not None:
            self._play = partial(self._play, max_steps=prompts.max_turns)
        self._made: tuple[gymnasium.Env[Any, Any], Player] | None = None

    def __call__(self, unit: Unit) -> tuple[bytes, Outcome]:
        """The line of the episode, and what is counted of it."""
        env, player = self._made = self._made or self._make()
        task, attempt = unit
        line, outcome = written(self._play(env, task, player, attempt=attempt))
        if outcome.error is not None:
            close_env(env)
            self._made = None
        return line, outcome

    def _make(self) -> tuple[gymnasium.Env[Any, Any], Player]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said already, where the tasks were listed
            return self._make_env(), self._make_player()


def _play(make: partial[_Playing], tally: Tally, jobs: int) -> None:
    """Play what is left, in order; what was played is kept however it ends."""
    left = tally.units[len(tally.outcomes) :]
    if not left:
        return
    tally.progress.start(PHASE, len(tally.units), "episode", len(tally.outcomes))
    with StopSignal() as stop, closing(work(make, left, jobs)) as results:
        try:
            for _ in left:
                with stop.interruptible(tally.leaving()):
                    line, outcome = next(results)
                tally.show(outcome)
                tally.add(line, outcome)
        finally:
            tally.write()
    tally.progress.finish(PHASE)
