"""Scripted agents in rollouts: random actions in place of their own, and what they would have done."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skill_ttrl.agents.scripted import ScriptedAgent, any_action
from skill_ttrl.errors import ConfigError
from skill_ttrl.rollout.info import admissible_actions, text_of
from skill_ttrl.types import Task, derive_seed

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
            explore = cls(tuple(explore) if isinstance(explore, Sequence) else (explore,))
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
        """True where every step of every attempt says what the agent advised: an attempt explores."""
        return any(self.chances)

    @property
    def stated(self) -> float | list[float]:
        """The chances as a config has them: one number, or a list."""
        return list(self.chances) if len(self.chances) > 1 else self.chances[0]

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


ADVICE = "expert_action"
"""Key of a step's `info`: what a scripted agent would have done there."""


class ScriptedPlayer:
    """A scripted agent in one rollout: it plays, or watches a model play and says what it would do.

    Args:
        agent: learns of each action that was not its own (`ScriptedAgent`).
        seed: of the agent's choices and of the random actions.
        attempt: number of the rollout of its task: all begin alike, and the agent's choices differ.
        explore: it plays, and some of its actions are replaced; None: it watches.
    """

    def __init__(self, agent: ScriptedAgent, seed: int, attempt: int = 0, explore: Exploration | None = None) -> None:
        self.agent, self.plays = agent, explore is not None
        self._seed, self._attempt, self._explore = seed, attempt, explore
        self._said = ""

    def start(self, task: Task, observation: str, info: Mapping[str, Any]) -> None:
        """An episode begins."""
        own = [self._attempt] if self._attempt else []
        self._draws = random.Random(derive_seed(self._seed, "explore", task.id, self._attempt))
        self.agent.start(observation, info, derive_seed(self._seed, "player", task.id, *own))

    def advise(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """The action that the agent would take here, for the step's `info`; None where that is a guess, or nobody asked for it."""
        self._said = text_of(self.agent.act(observation, info), "The agent's action")
        asked = self._explore is None or self._explore.advises
        return self._said if asked and not getattr(self.agent, "guesses", False) else None

    def choose(self, info: Mapping[str, Any]) -> str:
        """The action to take: the agent's, or a random one in its place."""
        drawn = None if self._explore is None else self._explore.draw(self._draws, info, self._attempt)
        return text_of(drawn or self._said, "The action")

    def follow(self, action: str) -> None:
        """Report an executed action to the agent, through `ScriptedAgent.overruled`, if the agent chose another one."""
        overruled = getattr(self.agent, "overruled", None)
        if action != self._said and callable(overruled):
            overruled(action)


class ScriptedPolicy:
    """A scripted agent in the place of a model and its agent, see `rollout`. It plays one episode after another.

    Args:
        make: makes the agent, anew after an episode that failed: the next one must not depend on what a failure left behind.
        explore: random actions in place of its own.
    """

    def __init__(self, make: Callable[[], ScriptedAgent], explore: Exploration = Exploration()) -> None:
        self._make, self._explore = make, explore
        self._agent: ScriptedAgent | None = None

    def player(self, seed: int, attempt: int) -> ScriptedPlayer:
        """The agent for one rollout; `attempt` is its number among those of its task."""
        self._agent = self._agent or self._make()
        return ScriptedPlayer(self._agent, seed, attempt, self._explore)

    def max_steps(self, limit: int) -> int:
        """Longest episode: `limit`, or less where exploration bounds it."""
        return min(limit, self._explore.max_steps or limit)

    def discard_agent(self) -> None:
        """Make the agent anew for the next episode."""
        self._agent = None
