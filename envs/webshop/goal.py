"""One goal: what a shopper was asked to buy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NO_CEILING = 1_000_000.0
"""US dollars: no price is above it, and the instruction names none."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A product that was described, and how. An agent sees `instruction` and nothing else of it."""

    id: str
    """Its product and which of the product's goals it is: the same whatever the order of the goals. See `goals.py`."""
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
