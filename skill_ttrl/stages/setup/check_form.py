"""Rules of forms of actions (`agent.observations`), in which a policy writes other texts than the environment reads."""

from __future__ import annotations

from skill_ttrl.agents.observations import find_observations
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError


def check_form(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where actions have a form of their own, and another setting is about the environment's texts of them."""
    agent = config.agent
    form = find_observations(agent.observations)
    if form is None or form.actions is None:
        return
    others = {
        "agent.actions=numbered": agent.actions == "numbered",
        "agent.action_order=words": agent.action_order == "words",
        f"agent.hidden_verbs={agent.hidden_verbs}": bool(agent.hidden_verbs),
        "agent.action_parser=skillrl": agent.action_parser == "skillrl",
        "demonstrations.rationale=next_subgoal": config.demonstrations.rationale == "next_subgoal",
    }
    found = [name for name, asked in others.items() if asked]
    if found:
        raise ConfigError(
            f"agent.observations={agent.observations} has its own form of actions, which {' and '.join(found)} would change. Leave "
            f"{'it' if len(found) == 1 else 'them'} out."
        )
