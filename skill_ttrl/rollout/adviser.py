"""A scripted agent that watches a rollout: what it would do at each state, while another acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.agents.scripted.scripted_agent import ScriptedAgent, advice_of, on_action_override
from skill_ttrl.rollout.info import text_of
from skill_ttrl.types import Task, derive_seed

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
