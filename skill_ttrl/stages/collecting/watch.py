"""One episode to watch: a person or a scripted agent plays, and every step is reported as it happens.

The result is the same `Trajectory` as that of a collection: `run_scripted_episode` runs on a wrapped environment that reports its steps.
Policies are in `play_policy`, whose imports take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from skill_ttrl.agents.scripted import (
    ScriptedAgent,
    WalkthroughAgent,
    make_scripted_agent,
    scripted_agent_names,
)
from skill_ttrl.config import BUILTIN, SkillTTRLConfig, load_config
from skill_ttrl.envs import make_env, prepare_env, resolve_env
from skill_ttrl.envs.lookup import refuse_split, split_argument
from skill_ttrl.errors import ConfigError, EndpointError, EnvError, SplitError, did_you_mean
from skill_ttrl.llm.backends import REMOTE, is_command
from skill_ttrl.llm.models.gguf import is_gguf
from skill_ttrl.progress import OPENING, Counting, Progress, SilentProgress, telling_warnings
from skill_ttrl.rollout.info import admissible_actions, make_step, serializable_info, stated, text_of
from skill_ttrl.rollout.scripted import run_scripted_episode
from skill_ttrl.types import Step, Task, Trajectory

SCRIPTED_AGENT_NAMES = scripted_agent_names()

TextEnvironment = gymnasium.Env[str, str]


@dataclass(frozen=True, slots=True)
class Scene:
    """State of the episode to show: at the start, and after every step."""

    step: int
    """Steps played so far; 0 at the start."""
    limit: int | None
    """Steps of an episode; None where the environment sets no bound."""
    action: str | None
    """Action that led here; None at the start."""
    observation: str
    info: Mapping[str, Any]
    earned: float
    """Sum of the rewards so far."""
    over: bool
    """True if the environment has ended the episode."""


Watch = Callable[[Scene], None]


class Stopped(BaseException):
    """The episode is ended from outside. It is no `Exception`: a rollout takes those for outcomes of the environment."""


class WatchedEnv(gymnasium.Wrapper[str, str, str, str]):
    """Environment wrapper that calls `watch` after every reset and step, and records the steps."""

    def __init__(self, env: TextEnvironment, task: Task, watch: Watch) -> None:
        super().__init__(env)
        self._task, self._watch = task, watch
        self._limit = step_limit(env)
        self._steps: list[Step] = []
        self._observation = ""
        self._info: Mapping[str, Any] = {}
        self._reset_info: Mapping[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._steps, self._reset_info = [], serializable_info(info)
        self._tell(None, text_of(observation), info, over=False)
        return observation, info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`."""
        answer = self.env.step(action)
        possible = admissible_actions(self._info)
        observation, step = make_step(self._observation, action, answer, self._reset_info, admissible_actions=possible)
        self._steps.append(step)
        self._tell(action, observation, answer[-1], over=step.terminated or step.truncated)
        return answer

    def so_far(self) -> Trajectory:
        """Return the steps so far as an episode that reached its last turn (`stop_reason` "max_turns")."""
        seen = self._observation if self._steps else ""
        return Trajectory(
            self._task,
            tuple(self._steps),
            None,
            "max_turns",
            final_obs=seen,
            source=stated(self._reset_info, "source"),
        )

    def _tell(self, action: str | None, observation: str, info: Any, *, over: bool) -> None:
        self._observation, self._info = observation, info
        earned = sum(step.reward for step in self._steps)
        try:
            self._watch(Scene(len(self._steps), self._limit, action, observation, info, earned, over))
        except Exception as error:  # a screen that fails is no outcome of the environment
            raise Stopped from error


def step_limit(env: TextEnvironment) -> int | None:
    """The longest episode: the environment's own `max_steps`, or what it was registered with; None where neither says."""
    own = getattr(env.unwrapped, "max_steps", None)
    if isinstance(own, int):
        return own
    return env.spec.max_episode_steps if env.spec is not None else None


def play(env: TextEnvironment, task: Task, agent: ScriptedAgent, *, seed: int, watch: Watch) -> Trajectory:
    """Let a scripted agent play `task`.

    Args:
        env: is reset; stays open.
        task: what is played.
        agent: plays the task. It may raise `Stopped` to leave: the steps so far are the episode (`stop_reason` "max_turns").
        seed: see `run_scripted_episode`.
        watch: called with every scene, before the agent acts on it.

    Raises:
        EnvError: the walkthrough is to be played, and the environment has none.
    """
    watched = WatchedEnv(env, task, watch)
    try:
        played = run_scripted_episode(watched, task, agent, seed=seed)
    except Stopped as stopped:
        return ended(watched, stopped)
    if isinstance(agent, WalkthroughAgent) and not played.steps:
        raise EnvError(
            f"{task.env_id} has no walkthrough of {task.id} ({played.error}). Watch another policy with --policy."
        )
    return played


def find_scripted_agent(name: str, env_id: str) -> ScriptedAgent | None:
    """Return the scripted agent called `name`; None where a policy is meant.

    Raises:
        ConfigError: nothing has this name.
        EnvError: this environment has no expert.
    """
    if is_command(name) or is_gguf(name):
        return None
    exists = Path(name).exists()
    if name in SCRIPTED_AGENT_NAMES or (":" in name and not name.startswith(f"{REMOTE}:") and not exists):
        return make_scripted_agent(name, env_id)
    if name not in (REMOTE, BUILTIN) and "/" not in name and ":" not in name and not exists:
        raise ConfigError(
            f"There is no policy {name!r}.{did_you_mean(name, SCRIPTED_AGENT_NAMES)} A model is a run folder, a checkpoint, a model "
            "folder, owner/name, openai:MODEL or command:PROGRAM; your own scripted agent is module:attribute."
        )
    return None


def env_kwargs(overrides: Sequence[str], env_id: str, trained: SkillTTRLConfig | None = None) -> dict[str, Any]:
    """Arguments of the environment: those that a run was trained with, where it was in the same one, then `env.kwargs`."""
    asked = load_config({}, [each for each in overrides if each.startswith("env.kwargs")]).env.kwargs
    return {**(trained.env.kwargs if trained is not None and _plays(trained, env_id) else {}), **asked}


def open_env(
    env_id: str,
    kwargs: Mapping[str, Any],
    split: str | None,
    progress: Progress | None = None,
    *,
    name: str | None = None,
) -> TextEnvironment:
    """The environment; one that takes a `split` is made for this one, so that it looks for no other.

    Args:
        env_id: its id.
        kwargs: its arguments.
        split: None: the one that `name` begins with, as ALFWorld's ids do; else its own.
        progress: reports how far it is where opening takes long.
        name: of the task that it is opened for.

    Raises:
        ConfigError: there is a split among the arguments too.
        EnvError: it cannot be made with these arguments.
    """
    there, slash, _ = (name or "").partition("/")
    if split is None and slash and "split" not in kwargs:
        with suppress(SplitError):  # what stands before the slash need be no split
            return open_env(env_id, kwargs, there, progress)
    if split is not None:
        refuse_split(kwargs)
    arguments = {**kwargs, **({} if split is None else split_argument(env_id, split))}
    progress = progress or SilentProgress()
    with telling_warnings(progress):
        prepare_env(env_id, arguments, Counting(progress, OPENING, "item"))
        return make_env(env_id, **arguments)


def refuse_error(trajectory: Trajectory) -> None:
    """Raise `EnvError`, or `EndpointError` of a model that gave no answer, with what went wrong in an episode."""
    if trajectory.error is not None:
        place = f"at step {len(trajectory.steps) + 1}" if trajectory.steps else "before the first step"
        kind = EndpointError if trajectory.stop_reason == "no_answer" else EnvError
        raise kind(f"The episode in {trajectory.task.env_id} failed {place}: {trajectory.error}")


def _plays(config: SkillTTRLConfig, env_id: str) -> bool:
    try:
        return resolve_env(config.env.id) == env_id
    except EnvError:  # what it was trained in is not here: something else, then
        return False


def ended(watched: WatchedEnv, stopped: Stopped) -> Trajectory:
    """Return the steps before the episode was stopped; raise the error of `watch`, if it raised one."""
    if stopped.__cause__ is not None:
        raise stopped.__cause__
    return watched.so_far()
