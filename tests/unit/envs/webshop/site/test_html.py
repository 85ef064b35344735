"""Our HTML pages, taken through the official way from HTML to text, are the observations; their addresses lead where they say."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from bs4 import BeautifulSoup
from bs4.element import Comment
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.envs.webshop.address import BadAddress, page_path, read_keywords, read_path
from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.envs.webshop.catalogue.nouns import find_nouns
from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.envs.webshop.goal import NO_CEILING, Goal
from skill_ttrl.envs.webshop.pages import SUB_PAGES, as_rich_text, as_text, clickables, has_search_bar
from skill_ttrl.envs.webshop.reward import PurchaseReward
from skill_ttrl.envs.webshop.shop import Shop, State, page_url
from skill_ttrl.envs.webshop.site.html import page_html

BOUGHT = PurchaseReward(0.5, 1.0, 0.5, None, True, 0.5, None, 0.5, True, False, 0.25)
PLACES: tuple[Any, ...] = ("search", "results", "item", "done")


class OneShelf:
    """A shop's store in memory, in which every search finds every product."""

    def __init__(self, products: tuple[Product, ...]) -> None:
        self.products = products
        self.search_index = self

    def __getitem__(self, number: int) -> Product:
        return self.products[number]

    def number_of(self, asin: str) -> int | None:
        return next((number for number, product in enumerate(self.products) if product.asin == asin), None)

    def search(self, query: str, k: int) -> list[int]:
        return list(range(len(self.products)))


def visible_strings(page: BeautifulSoup) -> Iterator[Any]:
    """The strings that upstream's `convert_html_to_text` takes."""
    strings: Any = page.find_all(string=True)
    for string in strings:
        hidden = string.parent.name in {"style", "script", "head", "title", "meta", "[document]"}
        if not hidden and not isinstance(string, Comment) and string != "\n":
            yield string


def official_text(page: BeautifulSoup) -> str:
    return " [SEP] ".join(string.strip() for string in visible_strings(page))


def official_rich_text(page: BeautifulSoup, url: str, seen: frozenset[str]) -> str:
    said = ""
    for string in visible_strings(page):
        if string.parent.name == "button":
            shown = f"[button] {string} [button_]"
        elif string.parent.name == "label":
            shown = f"  [button] {string} [button_]"
            if f'"{string}"' in url:
                shown = f"  [clicked button] {string} [clicked button_]"
                said = f"You have clicked {string}.\n{said}"
        elif string.parent.get("class") == ["product-link"]:
            how = "clicked button" if string in seen else "button"
            shown = f"\n[{how}] {string} [{how if string in seen else 'button'}_]"
        else:
            shown = str(string)
        said += f"{shown}\n"
    return said


def official_actions(page: BeautifulSoup) -> tuple[bool, list[str]]:
    ordered = [each.get_text().lower() for each in page.find_all(class_="btn")]
    ordered += [each.get_text().lower() for each in page.find_all(class_="product-link")]
    ordered += [str(each.get("value")) for each in page.select('input[type="radio"]')]
    return page.find(id="search_input") is not None, list(dict.fromkeys(ordered))


def check(shop: Shop, goal: Goal, state: State) -> None:
    html = BeautifulSoup(page_html(shop, goal, "7", state), "html.parser")
    page, url = shop.page(goal, state), page_url("7", state)
    assert official_text(html) == as_text(page)
    assert official_rich_text(html, url, state.seen) == as_rich_text(page, url, state.seen)
    bar, actions = official_actions(html)
    assert bar == has_search_bar(page)
    # An option whose value is no visible text is listed upstream and cannot be clicked there either.
    assert [name for name in actions if name.strip()] == [name for name in clickables(page) if name.strip()]


def states(product: Product, pages: tuple[int, ...] = (1, 2, 9)) -> Iterator[State]:
    words = ("red", "shoes")
    yield State()
    for page in pages:
        yield State("results", words, page, seen=frozenset({product.asin}))
    for chosen in ({}, {name: values[-1] for name, values in product.options.items() if values}):
        item = State("item", words, 2, product.asin, options=chosen)
        yield item
        yield from (replace(item, place="sub", sub=sub) for sub in SUB_PAGES)
        yield State("done", asin=product.asin, options=chosen, bought=BOUGHT)


texts = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n\t\r\f<>&\"'/\\%{}[]#?;=`\xa0\x85\u2028")))
products = st.builds(
    Product,
    asin=st.text("ABC019", min_size=1, max_size=10),
    title=texts,
    description=texts,
    bullets=st.lists(texts, max_size=3).map(tuple),
    category=texts,
    query=texts,
    product_category=texts,
    prices=st.sampled_from([(19.99,), (1.0, 1000000.5)]),
    options=st.dictionaries(
        texts, st.lists(texts.map(lambda text: text.strip().lower()), max_size=3).map(tuple), max_size=2
    ),
    attributes=st.lists(texts, max_size=2).map(tuple),
)


@settings(max_examples=50)
@given(products, texts, st.booleans())
def test_any_product_reads_as_html_as_it_is_observed(product: Product, instruction: str, attributes: bool) -> None:
    shelf: Any = OneShelf((product,))
    shop = Shop(shelf, find_nouns("rule"), show_attributes=attributes)
    goal = Goal("x-0", product.asin, "", "", "", "", instruction, ("a",), {}, NO_CEILING)
    for state in states(product, (1,)):
        check(shop, goal, state)


def test_every_page_of_official_products_reads_as_html_as_it_is_observed(official_products: Path) -> None:
    catalogue = open_catalogue(official_products)
    goals = catalogue.goals()
    shop = Shop(catalogue.store, find_nouns("rule"), show_attributes=True)
    few_options = [each for each in catalogue.store if sum(map(len, each.options.values())) < 40]
    for product in random.Random(0).sample(few_options, 12):
        for state in states(product):
            check(shop, goals[5], state)


def test_a_picture_is_shown_only_where_it_is_asked_for() -> None:
    product = Product("A", "t", "", (), "garden", "q", "p", (1.0,), {}, image='https://pictures.example/a.jpg?"x')
    shelf: Any = OneShelf((product, replace(product, asin="B", image="javascript:alert(1)")))
    shop = Shop(shelf, find_nouns("rule"))
    goal = Goal("x-0", "A", "", "", "", "", "buy", ("a",), {}, NO_CEILING)
    for state in (State("results", ("a",)), State("item", ("a",), asin="A")):
        assert "example" not in page_html(shop, goal, "7", state)
        shown = BeautifulSoup(page_html(shop, goal, "7", state, images=True), "html.parser").find_all("img")
        assert [image["src"] for image in shown] == [product.image]


@given(
    st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=100),
    st.lists(texts.map(lambda text: text.replace(" ", "")), min_size=1, max_size=4).map(tuple),
    st.integers(1, 10**6),
    st.dictionaries(texts, texts, max_size=3),
)
def test_an_address_reads_back_as_the_place_it_was_written_for(
    session: str, keywords: tuple[str, ...], page: int, options: dict[str, str]
) -> None:
    for state in (
        State(),
        State("results", keywords, page),
        State("item", keywords, page, "B01", options=options),
        State("sub", keywords, page, "B01", options=options, sub="Features"),
        State("done", asin="B01", options=options),
    ):
        path = page_path(session, state)
        if session not in (".", ".."):
            assert not {"", ".", ".."} & set(path.split("/")[1:])
        assert urlsplit(f"http://host{path}").path == path
        assert read_path(path) == (session, state)


@given(st.lists(texts, min_size=1, max_size=3), st.dictionaries(texts, texts, max_size=3))
def test_addresses_of_official_clients_are_read(keywords: list[str], options: dict[str, str]) -> None:
    # Python's repr writes what is not printable as \x85, \u2028 or, outside the first 65,536 characters, \U000e0001.
    if re.search(r"\\U", repr((keywords, options))):
        return
    path = f"/item_page/s/B01/{quote(str(keywords), safe='')}/2/{quote(str(options), safe='')}"
    assert read_path(path) == ("s", State("item", tuple(keywords), 2, "B01", options=options))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 400),
        ("/search_results/s/words", 404),
        ("/search_results/s/words/0", 400),
        ("/search_results/s/words/-1", 400),
        ("/search_results/s/words/two", 400),
        ("/search_results/s/[/1", 400),
        ("/search_results/s/[]/1", 400),
        ("/search_results/s/[1]/1", 400),
        ("/item_page/s/B01/words/1/{", 400),
        ("/item_page/s/B01/words/1/[]", 400),
        ("/item_page/s/B01/words/1/{'a': 1}", 400),
        ("/item_page/s/B01/words/1/__import__('os')", 400),
        ("/item_page/s/B01/words/1/" + "[" * 50_000, 400),
        ("/item_sub_page/s/B01/words/1/Secrets/{}", 404),
        ("/done/s/B01", 404),
        ("/" + "s" * 101, 400),
        ("/a%00b", 400),
        ("/wp-admin/login.php", 404),
    ],
)
def test_a_bad_address_is_named_bad(path: str, status: int) -> None:
    with pytest.raises(BadAddress) as caught:
        read_path(path)
    assert caught.value.status == status and len(str(caught.value)) < 200


def test_words_of_a_search_box_are_split_as_upstream_does() -> None:
    assert read_keywords("Red  Shoes ") == ("red", "", "shoes", "")
