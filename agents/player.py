"""Agents that need no model: experts, rules, a random one, one that replays a known solution; and the names they go by."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from skill_ttrl.agents.webshop_reading import SEARCH_SLOT, read_task, search
from skill_ttrl.errors import ConfigError, EnvError, SkillTTRLError, did_you_mean
from skill_ttrl.registry import Registry


class Player(Protocol):
    """Plays one episode after another, by what the environment shows and nothing else.

    A player may have a method `overruled(action)` too: it is told there that not what it said last was done, but another action
    (`explore`). One that keeps in mind what it has done needs it.
    """

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """An episode begins; `seed` is for its random choices."""
        ...

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """What to do next, now that `observation` is seen."""
        ...


PLAYERS: Registry[type[Player]] = Registry("agent")
"""Name → class; called without arguments. Those that play any environment; see `ENV_PLAYERS` for the others."""
ENV_PLAYERS: Mapping[str, Mapping[str, str]] = {
    "expert": {
        "SkillTTRL/ALFWorld-v0": "skill_ttrl.agents.alfworld_expert:ALFWorldExpert",
        "SkillTTRL/WebShop-v0": "skill_ttrl.agents.webshop_expert:WebShopExpert",
    },
    "rule": {"SkillTTRL/WebShop-v0": "skill_ttrl.agents.webshop_rule:WebShopRule"},
    "careful": {"SkillTTRL/WebShop-v0": "skill_ttrl.agents.webshop_rule:WebShopCareful"},
}
"""Name → environment id → the class that it means there: who plays one environment and no other."""


def player_names() -> tuple[str, ...]:
    """The names of all players that come along."""
    return (*ENV_PLAYERS, *PLAYERS)


def make_player(name: str, env_id: str) -> Player:
    """The player called `name` for an environment.

    Args:
        name: `random`, `walkthrough`, `expert`, `rule`, `careful`, or `module:attribute` of your own.
        env_id: the environment's Gymnasium id.

    Raises:
        ConfigError: nothing has this name, or it is no player.
        EnvError: this environment has no player of this name.
    """
    if name not in player_names() and ":" not in name:
        raise ConfigError(
            f"Unknown agent {name!r}.{did_you_mean(name, player_names())} One of your own is written 'module:attribute'."
        )
    there = ENV_PLAYERS.get(name)
    if there is not None and env_id not in there:
        raise EnvError(f"There is no {name} for {env_id}; there is one for {', '.join(there)}.")
    made = PLAYERS.get(name if there is None else there[env_id])
    try:
        player = made()
    except SkillTTRLError:
        raise
    except Exception as error:  # a player is foreign code
        raise ConfigError(
            f"Cannot make the agent {name!r}, which is called without arguments: {type(error).__name__}: {error}"
        ) from error
    for method in ("start", "act"):
        if not callable(getattr(player, method, None)):
            raise ConfigError(f"The agent {name!r} has no method {method!r}; see skill_ttrl.agents.player.Player.")
    return player


@PLAYERS.register("random")
class RandomPlayer:
    """Takes any of the admissible actions, all equally likely (`info["admissible_commands"]`).

    Where one of them is a search whose words are the agent's own, it searches for the words of the task.
    """

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `Player.start`."""
        self._rng = random.Random(seed)

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """See `Player.act`.

        Raises:
            EnvError: there are no admissible actions, or a search is chosen and there is no `info["task"]`.
        """
        return any_action(self._rng, info)


def any_action(rng: random.Random, info: Mapping[str, Any]) -> str:
    """Any of the admissible actions, all equally likely; a search whose words are the agent's own is one for the task's words.

    Args:
        rng: draws it.
        info: as the environment gave it.

    Raises:
        EnvError: there are no admissible actions, or a search is drawn and there is no `info["task"]`.
    """
    action = str(rng.choice(_listed(info, "admissible_commands")))
    return search(read_task(info)) if action == SEARCH_SLOT else action


def overrule(player: Player, action: str) -> None:
    """Tell a player that wants to know (`Player`) what was done in place of what it said."""
    told = getattr(player, "overruled", None)
    if callable(told):
        told(action)


@PLAYERS.register("walkthrough")
class WalkthroughPlayer:
    """Replays the solution that the environment gives at the start (`info["walkthrough"]`): it knows what no agent can."""

    needs: ClassVar[Mapping[str, Any]] = {"walkthrough": True}
    """Options that an episode of it must be reset with."""

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `Player.start`."""
        self._left = list(_listed(info, "walkthrough"))

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """See `Player.act`; past its end it repeats an action that changes nothing."""
        return self._left.pop(0) if self._left else "look"


def _listed(info: Mapping[str, Any], name: str) -> Sequence[str]:
    listed = info.get(name)
    if not isinstance(listed, list | tuple) or not listed:
        raise EnvError(f"info[{name!r}] is needed here, a list of actions, which the environment does not give.")
    return listed
