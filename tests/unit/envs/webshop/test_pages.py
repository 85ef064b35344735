"""WebShop's pages and where actions lead, beside the golden episodes: the oddities of upstream's rules, one at a time."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from skill_ttrl.envs.webshop.catalogue.catalogue import Catalogue, forget, open_catalogue
from skill_ttrl.envs.webshop.catalogue.product import read_product
from skill_ttrl.envs.webshop.goal import Goal
from skill_ttrl.envs.webshop.pages import (
    Page,
    Text,
    admissible,
    as_rich_text,
    as_text,
    clickables,
    has_search_bar,
    item_page,
    results_page,
    search_page,
    sub_page,
)
from skill_ttrl.envs.webshop.shop import Shop, State, follow, page_url, parse_action, shared_shop
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
    return shared_shop(catalogue.store, "rule", False, False)


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


def test_pages_of_results_go_on_after_the_last_and_back(shop: Shop, goal: Goal) -> None:
    state, page = go(shop, goal, "search[lamp]")
    names = [
        [
            name
            for name in clickables(go(shop, goal, *["click[next >]"] * turns, start=state)[1])
            if name.startswith("b0")
        ]
        for turns in range(5)
    ]
    assert [len(each) for each in names] == [10, 10, 3, 0, 0]
    assert sorted(name for each in names for name in each) == [f"b0lamp00{number:02}" for number in range(23)]
    state, page = go(shop, goal, *["click[next >]"] * 30, start=state)
    assert (state.place, state.page) == ("results", 31)
    assert list(clickables(page)) == ["back to search", "< prev", "next >"]
    assert as_text(page).endswith("Page 31 (Total results: 23) [SEP] < Prev [SEP] Next >")
    state, page = go(shop, goal, *["click[< prev]"] * 40, start=state)
    assert state.page == 1 and "< prev" not in clickables(page)  # the first page has no way further back


def test_a_search_that_finds_nothing_has_a_page_of_nothing(shop: Shop, goal: Goal) -> None:
    _, page = go(shop, goal, "search[zebra]")
    assert (
        as_text(page)
        == f"Instruction: [SEP] {goal.instruction} [SEP] Back to Search [SEP] Page 1 (Total results: 0) [SEP] Next >"
    )


def test_equal_products_stand_in_the_order_of_their_asins(shop: Shop) -> None:
    found = shop.search(("lamp",))
    assert [shop.store[number].asin for number in found] == [f"B0LAMP00{number:02}" for number in range(23)]


def test_an_option_named_like_a_button_hides_it_and_leads_where_the_button_leads(shop: Shop, goal: Goal) -> None:
    state, page = go(shop, goal, "search[odd thing]", "click[b0odd00001]")
    clicks = clickables(page)
    assert clicks["description"].kind == "option" and clicks["red"].option == "finish"
    assert list(clicks)[:6] == ["back to search", "< prev", "description", "features", "reviews", "buy now"]
    assert go(shop, goal, "click[description]", start=state)[0].sub == "Description"
    assert go(shop, goal, "click[red]", start=state)[0].options == {"finish": "red"}
    assert go(shop, goal, "click[buy now]", start=state)[0].place == "done"
    # Of brackets inside a value only a closing one does no harm: a name of an action ends at the last opening one.
    assert go(shop, goal, "click[x]y]", start=state)[0].options == {"finish": "x]y"}


@pytest.mark.parametrize("asin", ["Features", "Buy Now", "Next >", "Search"])
def test_an_asin_that_reads_like_a_button_buys_nothing_and_breaks_nothing(tmp_path: Path, asin: str) -> None:
    found = open_catalogue(write_catalogue(tmp_path, [product(asin)], {asin: wanted()}))
    shop, goal = shared_shop(found.store, "rule", False, False), found.goals()[0]
    state, _ = go(shop, goal, "search[lamp]", f"click[{asin.lower()}]")
    assert (state.place, state.asin) == (("item", asin) if asin in ("Features", "Buy Now") else ("results", ""))


def test_options_last_until_the_results_are_seen_again(shop: Shop, goal: Goal) -> None:
    chosen, _ = go(shop, goal, "search[odd]", "click[b0odd00001]", "click[red]")
    assert go(shop, goal, "click[features]", "click[< prev]", start=chosen)[0] == chosen
    assert go(shop, goal, "click[< prev]", "click[b0odd00001]", start=chosen)[0].options == {}
    assert go(shop, goal, "search[odd]", start=chosen)[0].options == {}
    assert go(shop, goal, "click[back to search]", start=chosen)[0] == State()


def test_after_a_purchase_nothing_leads_anywhere(shop: Shop, goal: Goal) -> None:
    done, page = go(shop, goal, "search[lamp]", "click[b0lamp0007]", "click[buy now]")
    assert done.bought is not None and done.bought.total == 1.0 and clickables(page) == {}
    for action in ("search[lamp]", "click[back to search]", "click[buy now]"):
        assert shop.step(goal, done, page, action) is done
    assert (
        follow(replace(done, place="item", bought=None), item_page("", read_product(ODD)), "click[buy now]").bought
        is None
    )


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


def test_rich_text_marks_buttons_products_seen_and_chosen_options() -> None:
    found = read_product(product("B0LAMP0001", customization_options=options(color=("red", "blue"))))
    seen = results_page("Find", [found], 2, 30)
    assert as_rich_text(seen, "", ()) == (
        "Instruction:\nFind\n[button] Back to Search [button_]\nPage 2 (Total results: 30)\n[button] < Prev [button_]\n"
        "[button] Next > [button_]\n\n[button] B0LAMP0001 [button_]\nOak Desk Lamp\n$12.5\n"
    )
    assert "\n[clicked button] B0LAMP0001 [clicked button_]\n" in as_rich_text(seen, "", {"B0LAMP0001"})
    state = State("item", ("desk", "lamp"), 1, "B0LAMP0001", options={"color": "red"})
    said = as_rich_text(item_page("Find", found), page_url("7", state), ())
    assert said.startswith("You have clicked red.\nInstruction:\n")
    assert (
        "color\n  [clicked button] red [clicked button_]\n  [button] blue [button_]\nOak Desk Lamp\nPrice: $12.5\n"
        in said
    )


def test_addresses_are_upstreams() -> None:
    state = State("item", ("desk", "", "lamp"), 2, "B0LAMP0001", options={"color": "red", "size": "s"})
    base = "http://127.0.0.1:3000"
    assert page_url("7", State()) == f"{base}/7"
    assert page_url("7", replace(state, place="results")) == f"{base}/search_results/7/desk++lamp/2"
    assert page_url("7", state) == f'{base}/item_page/7/B0LAMP0001/desk++lamp/2/{{"color": "red", "size": "s"}}'
    sub = replace(state, place="sub", sub="Features")
    assert (
        page_url("7", sub) == f"{base}/item_sub_page/7/B0LAMP0001/desk++lamp/2/Features/{{'color': 'red', 'size': 's'}}"
    )
    assert page_url("7", replace(state, place="done")) == f"{base}/done/7/B0LAMP0001/{{'color': 'red', 'size': 's'}}"


def test_admissible_actions_stand_in_the_pages_order() -> None:
    found = read_product(product("B0LAMP0001", customization_options=options(color=("red",))))
    for shown in (False, True):
        page = item_page("Find", found, show_attributes=shown)
        more = ["click[attributes]"] * shown
        assert admissible(clickables(page), has_search_bar(page)) == [
            "click[back to search]", "click[< prev]", "click[description]", "click[features]", "click[reviews]", *more,
            "click[buy now]", "click[red]",
        ]  # fmt: skip
    assert admissible(clickables(search_page("Find")), True) == ["search[<your query>]"]
    assert not has_search_bar((Text("Search"),)) and has_search_bar(search_page(""))


@pytest.mark.parametrize(
    ("name", "shown"),
    [("Description", ["A lamp for work at night."]), ("Features", [" bulb included", " two years of warranty"]), ("Reviews", []),
     ("Attributes", [" dimmable", " heavy duty", "garden", "desk lamp", "Home & Kitchen › Lighting › Lamps"])],
)  # fmt: skip
def test_pages_of_a_product(name: str, shown: list[str]) -> None:
    page = sub_page("Find", read_product(product("B0LAMP0001"), wanted()), name)
    assert [text.text for text in page] == ["Instruction:", "Find", "Back to Search", "< Prev", *shown]
    assert list(clickables(page)) == ["back to search", "< prev"]


def test_a_query_that_is_a_book_is_answered_and_not_kept(shop: Shop, goal: Goal) -> None:
    kept = shop._kept_search.cache_info().currsize
    state, page = go(shop, goal, f"search[{'lamp and a word ' * 1_000}]")
    assert "Total results: 23" in as_text(page) and len(state.keywords) == 4_001
    assert shop._kept_search.cache_info().currsize == kept
    with pytest.raises(KeyError):
        shop.product("B0NOWHERE9")


def test_texts_kept_for_products_are_those_of_each_catalogue(tmp_path: Path) -> None:
    """Two products with the same ASIN, of two catalogues."""
    one, other = (read_product(product("B0LAMP0001", name)) for name in ("One", "Other"))
    for _ in range(2):
        assert [as_text(results_page("", [each], 1, 1)).split(" [SEP] ")[-2] for each in (one, other)] == [
            "One",
            "Other",
        ]
        assert ["Other" in as_text(item_page("", each)) for each in (one, other)] == [False, True]
