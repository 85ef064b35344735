"""`SkillTTRL/ALFWorld-v0`: Gymnasium's own checks and ours, episodes, what a user gets wrong, and pickling."""

from __future__ import annotations

import asyncio
import pickle
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.envs import check_text_env, env_tasks, list_envs, make_env, resolve_env
from skill_ttrl.envs.alfworld.engine import NOTHING
from skill_ttrl.envs.alfworld.env import ALFWORLD_ENV_ID, ALFWorldEnv
from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.errors import EnvError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout, run_scripted_episode
from skill_ttrl.types import Message, to_json
from tests.alfworld_kitchen import DONE, LIGHT, PLACE, problem, write_game
from tests.scripted_backend import ScriptedBackend

TRIALS = {
    "pick_and_place_simple-Apple-None-Fridge-1/trial_A": PLACE.format("Apple", "Fridge"),
    "pick_heat_then_place_in_recep-Mug-None-Cabinet-1/trial_B": DONE.format(
        able="heatable", done="isHot", thing="Mug", target="Cabinet"
    ),
    "look_at_obj_in_light-Apple-None-DeskLamp-1/trial_C": LIGHT.format("Apple", "DeskLamp"),
}
APPLE = next(iter(TRIALS))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three games to train on, and one in each of the others."""
    root = tmp_path_factory.mktemp("games")
    for name, goal in TRIALS.items():
        write_game(root, "train", name, pddl_problem=problem(goal), task=name)
    for split in ("valid_seen", "valid_unseen"):
        write_game(root, split, APPLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        forget()
        yield str(root)
    forget()


@pytest.fixture
def env(data: str) -> ALFWorldEnv:
    return ALFWorldEnv(data)


def win(env: ALFWorldEnv) -> list[tuple[str, float, bool, bool, dict[str, Any]]]:
    """Every step of the walkthrough of the game with the apple."""
    _, info = env.reset(options={"task": f"train/{APPLE}", "walkthrough": True})
    return [env.step(command) for command in info["walkthrough"]]


def test_gymnasium_has_nothing_to_say(data: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(ALFWORLD_ENV_ID, data=data).unwrapped)


def test_it_keeps_the_text_contract_and_has_its_names(data: str) -> None:
    assert resolve_env("alfworld") == ALFWORLD_ENV_ID
    assert next(info.description for info in list_envs() if info.short_name == "alfworld").startswith("Household tasks")
    env = make_env("alfworld", data=data)
    for task in env_tasks("alfworld", {"data": data}, "train"):
        check_text_env(env, task)


def test_the_first_observation_states_the_task_and_info_names_the_game(env: ALFWorldEnv, data: str) -> None:
    observation, info = env.reset(options={"task": f"valid_seen/{APPLE}"})
    assert observation.endswith("Your task is to: put an apple in the fridge.")
    assert info == {
        "admissible_commands": [
            *(f"go to {place}" for place in ("cabinet 1", "countertop 1", "countertop 2", "fridge 1", "microwave 1", "sinkbasin 1")),
            "help", "inventory", "look",
        ],
        "won": False,
        "task": "put an apple in the fridge.",
        "task_type": "pick_and_place_simple",
        "game": f"valid_seen/{APPLE}",
        "gamefile": f"{data}/json_2.1.1/valid_seen/{APPLE}/game.tw-pddl",
        "source": "alfworld-official",
        "state": info["state"],
    }  # fmt: skip


def test_a_won_game_terminates_and_earns_the_reward_once(data: str) -> None:
    steps = win(ALFWorldEnv(data, reward=10))
    assert [step[1:4] for step in steps] == [(0.0, False, False)] * 4 + [(10.0, True, False)]
    assert steps[-1][4]["won"] is True and isinstance(steps[-1][1], float)


def test_after_its_end_an_episode_neither_changes_nor_pays(data: str) -> None:
    env = ALFWorldEnv(data)
    assert win(env)[-1][1] == 1.0
    assert env.step("look")[1:4] == (0.0, True, False), "won once"
    late = win(ALFWorldEnv(data, max_steps=4))
    assert late[-1][:4] == (late[-2][0], 0.0, False, True) and not late[-1][4]["won"]


def test_an_episode_is_truncated_after_max_steps_but_not_where_the_last_one_wins(data: str) -> None:
    env = ALFWorldEnv(data)
    env.reset(seed=0)
    assert [env.step("look")[3] for _ in range(50)] == [False] * 49 + [True]
    assert win(ALFWorldEnv(data, max_steps=5))[-1][2:4] == (True, False)
    assert win(ALFWorldEnv(data, max_steps=4))[-2][2:4] == (False, True)


def test_tasks_are_the_games_of_a_split_in_their_order(env: ALFWorldEnv) -> None:
    tasks = env.tasks()
    assert [task.id for task in tasks] == sorted(f"train/{name}" for name in TRIALS)
    for task in tasks:
        observation, info = env.reset(options=dict(task.options))
        assert info["game"] == task.id and observation.endswith(f"Your task is to: {task.id.partition('/')[2]}.")
    assert [task.task_type for task in tasks] == [task.id.split("/")[1].partition("-")[0] for task in tasks]
    assert [task.split for task in env.tasks("valid_seen")] == ["valid_seen"]


def test_neither_prompts_nor_episodes_that_are_kept_name_the_games_file(data: str, env: ALFWorldEnv) -> None:
    """Prompts nothing of the game at all but its texts; episodes its id, which is the same on every machine."""
    (task,) = env.tasks("valid_seen")
    walked = run_scripted_episode(env, task, make_scripted_agent("walkthrough", ALFWORLD_ENV_ID), seed=0)
    asked: list[str] = []

    class Recording(ScriptedBackend):
        def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
            asked.extend(message.content for message in messages)
            return super().encode(messages)

    work = rollout([task], 1, envs=EnvPool(lambda: ALFWorldEnv(data)), agent=Agent(PromptFormatter("plain")), backend=Recording([step.action for step in walked.steps]), settings=RolloutSettings(Sampling(), 0, max_turns=50))  # fmt: skip
    ((sampled,),) = (group.trajectories for group in asyncio.run(work))
    for played in (walked, sampled):
        assert played.stop_reason == "terminated" and played.source == "alfworld-official"
        assert [step.info["won"] for step in played.steps] == [False] * 4 + [True]
        states = [played.start_state, *(step.info["state"] for step in played.steps)]
        assert len(set(states)) == 6 and set(played.steps[0].info) == {"won", "state"}
        assert data not in to_json(played) and to_json(played).count(APPLE) == 2  # the task's id, and its option
    assert asked and not any(word in "".join(asked) for word in (data, APPLE, "pick_and_place", "trial_A"))


@pytest.mark.parametrize("action", ["look " * 200_000, "\ud800" * 1_000_000, " " * 1_000_000, "\x1b[2J" * 250_000])
def test_a_megabyte_is_an_action_and_takes_no_time(env: ALFWorldEnv, action: str) -> None:
    env.reset(seed=0)
    start = time.perf_counter()
    assert all(env.step(action)[0] == NOTHING for _ in range(10))
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"tsk": "x"},
            r"has no option 'tsk'\. Did you mean 'task'\? Known: ground_truth, moved, rule, skill, task, walkthrough\.",
        ),
        ("task", "The options of SkillTTRL/ALFWorld-v0 are a dict, found str"),
        ({"x" * 100_000: 1}, "has no option"),
        ({"task": 0}, r"A task is named by its game's id, such as 'train/.*found 0 \(int\)"),
        ({"task": "train/nowhere/x"}, "There is no game 'train/nowhere/x'"),
        ({"task": f"train/{APPLE}".replace("trial_A", "trial_X")}, f"Did you mean 'train/{APPLE}'"),
    ],
)
def test_wrong_options_are_named(env: ALFWorldEnv, options: Any, said: str) -> None:
    with pytest.raises(EnvError, match=said) as error:
        env.reset(options=options)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("steps", [None, 0, 3, 5])
def test_an_environment_pickles_at_any_moment(env: ALFWorldEnv, steps: int | None) -> None:
    if steps is not None:
        _, info = env.reset(seed=1, options={"task": f"train/{APPLE}", "walkthrough": True})
        for command in info["walkthrough"][:steps]:
            env.step(command)
    written = pickle.dumps(env)
    assert len(written) < 5000
    other = pickle.loads(written)
    if steps is None:
        assert other.reset(seed=1) == env.reset(seed=1)
    assert [other.step("look") for _ in range(3)] == [env.step("look") for _ in range(3)]
    assert other.reset() == env.reset()  # the generator goes on as well
