"""One goal: what a shopper was asked to buy, and how it is constructed of a product.

The construction is upstream's (`web_agent_site/engine/goal.py`): for a product with an instruction one synthetic goal for each
combination of its option values, or one for each instruction that a person wrote.

One thing differs, on purpose: upstream draws prices and price ceilings from the unseeded generator of each process, so that the
same goal has another ceiling in every worker; here they are drawn from the product's or the goal's own name.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from skill_ttrl.envs.webshop.catalogue.files import HumanInstruction
from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.types import derive_seed

NO_CEILING = 1_000_000.0
"""US dollars: no price is above it, and the instruction names none."""
UPSTREAM_SEED = 233
_PRICE_STEPS = [10.0 * step for step in range(1, 100)]


@dataclass(frozen=True, slots=True)
class Goal:
    """A product that was described, and how. An agent sees `instruction` and nothing else of it."""

    id: str
    """Its product and which of the product's goals it is: the same whatever the order of the goals. See `goals`."""
    asin: str
    title: str
    category: str
    query: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    """At least one."""
    options: Mapping[str, str] | tuple[str, ...]
    """Name → value for a synthetic goal; only values for one that a person wrote. May be empty."""
    price_upper: float
    """US dollars, above 0; `NO_CEILING` where there is none."""


def synthetic_goal(name: str, product: Product, number: int) -> Goal:
    """A goal made of a product with an instruction.

    Args:
        name: the goal's id.
        product: it has an instruction.
        number: which combination of its option values, from 0; see `combination`.
    """
    options = combination(product, number)
    chosen = ", and ".join(f"{option}: {value}" for option, value in options.items())
    text = f"{product.instruction} with {chosen}" if chosen else str(product.instruction)
    return _goal(name, product, text, product.instruction_attributes, options, ceiling(price_of(product), product.asin))


def human_goal(name: str, product: Product, written: HumanInstruction) -> Goal:
    """A goal that a person wrote for a product; `name` is the goal's id."""
    upper = ceiling(price_of(product), name)
    return _goal(name, product, written.text.strip("."), written.attributes, written.options, upper)


def price_of(product: Product) -> float:
    """Return a product's price in US dollars: its one price, or one drawn uniformly from its range, the same in every process."""
    if len(product.prices) == 1:
        return product.prices[0]
    return random.Random(derive_seed(UPSTREAM_SEED, "price", product.asin)).uniform(*product.prices)


def ceiling(price: float, name: str) -> float:
    """The price that a goal must stay under, US dollars: the larger of two of the next four multiples of ten.

    Args:
        price: of the goal's product.
        name: whose draw it is: a synthetic goal's ASIN (upstream draws once for all goals of a product), a human goal's id.

    Returns:
        `NO_CEILING` where fewer than two multiples of ten up to 990 are above the price.
    """
    above = [step for step in _PRICE_STEPS if step > price][:4]
    if len(above) < 2:
        return NO_CEILING
    return max(random.Random(derive_seed(UPSTREAM_SEED, "ceiling", name)).sample(above, 2))


def combination(product: Product, number: int) -> dict[str, str]:
    """Option values of a product's synthetic goal, names sorted, the last varying fastest (`itertools.product`).

    Raises:
        IndexError: `number` is out of range.
    """
    chosen: dict[str, str] = {}
    for name in sorted(product.options, reverse=True):
        number, value = divmod(number, len(product.options[name]))
        chosen[name] = product.options[name][value]
    if number:
        raise IndexError("a product has as many synthetic goals as combinations of its options")
    return dict(sorted(chosen.items()))


def _goal(
    name: str,
    product: Product,
    text: str,
    attributes: tuple[str, ...],
    options: Mapping[str, str] | tuple[str, ...],
    upper: float,
) -> Goal:
    below = "" if upper == NO_CEILING else f", and price lower than {upper:.2f} dollars"
    return Goal(
        id=name,
        asin=product.asin,
        title=product.title,
        category=product.category,
        query=product.query,
        product_category=product.product_category,
        instruction=f"{text}{below}",
        attributes=attributes,
        options=options,
        price_upper=upper,
    )
