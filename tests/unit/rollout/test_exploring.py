"""A player that explores: any action now and then, and what it would have done there beside every step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from skill_ttrl.commands.play import Scene, play
from skill_ttrl.envs.alfworld.env import ALFWorldEnv
from skill_ttrl.envs.alfworld.expert import ALFWorldExpert
from skill_ttrl.envs.lookup import spread
from skill_ttrl.envs.webshop.env import WebShopEnv
from skill_ttrl.envs.webshop.expert import WebShopExpert
from skill_ttrl.errors import ConfigError
from skill_ttrl.rollout.episode import ADVICE, Exploration, Stopped
from skill_ttrl.rollout.rollout import run_scripted_episode
from tests.alfworld_kitchen import PLACE, problem, write_game
from tests.doors import Doors, Opener

pytestmark = pytest.mark.usefixtures("one_cache")  # each catalogue is read once


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A game of an apple that belongs in the fridge."""
    root = tmp_path_factory.mktemp("games")
    name = "pick_and_place_simple-Apple-None-Fridge-1/trial_A"
    write_game(root, "train", name, pddl_problem=problem(PLACE.format("Apple", "Fridge")))
    return str(root)


def test_a_player_that_wants_to_know_is_told_what_was_done_instead() -> None:
    class Attentive(Opener):
        """Writes down what was done."""

        def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
            super().start(observation, info, seed)
            self.done: list[str] = []

        def act(self, observation: str, info: Mapping[str, Any]) -> str:
            self.done.append(super().act(observation, info))
            return self.done[-1]

        def overruled(self, action: str) -> None:
            assert action != self.done[-1]
            self.done[-1] = action

    player = Attentive()
    for task in Doors().tasks("train"):
        episode = run_scripted_episode(Doors(), task, player, seed=0, explore=0.7)
        assert player.done == [step.action for step in episode.steps]


def test_who_leaves_ends_the_episode_and_a_screen_that_fails_is_an_error_of_its_own() -> None:
    class Leaving(Opener):
        def act(self, observation: str, info: Mapping[str, Any]) -> str:
            raise Stopped

    def fails(at: int) -> Callable[[Scene], None]:
        def watch(scene: Scene) -> None:
            if scene.step == at:
                raise BrokenPipeError("no screen")

        return watch

    task = Doors().tasks("train")[0]
    left = run_scripted_episode(Doors(), task, Leaving(), seed=0)
    assert (left.stop_reason, left.error, left.steps) == ("max_turns", None, ())
    for at in (0, 1):
        with pytest.raises(BrokenPipeError, match="no screen"):
            play(Doors(), task, Opener(), seed=0, watch=fails(at))


def test_the_expert_of_alfworld_is_right_after_another_agent_has_gone_to_and_fro(kitchen: str) -> None:
    """An impossible action changes nothing, and commands that others gave do not count as its own plan's."""
    env, player = ALFWorldEnv(data=kitchen, split="train", max_steps=60), ALFWorldExpert()
    for number in range(3):
        task, draws = env.tasks()[0], random.Random(number)
        seen, info = env.reset(seed=0, options=dict(task.options))
        player.start(seen, info, 0)
        done, over = "", False
        for step in range(60):
            advice = player.act(seen, info)
            moves = [each for each in info["admissible_commands"] if each.startswith("go to ")]
            again = done if done and draws.random() < 0.5 else draws.choice(moves)
            done = again if step < 25 else advice
            if done != advice:
                player.overruled(done)
            seen, _, won, truncated, info = env.step(done)
            over = won or truncated
            if over:
                break
        assert over and info["won"], task.id


def test_tries_explore_in_turn_and_most_of_the_noise_may_only_move(kitchen: str) -> None:
    env, player = ALFWorldEnv(data=kitchen, split="train"), ALFWorldExpert()
    task = env.tasks()[0]
    how = Exploration((0.0, 1.0), moves=1.0, max_steps=8)
    calm, noisy = (run_scripted_episode(env, task, player, seed=0, attempt=attempt, explore=how) for attempt in (2, 3))
    assert len(calm.steps) <= 8 and all(step.action == step.info["expert_action"] for step in calm.steps)
    assert len(noisy.steps) == 8 and noisy.stop_reason == "max_turns"
    assert all(step.action.startswith("go to ") for step in noisy.steps)
    with pytest.raises(ConfigError, match="from 0 to 1, found 2"):
        Exploration.of([0.1, 2])


def test_some_actions_are_never_taken_at_random_and_what_only_moves_is_named() -> None:
    info = {"admissible_commands": ["click[buy now]", "click[b01]", "click[b02]", "click[next >]"]}
    how = Exploration((1.0,), moves=1.0, moves_like=("click[b0*",), never=("click[buy now]", "click[b01*"))
    rng = random.Random(0)
    assert {how.draw(rng, info, 0) for _ in range(20)} == {"click[b02]"}
    left = replace(how, moves=0.0)
    assert {left.draw(rng, info, 0) for _ in range(40)} == {"click[b02]", "click[next >]"}
    assert replace(how, never=("click*",)).draw(rng, info, 0) is None, "the player's own is taken"


def test_the_expert_of_webshop_goes_on_from_wherever_it_was_led() -> None:
    """A random purchase ends it, and steps are few; what is left it buys right."""
    env = WebShopEnv(data="generated", split="dev")
    tasks = spread(env.tasks(), 60)
    played = [run_scripted_episode(env, task, WebShopExpert(), seed=0, explore=0.1) for task in tasks]
    bought = [each for each in played if each.steps[-1].action == each.steps[-1].info[ADVICE] and each.env_return]
    assert not [each.error for each in played if each.error]
    assert fmean(each.steps[-1].info["won"] for each in bought) > 0.85
