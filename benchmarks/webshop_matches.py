"""Which of WebShop's fuzzy matches depend on the library behind thefuzz, and which synthetic goals can be met at all.

    python benchmarks/webshop_matches.py --data FOLDER        # $WEBSHOP_DATA by default

1. thefuzz 0.19, which the official requirements name, compares with difflib unless python-Levenshtein is installed; 0.20 and newer,
   and `reward.py`, with rapidfuzz's Indel ratio. Both are 2 M / (length of both), where M is the length of the longest common
   subsequence for Indel, and for difflib the sum of the blocks that it finds greedily, which are a common subsequence too. So
   difflib's is never the greater one: it can only undo a match, and only the matches need be looked at again.
2. For each synthetic goal its own product is bought with the very options that were asked for. Where that is not worth 1.0, is
   there any choice of the product's values that is?
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher

import numpy as np
from rapidfuzz.distance import Indel
from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.process import cdist

from skill_ttrl.envs.webshop.catalogue.product import Product, find_files, read_products
from skill_ttrl.envs.webshop.goals import combination
from skill_ttrl.envs.webshop.reward import (
    ALIKE,
    alike,
    count_attributes,
    count_options,
    normalise_colour,
    option_texts,
    plain_words,
)

EXAMPLES = 12
ROWS = 256


def token_set(one: str, other: str, ratio: Callable[[str, str], float]) -> int:
    """thefuzz's `token_set_ratio` of two texts as `plain_words` leaves them, with any ratio from 0 to 1 behind it."""
    words, others = set(one.split()), set(other.split())
    shared = " ".join(sorted(words & others))
    first = f"{shared} {' '.join(sorted(words - others))}".strip()
    second = f"{shared} {' '.join(sorted(others - words))}".strip()

    def compare(left: str, right: str) -> int:
        return round(100 * ratio(left, right)) if left and right else 0

    return max(compare(shared, first), compare(shared, second), compare(first, second))


def by_difflib(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def by_indel(one: str, other: str) -> float:
    return Indel.normalized_similarity(one, other)


def report(what: str, offered: Iterable[str], wanted: Iterable[str]) -> None:
    """Every different text that is offered beside every one that is wanted."""
    left = sorted({plain_words(text) for text in offered} - {""})
    right = sorted({plain_words(text) for text in wanted} - {""})
    matches = 0
    undone = []
    for start in range(0, len(left), ROWS):
        rows = left[start : start + ROWS]
        scores = cdist(rows, right, scorer=token_set_ratio, dtype=np.float32, score_cutoff=ALIKE)
        for row, column in zip(*np.nonzero(scores > ALIKE), strict=True):
            one, other = rows[row], right[column]
            if not alike(one, other):
                continue
            matches += 1
            if (again := token_set(one, other, by_indel)) <= ALIKE:
                raise AssertionError(f"{one!r} and {other!r} match by rapidfuzz and have {again} by thefuzz's own rule")
            if (score := token_set(one, other, by_difflib)) <= ALIKE:
                undone.append((one, other, score))
    print(f"{what}: {len(left):,} × {len(right):,} different texts, {matches:,} match, difflib undoes {len(undone):,}")
    for one, other, score in undone[:: max(1, len(undone) // EXAMPLES)][:EXAMPLES]:
        print(f"   {one!r} / {other!r}: {round(token_set_ratio(one, other))}, with difflib {score}")


def can_be_met(product: Product, wanted: Mapping[str, str]) -> bool:
    """Whether some choice of the product's values, one for each name, matches all of the goal's options."""
    texts = option_texts(wanted)

    def choose(place: int, chosen: dict[str, str]) -> bool:
        if place == len(texts):
            return True
        if any(alike(normalise_colour(value), texts[place]) for value in chosen.values()):
            return choose(place + 1, chosen)
        return any(
            choose(place + 1, {**chosen, name: value})
            for name, values in product.options.items()
            if name not in chosen
            for value in values
            if alike(normalise_colour(value), texts[place])
        )

    return choose(0, {})


def report_reach(products: list[Product]) -> None:
    goals = missed = never = without_attributes = 0
    examples: list[str] = []
    for product in products:
        if product.instruction is None:
            continue
        wanted = product.instruction_attributes
        all_there = count_attributes(product, wanted) == len(wanted)
        for number in range(int(np.prod([len(values) for values in product.options.values()], dtype=np.int64))):
            options = combination(product, number)
            goals += 1
            without_attributes += not all_there
            if count_options(options.values(), options) < len(options):
                missed += 1
                reachable = can_be_met(product, options)
                never += not reachable
                if len(examples) < EXAMPLES * 20:
                    lost = [
                        f"{name}: {value}"
                        for name, value in options.items()
                        if not count_options([value], {name: value})
                    ]
                    examples.append(f"{', '.join(lost)} ({'other values do' if reachable else 'no value does'})")
    print(
        f"{goals:,} synthetic goals: {without_attributes:,} whose own product lacks an attribute; {missed:,} not met by the very "
        f"options that were asked for, {never:,} of them by no choice of options"
    )
    for example in list(dict.fromkeys(examples))[:EXAMPLES]:
        print(f"   {example}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=os.environ.get("WEBSHOP_DATA"), help="folder of the official files")
    given = parser.parse_args()
    if not given.data:
        parser.error("--data, or WEBSHOP_DATA, names the folder of the official files")
    products = [product for product, _ in read_products(find_files(given.data))]
    asked = [product for product in products if product.instruction is not None]
    report(
        "attributes",
        (attribute for product in products for attribute in product.attributes),
        (attribute for product in asked for attribute in product.instruction_attributes),
    )
    report(
        "options",
        (normalise_colour(value) for product in products for values in product.options.values() for value in values),
        (
            text
            for product in asked
            for name, values in product.options.items()
            for value in values
            for text in option_texts({name: value})
        ),
    )
    report_reach(products)


if __name__ == "__main__":
    main()
