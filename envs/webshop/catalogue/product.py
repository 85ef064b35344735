"""One product, and how it is read from the official catalogue's words.

`Product` holds what the simulator shows and the reward looks at; `read_product` gives it the meaning that the official engine
gives the fields (`web_agent_site/engine/engine.py`, `load_products`, of princeton-nlp/WebShop).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skill_ttrl.errors import EnvError

NO_PRICE = 100.0
"""US dollars of a product for which the catalogue names no price."""
NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Attributes of a product of which the file of attributes knows none."""
NO_RATING = "N.A."

_NO_PRICE_CHARACTER = re.compile(r"[^\d.]")
_ONE_POINT = re.compile(r"\d*\.?\d+|\d+\.")


@dataclass(frozen=True, slots=True)
class Product:
    """Data of one product, independent of goals and of chance."""

    asin: str
    """Its id, at most 10 characters."""
    title: str
    description: str
    """May be empty."""
    bullets: tuple[str, ...]
    """Its features."""
    category: str
    """One of five in the official files: beauty, electronics, fashion, garden, grocery."""
    query: str
    """The search that it was found by, in small letters."""
    product_category: str
    """A path, its parts separated by ›."""
    prices: tuple[float, ...]
    """US dollars: one price, or the two ends of a range as they are given."""
    options: Mapping[str, tuple[str, ...]]
    """Name → values, in small letters; empty where there is nothing to choose."""
    attributes: tuple[str, ...] = NO_ATTRIBUTES
    instruction: str | None = None
    """Instruction of its synthetic goals, without options; None: it has no such goals."""
    instruction_attributes: tuple[str, ...] = ()
    """Those of its attributes that `instruction` names."""
    image: str = ""
    """Address of a picture, empty where there is none; nothing here fetches it."""

    def __hash__(self) -> int:
        return hash(self.asin)

    @property
    def price_tag(self) -> str:
        """Its price as pages show it: "$19.99", or "$19.99 to $27.99"."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def option_text(self) -> str:
        """Its options as the search knows them: "color: red, blue, and size: s"."""
        return ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())


def read_product(fields: Any, about: Mapping[str, Any] | None = None) -> Product:
    """A product in the official schema. It may lack a description, features, a price and options.

    Args:
        fields: one element of `items_shuffle.json`.
        about: what `items_ins_v2.json` has under its ASIN; None: nothing.

    Raises:
        EnvError: a field is missing or is not of its kind. The message names the field, and not the file.
    """
    if not isinstance(fields, Mapping):
        raise EnvError(f"a product is a JSON object, found {type(fields).__name__}")
    asin = _text(fields, "asin")
    if "\0" in asin:  # the store's list of them, fixed in width, cannot tell one at the end
        raise EnvError(f"asin is a text without NUL, found {asin[:20]!r}")
    about = {} if about is None else about
    if not isinstance(about, Mapping):
        raise EnvError(f"the entry of {asin[:20]} is a JSON object, found {type(about).__name__}")
    bullets = [] if fields.get("small_description") is None else fields["small_description"]
    images = fields.get("images")
    instruction = about.get("instruction")
    wanted = _texts(about.get("instruction_attributes") or [], f"{asin[:20]}: instruction_attributes")
    if instruction is not None and (not isinstance(instruction, str) or not wanted):
        raise EnvError(f"{asin[:20]}: an instruction is a text, and names at least one of instruction_attributes")
    return Product(
        asin=asin,
        title=_text(fields, "name"),
        description=_text(fields, "full_description") if fields.get("full_description") is not None else "",
        bullets=(bullets,) if isinstance(bullets, str) else _texts(bullets, f"{asin[:20]}: small_description"),
        category=_text(fields, "category"),
        query=_text(fields, "query").lower().strip(),
        product_category=_text(fields, "product_category"),
        prices=_prices(fields.get("pricing"), asin),
        options=_options(fields.get("customization_options"), asin),
        attributes=_texts(about["attributes"], f"{asin[:20]}: attributes") if "attributes" in about else NO_ATTRIBUTES,
        instruction=instruction,
        instruction_attributes=wanted if instruction is not None else (),
        image=images[0] if isinstance(images, list) and images and isinstance(images[0], str) else "",
    )


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        asin = fields.get("asin")
        where = f"{asin[:20]}: " if isinstance(asin, str) and name != "asin" else ""
        raise EnvError(f"{where}{name} is a text, found {'nothing' if value is None else type(value).__name__}")
    return value


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise EnvError(f"{what} is a list of texts, found {type(value).__name__}")
    return tuple(value)


def _prices(pricing: Any, asin: str) -> tuple[float, ...]:
    """A text like $19.99$27.99 is a range; more than two prices are cut to two, as upstream does."""
    if not pricing:
        return (NO_PRICE,)
    if not isinstance(pricing, str):
        raise EnvError(f"{asin[:20]}: pricing is a text like $19.99, found {type(pricing).__name__}")
    written = [_NO_PRICE_CHARACTER.sub("", each) for each in pricing.split("$")[1:]]
    prices = [float(each) for each in written if _ONE_POINT.fullmatch(each)]
    if not written or len(prices) != len(written) or not all(math.isfinite(price) for price in prices):
        raise EnvError(f"{asin[:20]}: pricing is a text like $19.99 or $19.99$27.99, found {pricing[:40]!r}")
    return tuple(prices[:2])


def _options(given: Any, asin: str) -> dict[str, tuple[str, ...]]:
    if not given:
        return {}
    if not isinstance(given, Mapping):
        raise EnvError(f"{asin[:20]}: customization_options is a JSON object, found {type(given).__name__}")
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in given.items():
        if contents is None:
            continue
        try:
            values = tuple(content["value"].strip().replace("/", " | ").lower() for content in contents)
        except (TypeError, KeyError, AttributeError):
            raise EnvError(
                f"{asin[:20]}: the values of the option {str(name)[:40]!r} are objects with a text `value`"
            ) from None
        options[str(name).lower()] = values
    return options
