"""Our HTML pages, taken through the official way from HTML to text, are the observations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import Comment
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.envs.webshop.catalogue.nouns import find_nouns
from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.envs.webshop.goal import NO_CEILING, Goal
from skill_ttrl.envs.webshop.html import page_html
from skill_ttrl.envs.webshop.pages import SUB_PAGES, as_rich_text, as_text, clickables, has_search_bar
from skill_ttrl.envs.webshop.reward import PurchaseReward
from skill_ttrl.envs.webshop.shop import Shop, State, page_url

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
