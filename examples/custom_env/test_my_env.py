"""Run it in this folder: python -m pytest test_my_env.py"""

from __future__ import annotations

from gymnasium.utils.env_checker import check_env

from skill_ttrl.envs import check_text_env, env_tasks, make_env

ENV = "my_env:MyEnv-v0"


def test_it_is_a_gymnasium_environment_of_text() -> None:
    env = make_env(ENV)
    check_env(env.unwrapped, skip_render_check=True)
    for task in env_tasks(ENV, {}, "test", count=4):
        check_text_env(env, task)


def test_the_right_answer_is_rewarded_and_nothing_else() -> None:
    env = make_env(ENV)
    for action, expected in [("<answer>3174</answer>", 1.0), ("<answer>4713</answer>", 0.0), ("no answer", 0.0)]:
        observation, _ = env.reset(seed=0, options={"number": "4713"})
        assert observation == "Reverse 4713."
        _, reward, terminated, _, _ = env.step(action)
        assert (reward, terminated) == (expected, True)


def test_no_task_is_in_two_splits() -> None:
    parts = [{task.id for task in env_tasks(ENV, {}, split)} for split in ("demos", "train", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts))
