"""Who shops in WebShop without a model: what they read of instructions and pages, what they look at, and how well they do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.envs.webshop import shop as pages
from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.envs.webshop.env import WEBSHOP_ENV_ID, WebShopEnv
from skill_ttrl.envs.webshop.expert import (
    BUTTONS,
    SEARCH_SLOT,
    WebShopExpert,
    WebShopRule,
    choose,
    query,
    read_clicks,
    read_offers,
    read_options,
    read_text,
    read_wish,
    search,
    words,
)
from skill_ttrl.envs.webshop.goals import NO_CEILING, Goal
from skill_ttrl.rollout.rollout import run_scripted_episode
from skill_ttrl.types import Trajectory

pytestmark = pytest.mark.usefixtures("one_cache")  # each catalogue is read once

CASES = json.loads((Path(__file__).parents[3] / "data" / "action_cases.json").read_text("utf-8"))
MADE = (
    "Find me light weight, easy carry women's tops, tees & blouses with long sleeve, button closure for daily wear "
    'with color: a01#black, and size: 42"w x 54"l, and price lower than 50.00 dollars'
)


def played(env: WebShopEnv, player: Any, every: int = 1) -> list[Trajectory]:
    episodes = [run_scripted_episode(env, task, player, seed=3) for task in env.tasks()[::every]]
    assert [episode.error for episode in episodes if episode.error] == []
    return episodes


def earned(episodes: list[Trajectory]) -> list[float]:
    return [sum(step.reward for step in episode.steps) for episode in episodes]


# Reading.


def test_a_made_instruction_is_taken_apart() -> None:
    wish = read_wish(MADE)
    assert (wish.kind, wish.below) == ("women's tops, tees & blouses", 50.0)
    assert wish.attributes == ("light weight", "easy carry", "long sleeve", "button closure", "daily wear")
    assert wish.options == (("color", "a01#black"), ("size", '42"w x 54"l'))


@pytest.mark.parametrize(("text", "kind", "attributes", "below"), CASES["instructions"])
def test_an_instruction_says_what_is_wanted_how_it_is_and_what_it_may_cost(
    text: str, kind: str, attributes: list[str], below: float | None
) -> None:
    wish = read_wish(text)
    assert (wish.kind, [*wish.attributes], wish.below, wish.options) == (kind, attributes, below, ())


@pytest.mark.slow
def test_options_and_ceiling_of_every_official_instruction_are_read_right(official_products: Path) -> None:
    env = WebShopEnv(data=official_products, split="train")
    for number in range(500, len(env.goals), 3):
        goal: Goal = env.goals[number]
        wish = read_wish(goal.instruction)
        assert (dict(wish.options), wish.below or NO_CEILING) == (goal.options, goal.price_upper), goal.instruction
        asked = set(words(goal.instruction.partition(": ")[0]))
        assert set(words(f"{wish.kind} {' '.join(wish.attributes)}")) <= asked


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_pages_are_read_as_they_are_meant(mode: str) -> None:
    env = WebShopEnv(data="generated", split="dev", observation_mode=mode)
    assert env.shop is not None
    for number in range(500, 515):
        goal: Goal = env.goals[number]
        env.reset(options={"task": goal.id})
        page, _, _, _, info = env.step(search(goal.title))
        offers = read_offers(page, read_clicks(info["admissible_commands"]))
        assert len(offers) == 10
        for offer in offers:
            product: Product = env.shop.product(offer.asin.upper())
            assert (offer.title, offer.low, offer.high) == (product.title, min(product.prices), max(product.prices))
        page, _, _, _, info = env.step(f"click[{offers[0].asin}]")
        product = env.shop.product(offers[0].asin.upper())
        read = read_options(page, read_clicks(info["admissible_commands"]), product.title)
        assert read == {name: list(values) for name, values in product.options.items()}
        page, *_ = env.step("click[features]")
        assert words(read_text(page)) == words(" ".join(product.bullets))


@given(st.text(), st.text(), st.lists(st.text()))
def test_any_instruction_and_page_can_be_read(instruction: str, page: str, clicks: list[str]) -> None:
    wish = read_wish(instruction)
    action = query(wish)
    assert action.startswith("search[") and action.endswith("]") and len(action) > len("search[]")
    assert not set(action[len("search[") : -1]) & set("[]\n")
    assert [offer.asin for offer in read_offers(page, clicks)] == [
        name
        for name in clicks
        if name
        not in {"search", "back to search", "next >", "< prev", "buy now", "features"}
        | {"description", "reviews", "attributes"}
    ]
    chosen, part, _ = choose(wish, read_options(page, clicks))
    assert set(chosen) <= set(clicks)
    assert 0 <= part <= 1


def test_wanted_values_are_clicked_and_else_what_counts_as_them() -> None:
    wish = read_wish("Find me mugs with color: light blue, and size: x-large")
    assert choose(wish, {"color": ["red", "light blue"], "size": ["small", "x-large"]}) == (
        ("light blue", "x-large"),
        1,
        True,
    )
    assert choose(wish, {"colour": ["blue"], "size": ["small"]}) == (("blue",), 0.5, False)
    assert choose(wish, {}) == ((), 0.0, False)
    free = read_wish("i want a mug in dark blue, 12 ounce")
    assert choose(free, {"color": ["blue", "dark blue", "red"], "size": ["12 ounce", "9 ounce"]}) == (
        ("dark blue", "12 ounce"),
        1.0,
        True,
    )


# Shopping.


class Only(dict[str, Any]):
    """An `info` of which an agent may look at the instruction and the commands, and at nothing else."""

    def _allow(self, key: object) -> str:
        assert key in ("task", "admissible_commands"), f"{key} is looked at"
        return str(key)

    def get(self, key: object, default: Any = None) -> Any:
        return super().get(self._allow(key), default)

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(self._allow(key))

    def __iter__(self) -> Any:
        raise AssertionError("all of info is read")

    keys = values = items = __iter__


class Blindfolded:
    """A player that is shown the observation and what an agent sees of the `info`."""

    def __init__(self, player: Any) -> None:
        self.player = player

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        self.player.start(observation, Only(info), 0)

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return str(self.player.act(observation, Only(info)))


def test_the_expert_looks_at_the_instruction_and_the_pages_and_forgets_each_episode() -> None:
    env = WebShopEnv(data="generated", split="dev")
    seeing = make_scripted_agent("expert", WEBSHOP_ENV_ID)
    assert isinstance(seeing, WebShopExpert)
    twice = [step.action for _ in range(2) for episode in played(env, seeing, 40) for step in episode.steps]
    once = [step.action for episode in played(env, Blindfolded(WebShopExpert()), 40) for step in episode.steps]
    assert twice == once * 2


def test_the_expert_buys_what_is_wanted_in_the_generated_shop() -> None:
    episodes = played(WebShopEnv(data="generated", split="dev"), WebShopExpert(), 9)
    assert fmean(earned(episodes)) > 0.97
    assert fmean(score == 1.0 for score in earned(episodes)) > 0.95
    assert {episode.stop_reason for episode in episodes} == {"terminated"}
    assert all(
        step.action in step.admissible_actions or SEARCH_SLOT in step.admissible_actions
        for each in episodes
        for step in each.steps
    )


@pytest.mark.parametrize("by", ["goal", "product"])
def test_the_expert_buys_what_is_wanted_among_official_products(official_products: Path, by: str) -> None:
    episodes = played(WebShopEnv(data=official_products, split="dev", split_by=by), WebShopExpert(), 8)
    assert fmean(earned(episodes)) > 0.93
    assert fmean(score == 1.0 for score in earned(episodes)) > 0.85
    assert {episode.stop_reason for episode in episodes} == {"terminated"}


def test_the_rule_searches_the_instruction_opens_the_first_product_and_buys_it() -> None:
    env = WebShopEnv(data="generated", split="dev")
    player = make_scripted_agent("rule", WEBSHOP_ENV_ID)
    assert isinstance(player, WebShopRule)
    for episode in played(env, Blindfolded(player), 100):
        goal: Goal = env.goals[env.goals.find(episode.task.id)]
        first, second, third = episode.steps
        assert first.action == f"search[{goal.instruction}]"
        assert second.action == next(
            name for name in second.admissible_actions if name not in ("click[back to search]", "click[next >]")
        )
        assert third.action == "click[buy now]"


def test_the_careful_rule_chooses_what_is_wanted_and_listed_even_where_it_was_led_astray() -> None:
    env = WebShopEnv(data="generated", split="dev")
    tasks = list(env.tasks("dev") or ())[:40]
    for explore in (0.0, 0.3):
        for number, task in enumerate(tasks):
            found = run_scripted_episode(
                env, task, make_scripted_agent("careful", WEBSHOP_ENV_ID), seed=number, explore=explore
            )
            goal: Goal = env.goals[env.goals.find(task.id)]
            for step in found.steps:
                advice = step.info.get("expert_action", step.action)
                if advice == "click[buy now]":
                    wanted = {f"click[{value}]" for _, value in read_wish(goal.instruction).options} & set(
                        step.admissible_actions
                    )
                    page = [each.action for each in found.steps[: found.steps.index(step)]]
                    assert wanted <= set(page)


def test_agents_and_site_have_the_same_slot_and_buttons() -> None:
    assert SEARCH_SLOT == pages.SEARCH_SLOT and {text.lower() for text in pages.BUTTONS} == BUTTONS
