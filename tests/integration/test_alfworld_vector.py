"""ALFWorld in vectors, in one process and in several: nothing is lost at an episode's end, and seeds decide everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from skill_ttrl.envs import make_env, make_vec_env
from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.errors import EnvError
from tests.alfworld_kitchen import LIGHT, PLACE, problem, write_game

APPLE = "train/pick_and_place_simple-Apple-None-Fridge-1/trial_A"
LAMP = "train/look_at_obj_in_light-Apple-None-DeskLamp-1/trial_B"
TAKE = ["go to countertop 1", "take apple 1 from countertop 1"]
WINS = {APPLE: [*TAKE, "go to fridge 1", "open fridge 1", "move apple 1 to fridge 1"], LAMP: [*TAKE, "use desklamp 1"]}
BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two games, which are won in five and in three steps."""
    root = tmp_path_factory.mktemp("games")
    for game, goal in ((APPLE, PLACE.format("Apple", "Fridge")), (LAMP, LIGHT.format("Apple", "DeskLamp"))):
        split, _, name = game.partition("/")
        write_game(root, split, name, pddl_problem=problem(goal), task=name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        forget()
        yield str(root)
    forget()


def step(vector: Any, actions: list[str]) -> list[tuple[str, float, bool, bool, dict[str, Any]]]:
    """One step of a vector, an environment at a time."""
    seen, rewards, terminated, truncated, info = vector.step(actions)
    return [
        (seen[n], float(rewards[n]), bool(terminated[n]), bool(truncated[n]), one(info, n)) for n in range(len(actions))
    ]


def one(info: dict[str, Any], number: int) -> dict[str, Any]:
    """The `info` of one environment, from Gymnasium's arrays."""
    return {key: values[number] for key, values in info.items() if f"_{key}" in info and info[f"_{key}"][number]}


@BOTH
def test_no_final_observation_is_lost(data: str, asynchronous: bool) -> None:
    """Each environment of the vector is followed beside one of its own, over several episodes, won and truncated ones."""
    vector = make_vec_env("alfworld", 3, asynchronous=asynchronous, data=data, max_steps=5, reward=10.0)
    alone = [make_env("alfworld", data=data, max_steps=5, reward=10.0) for _ in range(3)]
    seen, info = vector.reset(seed=7)
    episodes = [env.reset(seed=7 + number) for number, env in enumerate(alone)]
    assert [(seen[n], one(info, n)) for n in range(3)] == episodes
    over, last, wins = [False] * 3, [dict(episode[1]) for episode in episodes], 0
    plans = [list(WINS[info["game"]]) for info in last]
    for _ in range(25):
        # The third never wins: its episodes are truncated.
        actions = [(plans[n].pop(0) if plans[n] else "look") if n < 2 else "look" for n in range(3)]
        for number, found in enumerate(step(vector, actions)):
            if over[number]:
                start, begun = alone[number].reset()
                assert found == (start, 0.0, False, False, begun)
                plans[number], over[number] = list(WINS[begun["game"]]), False
                continue
            assert found == alone[number].step(actions[number])
            over[number] = found[2] or found[3]
            if found[2]:
                wins += 1
                assert found[1] == 10.0 and found[4]["won"] and found[0].startswith(("You move", "You turn on"))
    assert wins >= 6
    vector.close()


def test_an_error_of_one_environment_is_the_callers(data: str) -> None:
    with pytest.raises(EnvError, match="no split 'trian'"):
        make_vec_env("alfworld", 2, data=data, split="trian")
    with pytest.raises(EnvError, match="at least one environment, found 0"):
        make_vec_env("alfworld", 0, data=data)
