"""The generated catalogue: the same bytes everywhere, like real shops where it matters, and fair to who shops by reading."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest

from skill_ttrl.envs.webshop.catalogue.catalogue import DEFAULT_PRODUCTS
from skill_ttrl.envs.webshop.catalogue.product import Product, read_product
from skill_ttrl.envs.webshop.goals import Goal, ceiling, combination, price_of
from skill_ttrl.envs.webshop.maker.maker import make_products
from skill_ttrl.envs.webshop.reward import purchase_reward

FIRST_TWENTY = "e0f6f6feca33c78e"
"""Hash of the first products of seed 0. Where it changes, results of before no longer hold."""
DEFAULT_CATALOGUE = "4f5a8464d17aeb1c"

Made = list[tuple[dict[str, Any], dict[str, Any] | None]]


def digest(made: Made) -> str:
    return hashlib.blake2b(json.dumps(made, ensure_ascii=False).encode(), digest_size=8).hexdigest()


@pytest.fixture(scope="module")
def made() -> Made:
    return list(make_products(DEFAULT_PRODUCTS))


@pytest.fixture(scope="module")
def products(made: Made) -> list[Product]:
    return [read_product(fields, about) for fields, about in made]


def goals_of(product: Product) -> list[Goal]:
    return [
        Goal(
            id=f"{product.asin}-{number}",
            asin=product.asin,
            title=product.title,
            category=product.category,
            query=product.query,
            product_category=product.product_category,
            instruction=product.instruction or "",
            attributes=product.instruction_attributes,
            options=combination(product, number),
            price_upper=ceiling(price_of(product), product.asin),
        )
        for number in range(math.prod(len(offered) for offered in product.options.values()))
    ]


def test_the_same_seed_gives_the_same_bytes_everywhere(made: Made) -> None:
    assert digest(made[:20]) == FIRST_TWENTY
    assert digest(made) == DEFAULT_CATALOGUE


def test_a_smaller_catalogue_is_the_beginning_of_a_larger_one_and_another_seed_another_catalogue(made: Made) -> None:
    assert list(make_products(37)) == made[:37]
    assert list(make_products(0)) == []
    others = list(make_products(DEFAULT_PRODUCTS, seed=1))
    assert not {fields["name"] for fields, _ in others} & {fields["name"] for fields, _ in made}


def test_every_goal_is_reached_in_full_by_its_own_product(products: list[Product]) -> None:
    for product in products:
        for goal in goals_of(product) if product.instruction is not None else ():
            bought = purchase_reward(product, goal, price_of(product), dict(goal.options))  # type: ignore[arg-type]
            assert bought.total == 1.0, (product.title, goal.options, bought)
