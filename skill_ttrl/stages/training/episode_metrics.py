"""What a training step's episodes look like: how many succeed, of which type, how long they are, what their actions are worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.rollout.outcome import episode_result, mean_score, success_rate
from skill_ttrl.types import Group, Task, Trajectory
from skill_ttrl.voting.metrics import mean

BY_TYPE = "success/"
"""Begins the name of a figure that is the success of one type of task."""
LEFT_OUT = ("turns", "observation_tokens", "actions")
"""What a prompt of `agent.memory: window` may have had no room for; see `Step.left_out`."""


def several_types(tasks: Iterable[Task]) -> bool:
    """Whether there is more than one type among the tasks."""
    return len({task.task_type for task in tasks}) > 1


def episode_figures(groups: Sequence[Group], config: SkillTTRLConfig, *, by_type: bool) -> dict[str, float]:
    """Figures of a step's episodes, of all that were played.

    `success`: share of the tries that the environment calls a success (`outcome.env_success`), those that failed included; with
    `by_type` also `success/<type>` of each type that the step has. `score`: mean of how near they came to perfect ones, where
    the environment says so. Both are left out where it says nothing. `invalid_actions` and `repaired_actions`: shares of the
    steps whose action was read from the model's words. Where episodes can have several turns: `episode_steps` (mean of those
    that did not fail), `timeouts` (share of tries) where there is a limit, and as `left_out/<what>` the share of steps whose
    prompt had no room for all of it.
    """
    tries = [trajectory for group in groups for trajectory in group.trajectories]
    figures = success_figures(tries, by_type=by_type)
    steps = [step for trajectory in tries for step in trajectory.steps]
    read = [step.verdict for step in steps if step.verdict is not None]
    if read:
        figures["invalid_actions"] = mean([float(verdict == "invalid") for verdict in read])
        figures["repaired_actions"] = mean([float(verdict == "repaired") for verdict in read])
    if config.agent.max_turns > 1:
        figures["episode_steps"] = mean([float(len(each.steps)) for each in tries if each.error is None])
        if config.rollout.episode_seconds is not None:
            figures["timeouts"] = mean([float(each.stop_reason == "timeout") for each in tries])
        for what in could_be_left_out(config):
            figures[f"left_out/{what}"] = mean([float(step.left_out.get(what, 0) > 0) for step in steps])
    return figures


def could_be_left_out(config: SkillTTRLConfig) -> list[str]:
    """What prompts may have no room for."""
    shown = config.skills is not None and config.skills.use and config.skills.in_prompt > 0
    return [*(LEFT_OUT if config.agent.memory == "window" else ()), *(["skills"] if shown else [])]


def success_figures(tries: Sequence[Trajectory], *, by_type: bool) -> dict[str, float]:
    """`success`, `success/<type>` and `score` of `episode_figures`."""
    results = [episode_result(each) for each in tries]
    if all(each.error is not None for each in results):
        return {}
    found: dict[str, float | None] = {"success": success_rate(results)}
    if by_type and found["success"] is not None:
        for kind in sorted({each.task_type for each in results}):
            found[f"{BY_TYPE}{kind or 'other'}"] = success_rate([each for each in results if each.task_type == kind])
    found["score"] = mean_score(results)
    return {name: value for name, value in found.items() if value is not None}
