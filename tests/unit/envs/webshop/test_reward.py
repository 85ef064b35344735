"""The official reward: upstream's own test values, each rule and each oddity by hand, and what holds for any text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs.webshop.catalogue.nouns import nouns_of
from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.envs.webshop.goals import Goal
from skill_ttrl.envs.webshop.reward import (
    PurchaseReward,
    match_kind,
    purchase_reward,
)

SHOES = "Mens D.O.N. Issue 2 Gca Basketball Sneakers Shoes Casual - Off White"
SOUNDBAR = "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar"
CORD = "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home Theater System"
WANTED = ("tea tree", "essential oils", "natural ingredients")


def product(**changed: Any) -> Product:
    same = Product(
        asin="B000000001",
        title=SHOES,
        description="",
        bullets=(),
        category="fashion",
        query="Query 1",
        product_category="a › b › c",
        prices=(35.0,),
        options={},
        attributes=("tea tree", "essential oil", "natural ingredients"),
    )
    return replace(same, **changed)


def goal(**changed: Any) -> Goal:
    same = Goal(
        id="B000000001/0",
        asin="B000000001",
        title=SHOES,
        category="fashion",
        query="Query 1",
        product_category="a › b › c",
        instruction="i need shoes",
        attributes=WANTED,
        options={"color": "grey", "size": "XL"},
        price_upper=40.0,
    )
    return replace(same, **changed)


def buy(bought: Product, wanted: Goal, price: float = 35.0, chosen: Mapping[str, str] | None = None) -> PurchaseReward:
    return purchase_reward(bought, wanted, price, {"color": "grey", "size": "XL"} if chosen is None else chosen)


# Upstream's own tests (tests/web-agent-site/engine/test_goal.py), value for value.


def test_the_official_purchases_are_worth_what_the_official_tests_say() -> None:
    # Upstream's test gives the features as one text, which the engine joins letter by letter: only the description counts.
    poorer = product(
        attributes=(),
        title=SHOES,
        bullets=tuple("This shampoo has essential oils and smells like lemons"),
        description="Best shampoo on the market, made with natural ingredients",
    )
    three = {"color": "grey", "size": "XL", "amount": "pack of 12"}
    assert buy(product(), goal()).total == 1.0
    assert math.isclose(buy(poorer, goal()).total, 2 / 3)
    assert math.isclose(buy(poorer, goal(options=three)).total, 0.5714, abs_tol=1e-4)
    other = replace(poorer, title=CORD, query="Query 2", product_category="a › d › e")
    result = buy(other, goal(options=three, title=SOUNDBAR))
    assert math.isclose(result.total, 0.2857, abs_tol=1e-4) and result.r_type == 0.5


# The rules one by one.


# What holds for any text.

words = st.sampled_from(
    ["red", "Light grey", "Shoe", "for", "x-large", "2 pack", "50ml", "é", "", "›", "easy to clean"]
)
texts = st.one_of(words, st.text(max_size=30), st.lists(words, max_size=5).map(" ".join))
names = st.text(max_size=8)
options = st.one_of(st.dictionaries(names, texts, max_size=4), st.lists(texts, max_size=4).map(tuple))
products = st.builds(
    product, title=texts, description=texts,
    bullets=st.lists(texts, max_size=3).map(tuple),
    query=texts, product_category=texts,
    attributes=st.lists(texts, max_size=4).map(tuple),
)  # fmt: skip
goals = st.builds(
    goal, title=texts, query=texts, product_category=texts,
    attributes=st.lists(texts, min_size=1, max_size=4).map(tuple),
    options=options, price_upper=st.floats(10, 1000),
)  # fmt: skip
chosen_options = st.dictionaries(names, texts, max_size=4)


@given(products, goals, st.floats(0, 2000), chosen_options)
def test_any_purchase_is_worth_from_nothing_to_one_and_its_shares_add_up(
    bought: Product, wanted: Goal, price: float, chosen: dict[str, str]
) -> None:
    result = buy(bought, wanted, price, chosen)
    shares = [result.r_type, result.r_att, result.r_option or 0.0, result.title_score, result.total]
    assert all(0.0 <= share <= 1.0 for share in shares)
    assert math.isclose(result.w_att + (result.w_option or 0.0) + result.w_price, 1.0)
    summed = result.r_att * result.w_att + (result.r_option or 0.0) * (result.w_option or 0.0)
    assert math.isclose(result.total, result.r_type * (summed + result.r_price * result.w_price), abs_tol=1e-12)


@given(products, goals, chosen_options, texts)
def test_more_of_what_was_asked_for_is_never_worth_less(
    bought: Product, wanted: Goal, chosen: dict[str, str], more: str
) -> None:
    before = buy(bought, wanted, 35.0, chosen)
    richer = replace(bought, attributes=(*bought.attributes, wanted.attributes[-1]))
    assert buy(richer, wanted, 35.0, chosen).total >= before.total
    assert buy(bought, wanted, 35.0, {**chosen, "a ninth name": more}).total >= before.total
    assert buy(bought, wanted, 5.0, chosen).total >= before.total


@given(products, goals, chosen_options, st.randoms(use_true_random=False))
def test_the_order_of_options_and_attributes_is_of_no_importance(
    bought: Product, wanted: Goal, chosen: dict[str, str], random: Any
) -> None:
    def shuffled(things: Any) -> list[Any]:
        kept = list(things)
        random.shuffle(kept)
        return kept

    other = replace(
        wanted,
        attributes=tuple(shuffled(wanted.attributes)),
        options=dict(shuffled(wanted.options.items()))
        if isinstance(wanted.options, Mapping)
        else tuple(shuffled(wanted.options)),
    )
    again = replace(bought, attributes=tuple(shuffled(bought.attributes)))
    assert buy(again, other, 35.0, dict(shuffled(chosen.items()))) == buy(bought, wanted, 35.0, chosen)


@given(texts.filter(lambda text: nouns_of(text) != ()), texts, texts)
def test_a_goals_own_product_is_the_right_kind_of_thing(title: str, query: str, path: str) -> None:
    own = match_kind(
        product(title=title, query=query, product_category=path),
        goal(title=title, query=query, product_category=path),
    )
    assert own.query_match and own.title_score > 0.0
    assert own.r_type == 1.0 or own.title_score < 0.1
