"""Scripted agents, which need no model: experts, rules, controls (`random`, `first`, `constant:TEXT`), a replayed solution."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from skill_ttrl.agents.action_parser import AS_LISTED, ActionList, Project, fill_slot, has_slot, projection, whole
from skill_ttrl.config import BUILTIN, AgentConfig
from skill_ttrl.envs.webshop.expert import SEARCH_SLOT, read_task, search
from skill_ttrl.errors import ConfigError, EnvError, did_you_mean
from skill_ttrl.llm.backends import is_frozen
from skill_ttrl.llm.models.gguf import is_gguf
from skill_ttrl.registry import Registry, naming, require_methods
from skill_ttrl.types import Skill


class ScriptedAgent(Protocol):
    """Plays one episode after another, using only what the environment shows.

    An agent may also have a method `overruled(action)`, which is called when another action than its last one was executed (`explore`).
    One that tracks its own actions needs it. If it has a true attribute `guesses`, its last action was not part of a plan: the
    action is executed, but is no training target.
    """

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """An episode begins; `seed` is for its random choices."""
        ...

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Return the next action, given the current observation."""
        ...


SCRIPTED_AGENTS: Registry[type[ScriptedAgent]] = Registry("agent")
"""Name → class; called without arguments. Those that play any environment; see `ENV_SCRIPTED_AGENTS` for the others."""
ENV_SCRIPTED_AGENTS: Mapping[str, Mapping[str, str]] = {
    "expert": {
        "SkillTTRL/ALFWorld-v0": "skill_ttrl.envs.alfworld.expert:ALFWorldExpert",
        "SkillTTRL/WebShop-v0": "skill_ttrl.envs.webshop.expert:WebShopExpert",
    },
    "rule": {"SkillTTRL/WebShop-v0": "skill_ttrl.envs.webshop.expert:WebShopRule"},
    "careful": {"SkillTTRL/WebShop-v0": "skill_ttrl.envs.webshop.expert:WebShopCareful"},
    "brief": {"SkillTTRL/WebShop-v0": "skill_ttrl.envs.webshop.expert:WebShopBrief"},
}
"""Name → environment id → the class that it means there: who plays one environment and no other."""
FIRST, CONSTANT = "first", "constant"
"""Controls that act on the list of actions as a policy's prompt shows it, where a config says how."""


def scripted_agent_names() -> tuple[str, ...]:
    """Names of all scripted agents that ship with the package."""
    return (*ENV_SCRIPTED_AGENTS, *SCRIPTED_AGENTS, FIRST, CONSTANT)


def is_scripted(policy: str) -> bool:
    """True if the name of a policy is that of a scripted agent; a path of the same name comes first."""
    return policy.partition(":")[0] in scripted_agent_names() and not Path(policy).exists()


def make_scripted_agent(name: str, env_id: str, agent: AgentConfig | None = None) -> ScriptedAgent:
    """Make the scripted agent called `name` for an environment.

    Args:
        name: `random`, `first`, `constant:TEXT`, `walkthrough`, `expert`, `rule`, `careful`, `brief`, or `module:attribute` of your own.
        env_id: the environment's Gymnasium id.
        agent: how a policy's prompts list the actions and how its text is read, for `first` and `constant:TEXT`; None: actions
            as the environment lists them, and all of the text is the action.

    Raises:
        ConfigError: nothing has this name, or it is no scripted agent.
        EnvError: this environment has no scripted agent of this name.
    """
    kind, _, text = name.partition(":")
    if kind == CONSTANT:
        if not text:
            raise ConfigError(
                "The agent constant writes the same text every time: constant:TEXT, such as constant:look."
            )
        read = whole if agent is None else projection(agent.action_parser, numbered=agent.actions == "numbered")
        return ConstantAgent(text, read, ActionList.of(agent))
    if name == FIRST:
        return FirstAgent(ActionList.of(agent))
    if name not in scripted_agent_names() and ":" not in name:
        raise ConfigError(
            f"Unknown agent {name!r}.{did_you_mean(name, scripted_agent_names())} Your own is written 'module:attribute'."
        )
    there = ENV_SCRIPTED_AGENTS.get(name)
    if there is not None and env_id not in there:
        own = [each for each, envs in ENV_SCRIPTED_AGENTS.items() if env_id in envs]
        raise EnvError(
            f"{env_id} has no agent {name!r}; it has: {', '.join([*own, *SCRIPTED_AGENTS, FIRST, CONSTANT])}."
        )
    made = SCRIPTED_AGENTS.get(name if there is None else there[env_id])
    with naming(f"The agent {name!r}", "when it was made without arguments"):
        scripted = made()
    require_methods(scripted, name, "start", "act")
    return scripted


def find_scripted_agent(name: str, env_id: str) -> ScriptedAgent | None:
    """Return the scripted agent called `name`; None where a policy is meant.

    Raises:
        ConfigError: nothing has this name.
        EnvError: this environment has no expert.
    """
    if is_frozen(name) or is_gguf(name):
        return None
    exists = Path(name).exists()
    if name in scripted_agent_names() or (":" in name and not exists):
        return make_scripted_agent(name, env_id)
    if name != BUILTIN and "/" not in name and ":" not in name and not exists:
        raise ConfigError(
            f"There is no policy {name!r}.{did_you_mean(name, scripted_agent_names())} A model is a run folder, a checkpoint, a model "
            "folder, owner/name, openai:MODEL or none (with --agent); your own scripted agent is module:attribute."
        )
    return None


@SCRIPTED_AGENTS.register("random")
class RandomAgent:
    """Takes any of the admissible actions, all equally likely (`info["admissible_commands"]`).

    Where one of them is a search whose words are the agent's own, it searches for the words of the task.
    """

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """Seed the choices of an episode."""
        self._rng = random.Random(seed)

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Choose an action; raises as `any_action`."""
        return any_action(self._rng, info)


def any_action(rng: random.Random, info: Mapping[str, Any]) -> str:
    """Any of the admissible actions, all equally likely; a search whose words are the agent's own is one for the task's words.

    Raises:
        EnvError: there are no admissible actions, or a search is drawn and there is no `info["task"]`.
    """
    action = str(rng.choice(_listed(info, "admissible_commands")))
    return search(read_task(info)) if action == SEARCH_SLOT else action


class ListedAgent:
    """Base of the scripted agents that act on the actions as a prompt lists them.

    Args:
        listing: of the possible actions.
        skills: the skills in a prompt, found by the task's words or, where there are none, by the first observation: the order of
            the actions may depend on them. None: prompts have no skills.
    """

    def __init__(
        self, listing: ActionList = AS_LISTED, skills: Callable[[str], Sequence[Skill]] = lambda said: ()
    ) -> None:
        self._listing, self._find = listing, skills

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """Note the task and find the skills that a prompt of it shows."""
        task = info.get("task")
        self._task = task if isinstance(task, str) else ""
        self._skills = self._find(self._task or observation)
        self._done: list[str] = []

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Choose among the actions as a prompt lists them."""
        admissible = [str(action) for action in info.get("admissible_commands") or ()]
        listed = self._listing(admissible, self._task, self._skills, self._done)
        self._done.append(self.choose((*listed, *filter(has_slot, admissible))))
        return self._done[-1]

    def overruled(self, action: str) -> None:
        """Replace the last action by the one that was taken."""
        self._done[-1] = action

    def choose(self, actions: Sequence[str]) -> str:
        """One of the actions, or any other text."""
        raise NotImplementedError


class FirstAgent(ListedAgent):
    """Takes the first listed action: what a policy gets that answers `[1]` whatever it reads, where actions are numbered.

    Where that is a search whose words are the agent's own, it searches for the words of the task.
    """

    def choose(self, actions: Sequence[str]) -> str:
        """Take the first action; raises `EnvError` where there are none."""
        return fill_slot(_listed({"admissible_commands": actions}, "admissible_commands")[0], self._task)


class ConstantAgent(ListedAgent):
    """Writes the same text at every step, of which `read` makes an action as of a policy's."""

    def __init__(self, text: str, read: Project = whole, listing: ActionList = AS_LISTED) -> None:
        super().__init__(listing)
        self._text, self._read = text, read

    def choose(self, actions: Sequence[str]) -> str:
        """Read the action that the text means."""
        return self._read(self._text, actions).action


def check_adviser(agent: ScriptedAgent) -> None:
    """Raise `ConfigError` where what an agent says has no meaning once another action than its own was taken."""
    if isinstance(agent, WalkthroughAgent):
        raise ConfigError(
            "walkthrough replays a solution and cannot react, so it works neither with explore nor with dagger. Use the expert."
        )


@SCRIPTED_AGENTS.register("walkthrough")
class WalkthroughAgent:
    """Replays the solution that the environment gives at the start (`info["walkthrough"]`): it knows what no agent can."""

    requires: ClassVar[Mapping[str, Any]] = {"walkthrough": True}
    """Options that an episode of it must be reset with."""

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """Take the solution from the environment."""
        self._left = list(_listed(info, "walkthrough"))

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Take the next step of the solution; past its end, an action that changes nothing."""
        return self._left.pop(0) if self._left else "look"


def _listed(info: Mapping[str, Any], name: str) -> Sequence[str]:
    listed = info.get(name)
    if not isinstance(listed, list | tuple) or not listed:
        raise EnvError(f"The agent needs info[{name!r}], a list of actions, which the environment does not provide.")
    return listed
