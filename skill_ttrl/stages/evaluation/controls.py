"""Controls of a measured success: scripted agents on the same tasks, with the same number of turns and the same lists of actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from skill_ttrl.agents.agent import Agent
from skill_ttrl.agents.scripted.scripted_agent import (
    FIRST,
    ConstantAgent,
    FirstAgent,
    ScriptedAgent,
    make_scripted_agent,
)
from skill_ttrl.config import EvalConfig, SkillTTRLConfig
from skill_ttrl.envs import resolve_env
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.samples import TaskSamples, drawn
from skill_ttrl.rollout.scripted import run_scripted_episode
from skill_ttrl.types import Group, Skill, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Controls:
    """Episodes of scripted agents."""

    rows: tuple[TaskSamples, ...] = ()
    """One episode a task and agent; `draw` is the agent's name."""
    why_none: str = ""
    """Why there are none, where a control was asked for and the environment judges its tasks; else empty."""
    asked: tuple[str, ...] = ()
    """Names of the agents that were asked for."""

    def by_agent(self) -> dict[str, list[TaskSamples]]:
        """The rows of each agent that played."""
        return {name: rows for name in self.asked if (rows := [row for row in self.rows if row.draw == name])}

    def of(self, problems: Sequence[TaskSamples]) -> Controls:
        """Select the rows of the same sources and tasks."""
        places = {(row.source, row.task.id) for row in problems}
        return replace(self, rows=tuple(row for row in self.rows if (row.source, row.task.id) in places))


def join(parts: Iterable[Controls]) -> Controls:
    """Controls of several sources as one."""
    found = list(parts)
    whys = dict.fromkeys(each.why_none for each in found if each.why_none)
    return Controls(tuple(row for each in found for row in each.rows), "; ".join(whys), found[0].asked)


def applies(config: EvalConfig, tasks: Sequence[Task]) -> bool:
    """Tell whether controls are asked for, and the environment judges the tasks: they have no true answers."""
    return bool(config.controls and tasks) and all(task.ground_truth is None for task in tasks)


def check_controls(config: SkillTTRLConfig) -> None:
    """Refuse a control that does not exist before anything is loaded.

    Raises:
        ConfigError, EnvError: `eval.controls` names an agent that does not exist, or not for this environment.
    """
    for name in config.eval.controls:
        make_scripted_agent(name, resolve_env(config.env.id), config.agent)


def play_controls(
    config: SkillTTRLConfig,
    tasks: Sequence[Task],
    envs: EnvPool,
    agent: Agent,
    *,
    source: str = "",
) -> Controls:
    """Have the scripted agents of `eval.controls` play every task once.

    Nothing is played where tasks have true answers, where the environment lists no actions, or where it says that steps are
    expensive (`TextEnv.expensive`).

    Args:
        config: its `eval.controls`, `agent` and `seed` are used.
        tasks: what is measured.
        envs: one environment is taken from it.
        agent: the policy's. `first` takes the action that its prompts list first, under the bank that it sees.
        source: written on the rows.
    """
    asked = tuple(config.eval.controls)
    if not applies(config.eval, tasks):
        return Controls(asked=asked)
    if getattr(envs.acquire(1)[0].unwrapped, "expensive", False):
        return Controls(why_none="steps of this environment are expensive: no control", asked=asked)
    if not lists_actions(envs, tasks, config):
        return Controls(why_none="no listed actions: no control", asked=asked)
    rows = []
    for name in asked:
        for task in tasks:
            scripted = _scripted_agent(name, config, agent, task)
            played = _play(envs, task, scripted, config, config.agent.max_turns)
            rows.append(drawn(Group(task, (played,)), source=source, draw=name))
    return Controls(tuple(rows), asked=asked)


def _play(envs: EnvPool, task: Task, agent: ScriptedAgent, config: SkillTTRLConfig, max_steps: int) -> Trajectory:
    (env,) = envs.acquire(1)
    timeout_s = config.rollout.rollout_timeout_s
    played = run_scripted_episode(env, task, agent, seed=config.seed, max_steps=max_steps, timeout_s=timeout_s)
    if played.stop_reason == "timeout":
        envs.discard(env)
    return played


def _scripted_agent(name: str, config: SkillTTRLConfig, agent: Agent, task: Task) -> ScriptedAgent:
    if name != FIRST or agent.skills is None or not agent.listing.by_words:
        return make_scripted_agent(name, resolve_env(config.env.id), config.agent)

    def shown(said: str) -> tuple[Skill, ...]:
        return agent.select_skills([task], [said])[0].skills

    return FirstAgent(agent.listing, shown)


def lists_actions(envs: EnvPool, tasks: Sequence[Task], config: SkillTTRLConfig) -> bool:
    """Tell whether the environment lists actions, by one step of one of the first tasks."""
    for task in tasks[:3]:
        played = _play(envs, task, ConstantAgent("look"), config, max_steps=1)
        if played.steps:
            return bool(played.steps[0].admissible_actions)
    return False
