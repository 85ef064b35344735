"""WebShop's pages and where actions lead, beside the golden episodes: the oddities of upstream's rules, one at a time."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from skill_ttrl.envs.webshop.catalogue.catalogue import Catalogue, forget, open_catalogue
from skill_ttrl.envs.webshop.env import WebShopEnv
from skill_ttrl.envs.webshop.goals import Goal
from skill_ttrl.envs.webshop.shop import Page, Shop, State, parse_action, search_page, shared_shop
from tests.webshop_files import options, product, wanted, write_catalogue

MANY = [product(f"B0LAMP00{number:02}", f"Lamp number {number}", query="lamp") for number in reversed(range(23))]
ODD = product(
    "B0ODD00001",
    "Odd thing",
    full_description="Strange.",
    customization_options=options(color=("Description", "red"), finish=("red", "x]y", "buy now")),
)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalogue]:
    root = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        forget()
        yield open_catalogue(write_catalogue(root / "data", [*MANY, ODD], {"B0LAMP0007": wanted("Find me a lamp")}))
    forget()


@pytest.fixture
def shop(catalogue: Catalogue) -> Shop:
    return shared_shop(catalogue.store, False)


@pytest.fixture
def goal(catalogue: Catalogue) -> Goal:
    goal: Goal = catalogue.goals()[0]
    return goal


def go(shop: Shop, goal: Goal, *actions: str, start: State | None = None) -> tuple[State, Page]:
    state = start or State()
    page = shop.page(goal, state)
    for action in actions:
        state = shop.step(goal, state, page, action)
        page = shop.page(goal, state)
    return state, page


def test_an_action_is_read_as_upstreams_expression_reads_it() -> None:
    rng = random.Random(0)
    read = 0
    for _ in range(30_000):
        action = "".join(rng.choices("ab[]\n\r B", k=rng.randrange(10)))
        match = re.match(r"(.+)\[(.+)\]", action)
        assert parse_action(action) == (None if match is None else (match[1], match[2].lower())), action
        read += match is not None
    assert read > 500


@pytest.mark.parametrize("asin", ["Features", "Buy Now", "Next >", "Search"])
def test_an_asin_that_reads_like_a_button_buys_nothing_and_breaks_nothing(tmp_path: Path, asin: str) -> None:
    found = open_catalogue(write_catalogue(tmp_path, [product(asin)], {asin: wanted()}))
    shop, goal = shared_shop(found.store, False), found.goals()[0]
    state, _ = go(shop, goal, "search[lamp]", f"click[{asin.lower()}]")
    assert (state.place, state.asin) == (("item", asin) if asin in ("Features", "Buy Now") else ("results", ""))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", []),
        ("\n", []),
        (" \n\t", []),
        ("  ", [" "]),
        ("\t", [" "]),
        ("\x0b", ["\x0b"]),
        ("\xa0", ["\xa0"]),
        (" a ", [" a "]),
    ],
)
def test_white_space_is_seen_as_the_official_parser_sees_it(text: str, shown: list[str]) -> None:
    page = search_page(text)
    assert [each.text for each in page[2:-1]] == shown


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
