"""Metrics of a training step's episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.stages.training.metrics import episode_metrics, several_types
from skill_ttrl.stages.training.sampling import select_training_samples
from skill_ttrl.types import ActionStatus, Completion, Group, Step, StopReason, Task, Trajectory, VoteResult

PLAIN_VOTE = VoteResult(None, 0.0, (False,) * 2)


def config(**sections: Any) -> SkillTTRLConfig:
    return load_config({"agent": {"max_turns": 9, "action_parser": "action"}, "rl": {"reward": "env"}} | sections)


def step(
    verdict: ActionStatus | None = "valid",
    *,
    left_out: Mapping[str, int] | None = None,
    info: Mapping[str, Any] | None = None,
) -> Step:
    done = Completion("go", (7,), (-0.5,), "stop")
    return Step(
        "", "go", 0.0, False, False, (1, 2), done, info or {}, action_status=verdict, truncated_parts=left_out or {}
    )


def tried(
    *steps: Step, kind: str = "heat", reward: float = 0.0, error: str | None = None, stop: StopReason = "terminated"
) -> Trajectory:
    return Trajectory(Task("t", "env", task_type=kind), steps, None, stop, reward, error)


def group(*tries: Trajectory) -> Group:
    return Group(tries[0].task, tries)


def test_success_is_told_by_type_with_failed_tries_among_them() -> None:
    won, lost = step(info={"won": True}), step(info={"won": False})
    groups = [
        group(tried(lost, won), tried(lost), tried(stop="error", error="broken"), tried(won)),
        group(tried(lost, kind="cool"), tried(won, kind="cool")),
    ]
    assert several_types(each.task for each in groups) and not several_types([groups[0].task] * 2)
    figures = episode_metrics(groups, config(), by_type=True)
    assert figures["success"] == pytest.approx(3 / 6) and "score" not in figures
    assert figures["success/heat"] == pytest.approx(2 / 4) and figures["success/cool"] == pytest.approx(1 / 2)
    assert figures["episode_steps"] == pytest.approx(6 / 5)
    assert not any(name.startswith("success/") for name in episode_metrics(groups, config(), by_type=False))


def test_actions_prompts_and_timeouts_are_shares() -> None:
    steps = [step("invalid"), step("repaired", left_out={"turns": 2}), step(), step(left_out={"turns": 1, "skills": 3})]
    groups = [group(tried(*steps), tried(stop="timeout"))]
    agent = {"max_turns": 9, "action_parser": "action", "context_mode": "window"}
    settings = config(agent=agent, skills={}, rollout={"rollout_timeout_s": 60})
    figures = episode_metrics(groups, settings, by_type=False)
    expected = {"invalid_actions": 0.25, "repaired_actions": 0.25, "timeout_fraction": 0.5, "episode_steps": 2.0}
    expected |= {"prompt_truncated/turns": 0.5, "prompt_truncated/skills": 0.25, "prompt_truncated/actions": 0.0}
    assert expected.items() <= figures.items()
    plain = episode_metrics(groups, config(), by_type=False)
    assert "timeout_fraction" not in plain and not any(name.startswith("prompt_truncated/") for name in plain), (
        "none can be"
    )


def test_a_try_that_failures_leave_alone_has_nothing_to_be_compared_with() -> None:
    broken = tried(stop="error", error="broken")
    settings = config(rollout={"n_votes_per_prompt": 2, "n_samples_per_prompt": 2})
    groups = [group(tried(step(), reward=10.0), broken), group(tried(step()), tried(step()))]
    kept = select_training_samples(groups, [PLAIN_VOTE] * 2, settings, 0)
    assert [len(each.trajectories) for each, _ in kept] == [0, 2]
    alone = config(rollout={"n_votes_per_prompt": 1, "n_samples_per_prompt": 1})
    (one,) = select_training_samples([group(tried(step(), reward=10.0))], [PLAIN_VOTE], alone, 0)
    assert len(one[0].trajectories) == 1, "asked for one by one they are learned from"
