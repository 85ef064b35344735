"""WebShop's pages and where actions lead, beside the golden episodes: the oddities of upstream's rules, one at a time."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from skill_ttrl.envs.webshop.catalogue.catalogue import Catalogue, forget, open_catalogue
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
    return shared_shop(catalogue.store, "rule", False)


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
    shop, goal = shared_shop(found.store, "rule", False), found.goals()[0]
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
