"""`info["state"]` of WebShop: equal where the same actions lead to the same, and only there."""

from __future__ import annotations

import random

import pytest

from skill_ttrl.envs.webshop.env import WebShopEnv


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_the_same_state_leads_to_the_same_pages_and_scores_whatever_led_to_it(mode: str) -> None:
    env = WebShopEnv("generated", observation_mode=mode, max_steps=100)
    rng = random.Random(0)
    seen: dict[tuple[str, str], tuple[object, ...]] = {}
    met = 0
    for _ in range(60):
        observation, info = env.reset(options={"goal": 0})
        for _ in range(30):
            action = rng.choice(
                [*info["admissible_commands"], "search[lamp]", "click[back to search]", "click[nothing]"]
            )
            before = info["state"], action
            observation, reward, terminated, _, info = env.step(action)
            after = observation, reward, terminated, info["state"], info["admissible_commands"]
            met += before in seen
            assert seen.setdefault(before, after) == after
            if terminated:
                break
    assert met > 100 and len({state for state, _ in seen}) > 20


def test_the_order_in_which_options_were_chosen_is_no_part_of_a_state() -> None:
    env = WebShopEnv("generated")
    for goal in range(20):
        walkthrough = env.reset(options={"goal": goal, "walkthrough": True})[1]["walkthrough"]
        options = walkthrough[2:-1]
        if len(options) == 2:
            break
    states = []
    for chosen in (options, options[::-1]):
        env.reset(options={"goal": goal})
        states.append([env.step(action)[4]["state"] for action in [*walkthrough[:2], *chosen]])
    assert len(options) == 2 and states[0][-1] == states[1][-1] and states[0][-2] != states[1][-2]
