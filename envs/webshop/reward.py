"""Reward of a purchase: the official one (`get_reward` of `web_agent_site/engine/goal.py`, princeton-nlp/WebShop).

    total = r_type · (attributes matched + options matched + r_price) / (attributes + options + 1)

from 0.0 to 1.0, where 1.0 is success. `r_type` scores whether the product is of the right kind at all; the other factor how much of
the request it fulfils. The rules follow upstream to the letter, including its oddities, which are noted where they apply.

Texts match if thefuzz's `token_set_ratio` of them is above 85. The ratio is rapidfuzz's, as with thefuzz 0.20 and newer; the
0.19 of the official requirements takes difflib's where python-Levenshtein is not installed. On the 1,000 official products that
changes no decision (`benchmarks/webshop_matches.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from skill_ttrl.envs.webshop.catalogue.nouns import nouns_of
from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.envs.webshop.goals import Goal

ALIKE = 85
"""Per cent; two texts match above it."""
TITLE_SCORE_WITHOUT_NOUNS = 0.2
"""Of a goal whose title has no nouns. It is not above 0.2, so that it makes no match by itself."""

COLOURS: tuple[str, ...] = tuple(
    """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel
    champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim
    eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki
    lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard
    natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver
    skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
    """.split()
)
"""The official engine's list (`COLOR_SET` of `web_agent_site/engine/normalize.py`), in its order, which decides: the first that a
text contains stands for the text, wherever in it, so that "colored" is red.
"""

_NO_WORD_CHARACTER = re.compile(r"\W")
_DROPPED = dict.fromkeys(range(128, 256))


@dataclass(frozen=True, slots=True)
class PurchaseReward:
    """A purchase's reward and its parts, by upstream's names. All numbers are from 0 to 1."""

    total: float
    """The reward; 1.0 is success."""
    r_type: float
    """1.0: the right kind of thing; 0.5: nothing speaks for it; 0.1 or 0.0: the titles share next to no noun or none."""
    r_att: float
    """Fraction of the goal's attributes that the product has."""
    r_option: float | None
    """Fraction of the goal's options that were chosen; None: the goal has none."""
    r_price: bool
    """The price is not above the goal's ceiling."""
    w_att: float
    """Share of the attributes in `total`: of attributes + options + 1."""
    w_option: float | None
    """Share of the options; None: the goal has none."""
    w_price: float
    """Share of the price."""
    query_match: bool
    """Product and goal were found by the same search."""
    category_match: bool
    """Their paths of categories share two different parts at least, wherever in them."""
    title_score: float
    """Different nouns that the two titles share, for each noun of the goal's, repetitions counted."""


class KindMatch(NamedTuple):
    """Match of a product with the kind of product that a goal asks for: upstream's `get_type_reward`."""

    r_type: float
    query_match: bool
    category_match: bool
    title_score: float


def purchase_reward(product: Product, goal: Goal, price: float, chosen: Mapping[str, str]) -> PurchaseReward:
    """The official reward of buying `product`.

    Args:
        product: what is bought.
        goal: what was asked for.
        price: US dollars, the product's as drawn for this shop (a range has one price in it).
        chosen: option name → value that was clicked. Only the values are looked at: a value that matches counts under
            whatever name.
    """
    kind = match_kind(product, goal)
    n_att = count_attributes(product, goal.attributes)
    n_option = count_options(chosen.values(), goal.options)
    r_price = price <= goal.price_upper
    of_att, of_option = len(goal.attributes), len(goal.options)
    parts = of_att + of_option + 1
    return PurchaseReward(
        total=(n_att + n_option + r_price) / parts * kind.r_type,
        r_att=n_att / of_att,
        r_option=n_option / of_option if of_option else None,
        r_price=r_price,
        w_att=of_att / parts,
        w_option=of_option / parts if of_option else None,
        w_price=1 / parts,
        **kind._asdict(),
    )


def match_kind(product: Product, goal: Goal) -> KindMatch:
    """How well the product's search, categories and title fit the goal's."""
    query_match = product.query == goal.query
    category_match = len(_parts(product.product_category) & _parts(goal.product_category)) >= 2
    wanted = nouns_of(goal.title)
    # Shared nouns count once, the goal's as often as they occur: a title that repeats a noun is below 1.0 against itself.
    title_score = len(set(wanted) & set(nouns_of(product.title))) / len(wanted) if wanted else TITLE_SCORE_WITHOUT_NOUNS
    r_type = type_reward(query_match, category_match, title_score)
    return KindMatch(r_type, query_match, category_match, title_score)


def type_reward(query_match: bool, category_match: bool, title_score: float) -> float:
    """`r_type`. Titles that share next to nothing count against a purchase even where search and categories are the same."""
    if title_score == 0.0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    return 1.0 if query_match or category_match or title_score > 0.2 else 0.5


def count_attributes(product: Product, wanted: Iterable[str]) -> int:
    """How many of the attributes the product has: like one of its own, or word for word in its title, features or description.

    Only the product's texts are put into small letters: an attribute with a capital is in none of them.
    """
    wanted = tuple(wanted)
    missed = [each for each in wanted if not any(alike(attribute, each) for attribute in product.attributes)]
    if not missed:
        return len(wanted)
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return len(wanted) - sum(not any(each in text for text in texts) for each in missed)


def count_options(chosen: Iterable[str], wanted: Mapping[str, str] | tuple[str, ...]) -> int:
    """How many of the goal's options are like a chosen value. One value may stand for several, and its name counts for nothing."""
    values = [normalise_colour(value) for value in chosen]
    return sum(any(alike(value, option) for value in values) for option in option_texts(wanted))


def option_texts(wanted: Mapping[str, str] | tuple[str, ...]) -> list[str]:
    """Return the goal's options in the form in which they are compared with the chosen values.

    The options of a human goal are texts; a colour in a text replaces the text. The options of a synthetic goal are pairs of name
    and value, which upstream does not search for colours: only a name or value that *is* a colour replaces the pair, and otherwise
    the pair is compared as Python prints it, name included: "('size', 'x-large')". A chosen "light grey" therefore becomes "grey",
    and matches a wanted "('color', 'light grey')" because "grey" is one of its words. But a chosen "rectangular" becomes "tan",
    which is no word of "('shape', 'rectangular')": such a goal cannot be met, even by the value that it asks for.
    """
    if isinstance(wanted, Mapping):
        return [_pair_text(name, value) for name, value in wanted.items()]
    return [normalise_colour(option) for option in wanted]


@lru_cache(maxsize=16_384)
def normalise_colour(text: str) -> str:
    """The colour that `text` counts as, a light grey one as grey: the first of `COLOURS` in it; `text` itself where it contains none. Small letters only."""
    return next((colour for colour in COLOURS if colour in text), text)


@lru_cache(maxsize=16_384)
def _pair_text(name: str, value: str) -> str:
    pair = (name, value)
    return next((colour for colour in COLOURS if colour in pair), str(pair))


@lru_cache(maxsize=65_536)
def alike(one: str, other: str) -> bool:
    """True if thefuzz's `token_set_ratio` of two texts, a whole number from 0 to 100, is above 85."""
    from rapidfuzz.fuzz import token_set_ratio  # here: who lists the environments needs none

    one, other = plain_words(one), plain_words(other)
    return bool(one and other) and round(token_set_ratio(one, other)) > ALIKE


@lru_cache(maxsize=16_384)
def plain_words(text: str) -> str:
    """Normalise a text as thefuzz does: drop Latin-1's upper half ("café" becomes "caf"), turn other signs into spaces, lower-case."""
    return _NO_WORD_CHARACTER.sub(" ", text.translate(_DROPPED)).lower().strip()


@lru_cache(maxsize=4_096)
def _parts(product_category: str) -> frozenset[str]:
    return frozenset(part.strip() for part in product_category.split("›"))
