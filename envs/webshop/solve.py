"""The oracle: the best purchase for a goal that is known, and the shortest way to it that it finds.

What it knows no agent may: the goal's attributes and options, and the whole catalogue. It is there for replays, and for the
ceiling, since not every goal can be fulfilled: of the official rules some keep a product from matching itself ("standard"
contains "tan", so that choosing it counts as that colour).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.envs.webshop.goals import Goal, price_of
from skill_ttrl.envs.webshop.reward import (
    PurchaseReward,
    alike,
    count_attributes,
    match_kind,
    normalise_colour,
    option_texts,
    purchase_reward,
)
from skill_ttrl.envs.webshop.shop import (
    BUTTONS,
    BUY,
    NEXT,
    RESULTS_A_PAGE,
    Shop,
    State,
    clickables,
    follow,
    item_page,
    parse_action,
    results_page,
)

SCANNED = 10_000
"""Products of a catalogue up to which all of them are looked at where the goal's own product cannot have reward 1."""
_FIRST_WORDS = 24
_LONGEST_QUERY = 400
_NO_QUERY = re.compile(r"[\[\]<>\s]+")
_BUTTONS = frozenset(map(str.lower, BUTTONS))


@dataclass(frozen=True, slots=True)
class Purchase:
    """A way to a purchase, and what the purchase is worth."""

    asin: str
    actions: tuple[str, ...]
    """From the first page on; the last one buys."""
    reward: PurchaseReward


def solve(shop: Shop, goal: Goal, max_steps: int = 15) -> tuple[str, ...]:
    """Actions of the best purchase that is found; see `best_purchase`.

    Where nothing can be bought within `max_steps`, these are the first steps towards the goal's own product; nothing where no
    search finds it.
    """
    found = best_purchase(shop, goal, max_steps) or own_purchase(shop, goal)
    return () if found is None else found.actions[:max_steps]


def best_purchase(shop: Shop, goal: Goal, max_steps: int = 15) -> Purchase | None:
    """The purchase with the highest reward that is found: 1.0 wherever a product of a catalogue of up to `SCANNED` can reach it.

    The goal's own product comes first, with the values that the goal names before others that count as them. Only where it
    stays below 1 are others looked at, and of each no more than is needed to know that it is not better. In a catalogue of more
    than `SCANNED` products the others are left out, so that a better one may be missed.

    Args:
        shop: where it is bought; its rules about query codes and attributes hold.
        goal: any goal, also of another catalogue.
        max_steps: actions, the purchase included.

    Returns:
        None: nothing can be found and bought in so few steps. The same goal has always the same purchase.
    """
    best = own_purchase(shop, goal, max_steps)
    for product in _others(shop, goal):
        total = -1.0 if best is None else best.reward.total
        if total == 1.0:
            break
        if _bound(shop, goal, product, total) > total:
            found = _purchase(shop, goal, product, max_steps)
            best = found if found is not None and found.reward.total > total else best
    return best


def own_purchase(shop: Shop, goal: Goal, max_steps: int | None = None) -> Purchase | None:
    """The best way to buy the goal's own product; None where it is not there or not found in so few steps."""
    number = shop.store.number_of(goal.asin)
    return None if number is None else _purchase(shop, goal, shop.store[number], max_steps)


def _purchase(shop: Shop, goal: Goal, product: Product, max_steps: int | None) -> Purchase | None:
    way = find_product(shop, product)
    if way is None or (max_steps is not None and len(way) + 1 > max_steps):
        return None
    clicks = len(goal.options) if max_steps is None else max_steps - len(way) - 1
    chosen = choose_options(goal, product, clicks, shop.show_attributes)
    reward = purchase_reward(product, goal, price_of(product), chosen)
    return Purchase(product.asin, (*way, *map(click, chosen.values()), click(BUY)), reward)


def find_product(shop: Shop, product: Product) -> tuple[str, ...] | None:
    """A search, the pages of its results, and the click that opens the product; None: no search of a few finds it.

    The shortest way of those that begin with the words of its title, with and without its options and its first texts.
    """
    number = shop.store.number_of(product.asin)
    best: tuple[str, ...] | None = None
    for query in dict.fromkeys(_queries(product)):
        # As the shop splits it: at single spaces, in small letters.
        parsed = parse_action(f"search[{query}]")
        if parsed is None:
            continue
        found = shop.search(tuple(parsed[1].split(" ")))
        if number in found:
            pages = found.index(number) // RESULTS_A_PAGE
            if not _opens(shop, product, found[pages * RESULTS_A_PAGE : (pages + 1) * RESULTS_A_PAGE], pages + 1):
                continue
            way = (f"search[{query}]", *[click(NEXT)] * pages, click(product.asin))
            best = way if best is None or len(way) < len(best) else best
            if not pages:
                break
    return best


def _opens(shop: Shop, product: Product, numbers: Sequence[int], page: int) -> bool:
    """True if a click on the product's ASIN opens it on a results page; False if a button or another product there has the same text."""
    shown = results_page("", [shop.store[number] for number in numbers], page, len(numbers))
    after = follow(State("results", page=page), shown, click(product.asin))
    return after.place == "item" and after.asin == product.asin


def _queries(product: Product) -> Iterator[str]:
    title = _NO_QUERY.sub(" ", product.title).strip()
    first, options, description = next(iter(product.bullets), ""), product.option_text, product.description
    yield title
    yield " ".join(title.split()[: _FIRST_WORDS // 4])
    for more in (options, first, description, f"{description} {first} {options}"):
        words = _NO_QUERY.sub(" ", f"{title} {more}").strip()
        yield words[:_LONGEST_QUERY]
        yield words


def choose_options(goal: Goal, product: Product, clicks: int, show_attributes: bool = False) -> dict[str, str]:
    """Which of a product's option values fulfil most of the goal's options, in the fewest clicks.

    Args:
        goal: its own values come before others that count as them.
        product: only what its page lets one click is chosen: of two options with the same value the last has it, and a value
            with a bracket, or one named like a button, cannot be chosen.
        clicks: how many values can be chosen at most.
        show_attributes: whether the page has a button for them.

    Returns:
        Option name → value, in the page's order; values that fulfil nothing are left out.
    """
    wanted = option_texts(goal.options)
    exact = set(goal.options.values()) if not isinstance(goal.options, tuple) else set(goal.options)
    if not wanted or not product.options or clicks < 1:
        return {}
    # Which of the wanted options are fulfilled, as bits → the fewest values that do so, first for none of the names.
    ways: dict[int, dict[str, str]] = {0: {}}
    shown = clickables(item_page("", product, show_attributes))
    for name in product.options:
        fulfils: dict[int, str] = {}
        values = [text for text, clicked in shown.items() if clicked.kind == "option" and clicked.option == name]
        for value in sorted(values, key=lambda value: value not in exact):
            if value in _BUTTONS or parse_action(click(value)) != ("click", value):
                continue
            plain = normalise_colour(value)
            bits = sum(alike(plain, text) << place for place, text in enumerate(wanted))
            fulfils.setdefault(bits, value)
        for bits, chosen in list(ways.items()):
            for more, value in fulfils.items():
                with_it = {**chosen, name: value}
                known = ways.get(bits | more)
                if known is None or len(with_it) < len(known):
                    ways[bits | more] = with_it
    affordable = [(bits.bit_count(), -len(chosen), chosen) for bits, chosen in ways.items() if len(chosen) <= clicks]
    return max(affordable, key=lambda way: way[:2])[2]


def click(what: str) -> str:
    """The action that clicks something."""
    return f"click[{what.lower()}]"


def _others(shop: Shop, goal: Goal) -> Iterator[Product]:
    """Products among which a better one is looked for, without the goal's own."""
    own, count = shop.store.number_of(goal.asin), len(shop.store)
    return (shop.store[number] for number in range(count if count <= SCANNED else 0) if number != own)


def _bound(shop: Shop, goal: Goal, product: Product, needed: float) -> float:
    """No less than a product's best reward; what costs more is computed only while it may be above `needed`."""
    parts = len(goal.attributes) + len(goal.options) + 1
    r_type = match_kind(product, goal).r_type
    n_price = price_of(product) <= goal.price_upper
    n_option = len(goal.options) if product.options else 0
    bound = (len(goal.attributes) + n_option + n_price) / parts * r_type
    if bound <= needed:
        return bound
    return (count_attributes(product, goal.attributes) + n_option + n_price) / parts * r_type
