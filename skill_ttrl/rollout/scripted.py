"""One episode of an agent that needs no model, with or without random actions in place of its own."""

from __future__ import annotations

import contextvars
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from skill_ttrl.agents.scripted import ScriptedAgent, advice_of, any_action, on_action_override
from skill_ttrl.errors import ConfigError
from skill_ttrl.rollout.info import (
    admissible_actions,
    failure,
    make_step,
    reset_options,
    serializable_info,
    stated,
    text_of,
)
from skill_ttrl.signals import FAILURES
from skill_ttrl.types import Step, StopReason, Task, Trajectory, derive_seed

MOVES = ("go to *",)
"""Actions that only move, as patterns: a text, or a beginning with `*` behind it."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """Random actions that an agent's episodes have in place of its own."""

    chances: tuple[float, ...] = (0.0,)
    """Chance of a step, in [0, 1], that another action is taken: one for each attempt at a task in turn, from the first again after the last."""
    moves: float = 0.0
    """Share of these actions that only move (`moves_like`), where the environment lists such; the others are any of the admissible ones."""
    max_steps: int | None = None
    """Longest episode; None: the environment alone bounds it."""
    listed: bool = False
    """The chances were given as a list: the advice of the agent is then recorded even where all of them are 0."""
    moves_like: tuple[str, ...] = MOVES
    """Patterns of the actions that only move: a text, or its beginning with `*` behind it."""
    never: tuple[str, ...] = ()
    """Patterns of actions that are never taken at random. Where no other is possible, the agent's own is taken."""

    @classmethod
    def of(cls, explore: float | Sequence[float] | Exploration) -> Exploration:
        """The exploration with this chance, or with these.

        Raises:
            ConfigError: a share is not between 0 and 1, or there is none.
        """
        if not isinstance(explore, Exploration):
            listed = isinstance(explore, Sequence)
            explore = cls(tuple(explore) if isinstance(explore, Sequence) else (explore,), listed=listed)
        if not explore.chances:
            raise ConfigError("explore is empty: give a probability such as 0, or one per rollout of a task.")
        for name, share in [*(("explore", chance) for chance in explore.chances), ("explore_moves", explore.moves)]:
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} is a probability from 0 to 1, found {share:g}.")
        if explore.max_steps is not None and explore.max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, found {explore.max_steps}.")
        return explore

    @property
    def advises(self) -> bool:
        """True where every step of every attempt says what the agent advised: any attempt explores, or there is a chance for each."""
        return any(self.chances) or self.listed

    @property
    def stated(self) -> float | list[float]:
        """The chances as a config has them: one number, or a list."""
        return list(self.chances) if self.listed else self.chances[0]

    def draw(self, rng: random.Random, info: Mapping[str, Any], attempt: int) -> str | None:
        """The action to take in place of the agent's own; None: its own."""
        chance = self.chances[attempt % len(self.chances)]
        if not chance or rng.random() >= chance:
            return None
        if self.never:
            left = [action for action in admissible_actions(info) if not fits(action, self.never)]
            if not left:
                return None
            info = {**info, "admissible_commands": left}
        if self.moves and rng.random() < self.moves:
            moves = [action for action in admissible_actions(info) if fits(action, self.moves_like)]
            if moves:
                return rng.choice(moves)
        return any_action(rng, info)


def fits(action: str, patterns: Sequence[str]) -> bool:
    """True if an action is one of the texts, or begins as one that ends in `*`."""
    return any(action.startswith(each[:-1]) if each.endswith("*") else action == each for each in patterns)


def run_scripted_episode(
    env: gymnasium.Env[str, str],
    task: Task,
    agent: ScriptedAgent,
    *,
    seed: int,
    attempt: int = 0,
    explore: float | Sequence[float] | Exploration = 0.0,
    max_steps: int = 1000,
    timeout_s: float | None = None,
) -> Trajectory:
    """Play a task to its end.

    An agent that explores is asked in every step; in some another action is taken all the same, which leads to states it would never see.

    An exception of the environment or the agent is the episode's outcome (`stop_reason` "error"), not the caller's.

    Args:
        env: it is reset.
        task: what is played.
        agent: plays the task.
        seed: of the environment, where the task has none, and of the agent.
        attempt: number of the attempt at this task: all begin alike, and the agent's choices differ.
        explore: chance of a step, in [0, 1], that any admissible action is taken, all equally likely, whatever the agent says; see
            `Exploration`. Above 0, what it said stands in the `info` of every step (`ADVICE`).
        max_steps: bound for environments that set none.
        timeout_s: seconds that the episode may take (`rollout.rollout_timeout_s`); None: any time. An episode that takes longer ends with
            `stop_reason` "timeout". The environment and the agent may still be running then: do not use them again.
    """
    how, steps = Exploration.of(explore), list[Step]()
    stop: StopReason = "max_turns"
    observation, error = "", None
    reset_info: Mapping[str, Any] = {}

    def play() -> None:
        nonlocal observation, reset_info, stop, error
        try:
            observation, info = _reset(env, task, agent, seed)
            reset_info = serializable_info(info)
            agent.start(observation, info, derive_seed(seed, "player", task.id, *([attempt] if attempt else [])))
            draws = random.Random(derive_seed(seed, "explore", task.id, attempt))
            while len(steps) < min(max_steps, how.max_steps or max_steps) and stop == "max_turns":
                advice, admissible = (
                    text_of(agent.act(observation, info), "The agent's action"),
                    admissible_actions(info),
                )
                shown = {ADVICE: learnt} if how.advises and (learnt := advice_of(agent, advice)) is not None else {}
                action = how.draw(draws, info, attempt) or advice
                if action != advice:
                    on_action_override(agent, action)
                answer = env.step(action)
                observation, step = make_step(observation, action, answer, reset_info, admissible_actions=admissible)
                info = answer[-1]
                steps.append(replace(step, info={**step.info, **shown}) if shown else step)
                if stop == "max_turns" and (step.terminated or step.truncated):
                    stop = "terminated" if step.terminated else "truncated"
        except FAILURES as raised:
            stop, error = "error", failure(raised)

    if timeout_s is None:
        play()
    elif not _ends_in(timeout_s, play):
        stop, steps = "timeout", list(steps)
        error = f"After {timeout_s:g} s (rollout.rollout_timeout_s) it had not ended; {len(steps)} steps were played."
    answered = steps[-1].info.get("answer") if steps else None
    return Trajectory(
        task,
        tuple(steps),
        None if answered is None else str(answered),
        stop,
        error=error,
        final_obs=observation if steps else "",
        source=stated(reset_info, "source"),
        goal=stated(reset_info, "task"),
    )


def _ends_in(seconds: float, play: Callable[[], None]) -> bool:
    """Run `play` in a thread of its own, since what hangs can only be left alone; False where it has not ended in time."""
    ended: Future[None] = Future()

    def run() -> None:
        try:
            play()
            ended.set_result(None)
        except BaseException as error:  # raised where the episode is waited for
            ended.set_exception(error)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="episode", daemon=True).start()
    try:
        ended.result(seconds)
    except TimeoutError:
        return False
    return True


def _reset(env: gymnasium.Env[str, str], task: Task, agent: ScriptedAgent, seed: int) -> tuple[str, dict[str, Any]]:
    """First observation and `info` of a task, with what the agent needs to know of it."""
    options = {**reset_options(task), **getattr(agent, "requires", {})}
    own = derive_seed(seed, "env", task.id) if task.seed is None else task.seed
    observation, info = env.reset(seed=own, options=options)
    return text_of(observation), info


ADVICE = "expert_action"
"""Key of a step's `info`: what a scripted agent would have done there."""


class Adviser:
    """Watches one rollout; its `advice` is for the present state.

    Args:
        agent: gives the advice. It learns of each action that was not its own (`ScriptedAgent`).
        seed: of the agent's choices.
        attempt: number of the rollout of its task.
    """

    def __init__(self, agent: ScriptedAgent, seed: int, attempt: int = 0) -> None:
        self._agent, self._seed, self._attempt = agent, seed, attempt
        self._said = ""
        self.advice: str | None = None
        """The action that the agent would take; None where that would be a guess."""

    def start(self, task: Task, observation: str, info: Mapping[str, Any]) -> None:
        """Watch an episode that begins."""
        own = [self._attempt] if self._attempt else []
        self._agent.start(observation, info, derive_seed(self._seed, "player", task.id, *own))
        self._advise(observation, info)

    def follow(self, action: str, observation: str, info: Mapping[str, Any]) -> None:
        """Advise on the state that `action` has led to."""
        if action != self._said:
            on_action_override(self._agent, action)
        self._advise(observation, info)

    def _advise(self, observation: str, info: Mapping[str, Any]) -> None:
        self._said = text_of(self._agent.act(observation, info), "The agent's action")
        self.advice = advice_of(self._agent, self._said)
