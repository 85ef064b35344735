"""WebShop's oracle: it finds the best purchase there is, the way that it names leads there, and it does so fast."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skill_ttrl.envs.webshop.env import WebShopEnv
from skill_ttrl.envs.webshop.goals import Goal
from skill_ttrl.envs.webshop.shop import SEARCH_SLOT, Shop, State, clickables
from skill_ttrl.envs.webshop.solve import best_purchase, own_purchase
from tests.webshop_files import product as catalogue_product
from tests.webshop_files import wanted, write_catalogue

pytestmark = pytest.mark.usefixtures("one_cache")  # each catalogue is read once

EPISODES = Path(__file__).parents[3] / "golden" / "webshop_episodes"


def shop_of(env: WebShopEnv) -> Shop:
    assert env.shop is not None
    return env.shop


def walk(env: WebShopEnv, goal: Goal, actions: tuple[str, ...]) -> float:
    """Play actions, each of which must be admissible; gives the reward of the last one, which must buy."""
    _, info = env.reset(options={"task": goal.id})
    for number, action in enumerate(actions, 1):
        admissible = info["admissible_commands"]
        assert action in admissible or (action.startswith("search[") and SEARCH_SLOT in admissible), action
        _, reward, terminated, _, info = env.step(action)
        assert terminated == (number == len(actions))
    return float(reward)


def every_purchase(shop: Shop, goal: Goal) -> Iterator[float]:
    """The reward of every product with every choice of its options that clicking can make."""
    for product in shop.store:
        opened = State(place="item", keywords=("a",), asin=product.asin)
        page = shop.page(goal, opened)
        by_name: dict[str, list[str]] = {}
        for value, text in clickables(page).items():
            if text.kind == "option":
                by_name.setdefault(text.option, []).append(value)
        for chosen in itertools.product(*([None, *values] for values in by_name.values())):
            state = opened
            for value in filter(None, chosen):
                state = shop.step(goal, state, shop.page(goal, state), f"click[{value}]")
            if state.place == "item":
                bought = shop.step(goal, state, page, "click[buy now]").bought
                assert bought is not None
                yield bought.total


@pytest.mark.parametrize("kind", ["human", "synthetic"])
def test_no_other_purchase_of_a_catalogue_of_odd_products_is_better(kind: str) -> None:
    env = WebShopEnv(data=EPISODES, split="test", goals=kind)
    shop, below, of_another = shop_of(env), 0, 0
    for number in range(0, len(env.goals), 1 if kind == "human" else 3):
        goal: Goal = env.goals[number]
        found = best_purchase(shop, goal)
        assert found is not None
        assert found.reward.total == max(every_purchase(shop, goal)), goal.id
        assert walk(env, goal, found.actions) == found.reward.total
        below += found.reward.total < 1
        of_another += found.asin != goal.asin
    assert below > 1
    assert of_another or kind == "synthetic"


def test_official_goals_are_fulfilled_but_for_values_that_name_a_colour(official_products: Path) -> None:
    env = WebShopEnv(data=official_products, split="dev")
    shop, began, reached, numbers = shop_of(env), time.perf_counter(), 0, range(500, 1500, 25)
    for number in numbers:
        goal: Goal = env.goals[number]
        found = best_purchase(shop, goal)
        assert found is not None
        assert walk(env, goal, found.actions) == found.reward.total
        reached += found.reward.total == 1.0
        if found.reward.total < 1.0:
            assert (found.reward.r_type, found.reward.r_att, found.reward.r_price) == (1.0, 1.0, True)
    assert 0.88 < reached / len(numbers) < 0.98
    assert (time.perf_counter() - began) / len(numbers) < 0.2


@pytest.mark.parametrize("asin", ["B0TWIN0001", "Next >", "a[b]", ""])
def test_a_product_that_no_click_opens_is_not_claimed(tmp_path: Path, asin: str) -> None:
    """Clicks are compared in small letters: of two ASINs that differ in them alone the later one on the page is opened."""
    about = {asin: wanted("Find me a lamp", "oak")}
    data = write_catalogue(tmp_path, [catalogue_product(asin), catalogue_product("b0twin0001")], about)
    env = WebShopEnv(data=data, split="test")
    goal: Goal = env.goals[0]
    assert own_purchase(shop_of(env), goal) is None
    found = best_purchase(shop_of(env), goal)
    assert found is not None and found.asin == "b0twin0001"
    assert walk(env, goal, found.actions) == found.reward.total == 1.0
