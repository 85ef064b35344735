"""How the expert weighs the offers of WebShop: how likely each is the product that was described, and what buying it is worth.

What it knows of the site is what is published of it. A purchase is paid for attributes, options, price and kind. An instruction is
made of a product: it names a value for each of its options, and a price ceiling that is the larger of two of the next four multiples
of ten above its price, so that an offer 60 dollars below the ceiling is not that product. Of products it knows nothing: its few
weights are fitted to goals of the split `train` by product (`benchmarks/webshop_agents.py weights`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rapidfuzz.fuzz import token_set_ratio

from skill_ttrl.agents.scripted.webshop_reading import Offer, Wish, says, share, words

RESULTS_A_PAGE = 10
AHEAD = -1.0
"""Log odds of the next page's best offer, relative to an offer that stands first there and has the best title so far."""
FITS, UNSEEN = 0.5, 0.1
"""Added to a product's worth if it has exactly the wanted options and a fitting price; subtracted if it was not opened."""
FOUND, MISSED, UNREAD = 0.95, 0.15, 0.5
"""Chances that a product has an attribute: whose words are in its title or features; are not; are not in the title, all that was
read. Of the attributes of products of `train` 96 of 100 are in title or features."""
ALIKE = 85
"""Per cent of a token set ratio, above which the published reward takes two options for the same."""
_SEXES = (("women", "men"), ("men", "women"))


class Signs(NamedTuple):
    """Features of an offer on a results page, as numbers; or the weight of each feature."""

    place: float
    """Logarithm of its place among all results, from 1."""
    price: float
    """Logarithm of how well its price goes with the ceiling (`in_window`), plus 0.01."""
    thing: float
    """Of the words of the wanted thing, the share in its title."""
    attributes: float
    """Of the words of the attributes, the share in its title; 0 without attributes."""
    other_sex: float
    """1: women's things are wanted and only men's are in the title, or the other way round; else 0."""


WEIGHTS = Signs(-1.6, 1.5, 2.0, 1.4, -3.4)
"""By which `odds` adds the signs up: those of a choice among the results that makes the described product likeliest."""


@dataclass(slots=True)
class Candidate:
    """An offer, and what has been seen of it so far."""

    offer: Offer
    page: int
    """Of the results, from 1."""
    odds: float
    """How likely it is the product that was described, as a logarithm; see `odds`."""
    alike: float
    """The part of `odds` that its title has in it."""
    priced: bool
    """Its price goes with the ceiling; see `in_window`."""
    said: set[str]
    """Words of its title, and of its features once they are read."""
    opened: bool = False
    read: bool = False
    """Its features are in `said`."""
    chosen: tuple[str, ...] = ()
    """Values to click before it is bought."""
    part: float = 0.5
    """Of the wanted options that these fulfil, in [0, 1]."""
    fits: bool = False
    """It has exactly the options that are wanted."""


def in_window(low: float, high: float, below: float | None) -> float:
    """How well a price goes with a ceiling that was drawn as published, in [0, 1]: 1 for 30 to 40 dollars below, 0 for 50.

    Args:
        low: US dollars; with `high` the range of the price, which itself is anywhere in it.
        high: not below `low`.
        below: the ceiling, the larger of two of the next four multiples of ten above the price; None: none, as for products of
            980 dollars and more.
    """
    if below is None:
        steps = [(980.0, math.inf, 1.0)]
    else:
        steps = [(below - 10 * nth, below - 10 * (nth - 1), (nth - 1) / 3) for nth in (4, 3, 2)]
    if high <= low:
        return next((weight for start, end, weight in steps if start <= low < end), 0.0)
    if math.isinf(high):
        return 1.0
    inside = ((min(high, end) - max(low, start), weight) for start, end, weight in steps)
    return sum(max(0.0, width) * weight for width, weight in inside) / (high - low)


def first_look(wish: Wish, offer: Offer, page: int, place: int) -> Candidate:
    """An offer as it stands at a place, from 0, of a page of results, from 1."""
    chances, alike = odds(signs(wish, offer, RESULTS_A_PAGE * (page - 1) + place))
    priced = in_window(offer.low, offer.high, wish.below) > 0
    return Candidate(offer, page, chances, alike, priced, set(words(offer.title)))


def promise(seen: Iterable[Candidate], pages: int) -> float:
    """The odds that the next page of results lets expect of its best offer, after so many pages of them."""
    return max(each.alike for each in seen) + WEIGHTS.place * math.log(RESULTS_A_PAGE * pages + 1) + AHEAD


def signs(wish: Wish, offer: Offer, rank: int) -> Signs:
    """Compute the features of an offer on a results page; `rank` is its place among all results, from 0."""
    said, thing = set(words(offer.title)), words(wish.thing)
    attributes = [word for attribute in wish.attributes for word in words(attribute)]
    return Signs(
        place=math.log(rank + 1),
        price=math.log(in_window(offer.low, offer.high, wish.below) + 0.01),
        thing=share(thing, said),
        attributes=share(attributes, said) if attributes else 0.0,
        other_sex=float(any(wanted in thing and other in said and wanted not in said for wanted, other in _SEXES)),
    )


def odds(seen: Signs) -> tuple[float, float]:
    """Logarithm of the odds that an offer is the product that was described, and the part of it that is the title's."""
    weighed = [weight * sign for weight, sign in zip(WEIGHTS, seen, strict=True)]
    return sum(weighed), sum(weighed[2:])


def choose(wish: Wish, options: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], float, bool]:
    """Which values of a product to click.

    Returns:
        The values; which part of the wanted options they fulfil, in [0, 1]; and whether the product has exactly these options,
        which free text does not tell.
    """
    if not wish.options:
        return ((), 1.0, not options) if wish.made else _choose_said(wish, options)
    chosen: dict[str, str] = {}
    exact = 0
    for name, value in wish.options:
        if value in options.get(name, ()):
            chosen[name] = value
            exact += 1
            continue
        others = ((other, given) for other, listed in options.items() if other not in chosen for given in listed)
        # As the reward compares a value with a pair of name and value, but for its colours.
        pair = _plain(f"{name} {value}")
        rated = [
            (token_set_ratio(_plain(given), pair), other == name, -len(given), other, given) for other, given in others
        ]
        if rated and (best := max(rated))[0] > ALIKE:
            chosen[best[3]] = best[4]
    fits = exact == len(wish.options) == len(options)
    return tuple(chosen.values()), len(chosen) / len(wish.options), fits


def _plain(text: str) -> str:
    return re.sub(r"\W", " ", text).lower().strip()


def _choose_said(wish: Wish, options: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], float, bool]:
    """Values that free text names, the longest of each option."""
    text = words(wish.text)
    said = [[value for value in listed if says(text, value)] for listed in options.values()]
    chosen = tuple(max(values, key=len) for values in said if values)
    # Free text need not name every option, so that nothing speaks against a product with more of them.
    return chosen, len(chosen) / len(options) if options else 1.0, True


def missing(wish: Wish, candidate: Candidate) -> int:
    """How many of the wanted attributes have a word that nothing read of a product says."""
    return sum(not candidate.said.issuperset(words(attribute)) for attribute in wish.attributes)


def worth(wish: Wish, candidate: Candidate, missed: int) -> float:
    """The reward that buying a product is expected to bring, by what has been seen of it, and a little more for better odds.

    `missed` of its wanted attributes are said nowhere; see `missing`.
    """
    found = FOUND * (len(wish.attributes) - missed) + (MISSED if candidate.read else UNREAD) * missed
    affordable = wish.below is None or candidate.offer.low <= wish.below
    of_kind = 0.4 + 0.6 * share(words(wish.kind)[-2:], candidate.said)
    fulfilled = found + len(wish.options) * candidate.part + affordable
    sure = FITS * (candidate.fits and candidate.priced) - UNSEEN * (not candidate.opened)
    return of_kind * fulfilled / (len(wish.attributes) + len(wish.options) + 1) + sure + 0.01 * candidate.odds
