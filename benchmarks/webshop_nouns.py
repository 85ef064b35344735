"""How much WebShop's reward depends on what finds the nouns of a title: every goal product beside every product.

    python benchmarks/webshop_nouns.py --data FOLDER                          # $WEBSHOP_DATA by default
    python benchmarks/webshop_nouns.py --data FOLDER --save nouns-3.8.json    # in an environment with spaCy and its model
    python benchmarks/webshop_nouns.py --data FOLDER --saved nouns-3.8.json --saved nouns-3.6.json

The tagger decides `title_score`, and that only moves `r_type` over 0, 0.1 and, where neither search nor categories are the same,
0.2. Goals of one product have one title, so a product with an instruction stands for all of its goals.

a. Whatever a tagger says. Call a word what has a letter in it (and | and %) and is no function word and no number; suppose a
   tagger calls only words nouns. It may then call any occurrence one or not, the same word in one title and not in the other too. The score is
   (different words called nouns in both titles) / (occurrences called nouns in the goal's), so

   - it is least where every word of the goal's title is called one and as few as possible of the product's are: 0, unless a
     word must be a noun in both;
   - it is greatest where of the goal's only words that the product's has too are called nouns, those first that occur once: a
     word that occurs m times adds 1 to the numerator and m to the denominator, which raises the score s while 1/m > s;
   - if nothing need be a noun in the goal's title, it may be 0.2, the score of a title without nouns.

   `r_type` does not fall when the score rises, so it can change where it differs between the two ends. Titles that share no word
   have 0 whatever the tagger says (or 0.2, if it finds no noun in the goal's at all, which is left out here).
b. Words that the rule is certain of are fixed: a capital letter and not in its lists of adjectives, verbs and participles, and
   without one of their endings. All others may be nouns or not, as in a. Beside it, two rules that bracket it: every word is a
   noun; only the certain ones are.
c. Each word's tag is the other one with a probability of 5 %, independently for each occurrence, in both titles.
d. Against the official tagger, where its nouns were saved.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.envs.webshop.catalogue.nouns import (
    FUNCTION_WORDS,
    NUMBER_WORDS,
    OFTEN_NO_NOUN,
    SMALL_NO_NOUN,
    is_noun,
    nouns_of,
    split_title,
)
from skill_ttrl.envs.webshop.catalogue.product import Product, find_files, read_products
from skill_ttrl.envs.webshop.reward import TITLE_SCORE_WITHOUT_NOUNS, type_reward

FLIPS = 0.05
NO_NOUNS = FUNCTION_WORDS | NUMBER_WORDS
SIGNS = ("|", "%")
"""No words, and nouns to the model: see `nouns.py`."""
SEEDS = range(5)
UNSURE_ENDINGS = (
    "able",
    "ible",
    "ful",
    "less",
    "ous",
    "ly",
    "ic",
    "ish",
    "ed",
    "ing",
    "al",
    "ive",
    "ant",
    "ent",
    "est",
)
Tagged = dict[str, tuple[str, ...]]
"""Title → its nouns."""


@dataclass(frozen=True, slots=True)
class Pair:
    goal: str
    """Title of the product that is asked for."""
    product: str
    query: bool
    category: bool
    own: bool


def is_word(token: str) -> bool:
    small = token.lower()
    letters = {each for each in small if each.isalpha()}
    number = letters <= {"x"} and any(each.isdigit() for each in small)
    return (bool(letters) or token in SIGNS) and not number and (token == "US" or small not in NO_NOUNS)


def is_certain(token: str) -> bool:
    small = token.lower()
    return (
        is_word(token)
        and token[0].isupper()
        and small not in OFTEN_NO_NOUN
        and small not in SMALL_NO_NOUN
        and not small.endswith(UNSURE_ENDINGS)
    )


@dataclass(frozen=True, slots=True)
class Title:
    """What must be a noun of a title, and what may be one; occurrences counted."""

    certain: Counter[str]
    free: Counter[str]

    @classmethod
    def read(cls, title: str, certain: Callable[[str], bool]) -> Title:
        words = [token for token in split_title(title) if is_word(token)]
        return cls(
            Counter(word.lower() for word in words if certain(word)),
            Counter(word.lower() for word in words if not certain(word)),
        )


def score_bounds(goal: Title, product: Title) -> tuple[float, float]:
    """Least and greatest score of a pair that shares a word; see a. in the module's docstring."""
    both = goal.certain.keys() & product.certain.keys()
    all_called = goal.certain.total() + goal.free.total()
    least = len(both) / all_called
    shared = (goal.certain.keys()) & (product.certain.keys() | product.free.keys())
    above, below = len(shared), goal.certain.total()
    maybe = goal.free.keys() & (product.certain.keys() | product.free.keys())
    for count in sorted(goal.free[word] for word in maybe - shared):
        if not below or above / below < 1 / count:
            above, below = above + 1, below + count
    greatest = above / below if below else 0.0
    if not goal.certain:
        least, greatest = min(least, TITLE_SCORE_WITHOUT_NOUNS), max(greatest, TITLE_SCORE_WITHOUT_NOUNS)
    return least, greatest


def score(wanted: tuple[str, ...], offered: set[str]) -> float:
    return len(offered.intersection(wanted)) / len(wanted) if wanted else TITLE_SCORE_WITHOUT_NOUNS


def rewards(pairs: Iterable[Pair], of_goal: Tagged, of_product: Tagged) -> list[float]:
    sets = {title: set(nouns) for title, nouns in of_product.items()}
    return [type_reward(pair.query, pair.category, score(of_goal[pair.goal], sets[pair.product])) for pair in pairs]


def flipped(titles: Iterable[str], seed: int) -> Tagged:
    """The rule's nouns with each word's tag turned over at `FLIPS`."""
    rng = random.Random(seed)
    tagged: Tagged = {}
    for title in titles:
        kept = []
        for token in split_title(title):
            if is_noun(token) != (is_word(token) and rng.random() < FLIPS):
                kept.append(token.lower())
        tagged[title] = tuple(kept)
    return tagged


def all_pairs(products: list[Product]) -> list[Pair]:
    def parts(product: Product) -> set[str]:
        return {part.strip() for part in product.product_category.split("›")}

    paths = {product.asin: parts(product) for product in products}
    return [
        Pair(
            goal.title,
            product.title,
            goal.query == product.query,
            len(paths[goal.asin] & paths[product.asin]) >= 2,
            goal.asin == product.asin,
        )
        for goal in products
        if goal.instruction is not None
        for product in products
    ]


def table(name: str, pairs: list[Pair], changed: list[bool]) -> None:
    """One line: how many of the pairs, by kind of pair."""
    kinds: dict[str, Callable[[Pair], bool]] = {
        "all": lambda pair: True,
        "same search or categories": lambda pair: pair.query or pair.category,
        "neither": lambda pair: not (pair.query or pair.category),
        "own product": lambda pair: pair.own,
    }
    cells = []
    for kind, belongs in kinds.items():
        hits = [change for pair, change in zip(pairs, changed, strict=True) if belongs(pair)]
        cells.append(f"{kind} {sum(hits):,} of {len(hits):,} ({sum(hits) / max(1, len(hits)):.2%})")
    print(f"{name}: {'; '.join(cells)}")


def differ(one: list[float], other: list[float]) -> list[bool]:
    return [a != b for a, b in zip(one, other, strict=True)]


def report_bounds(pairs: list[Pair], titles: list[str]) -> list[bool]:
    """Prints a. and the first line of b., and gives for each pair whether a. leaves a choice."""
    results = []
    for name, certain in (
        ("a. can change, whatever a tagger says of the words", lambda token: False),
        ("b. can change, words that the rule is certain of fixed", is_certain),
    ):
        read = {title: Title.read(title, certain) for title in titles}
        words = {title: each.certain.keys() | each.free.keys() for title, each in read.items()}
        changed = []
        for pair in pairs:
            if words[pair.goal].isdisjoint(words[pair.product]):
                changed.append(False)
                continue
            least, greatest = score_bounds(read[pair.goal], read[pair.product])
            changed.append(
                type_reward(pair.query, pair.category, least) != type_reward(pair.query, pair.category, greatest)
            )
        table(name, pairs, changed)
        results.append(changed)
    return results[0]


def report_against(name: str, pairs: list[Pair], open_pairs: list[bool], one: Tagged, other: Tagged) -> None:
    """Where two taggers lead to another `r_type`, which to which, and how alike their nouns are."""
    first, second = rewards(pairs, one, one), rewards(pairs, other, other)
    changed = differ(first, second)
    table(name, pairs, changed)
    if beyond := sum(change and not choice for change, choice in zip(changed, open_pairs, strict=True)):
        print(f"   {beyond:,} of them by calling a noun what is no word")
    moves = Counter((a, b) for a, b in zip(first, second, strict=True) if a != b)
    print("   r_type: " + ", ".join(f"{a} → {b}: {count:,}" for (a, b), count in moves.most_common()))
    apart = sum(
        ((Counter(one[title]) - Counter(other[title])) | (Counter(other[title]) - Counter(one[title]))).total()
        for title in one
    )
    same = sum(Counter(one[title]) == Counter(other[title]) for title in one)
    print(
        f"   titles with the same nouns: {same:,} of {len(one):,}; nouns in one and not in the other: {apart:,} beside "
        f"{sum(map(len, one.values())):,} and {sum(map(len, other.values())):,}"
    )


class Official:
    """The official tagger, whose releases differ from one another in some words."""

    def __init__(self) -> None:
        spacy: Any = importlib.import_module("spacy")
        # The parser stays: it decides which verbs are auxiliaries. What is left out changes no tag.
        self._model = spacy.load("en_core_web_sm", exclude=["ner", "lemmatizer", "senter"])
        self.name = f"spacy (en_core_web_sm {self._model.meta['version']})"

    def __call__(self, title: str) -> tuple[str, ...]:
        # Upstream also names a tag PNOUN, which there is not.
        return tuple(token.text.lower() for token in self._model(title) if token.pos_ in ("NOUN", "PROPN"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=os.environ.get("WEBSHOP_DATA"), help="folder of the official files")
    parser.add_argument("--save", type=Path, help="write the nouns that the official tagger finds, and nothing else")
    parser.add_argument("--saved", type=Path, action="append", default=[], help="what --save has written")
    given = parser.parse_args()
    if not given.data:
        parser.error("--data, or WEBSHOP_DATA, names the folder of the official files")
    products = [product for product, _ in read_products(find_files(given.data))]
    titles = sorted({product.title for product in products})
    if given.save:
        official = Official()
        given.save.write_text(
            json.dumps({"name": official.name, "nouns": {title: official(title) for title in titles}})
        )
        return
    pairs = all_pairs(products)
    ours = {title: nouns_of(title) for title in titles}
    found = rewards(pairs, ours, ours)
    print(f"{len(products):,} products, {len({pair.goal for pair in pairs}):,} titles asked for, {len(pairs):,} pairs")
    table("r_type is 1.0 by the rule", pairs, [reward == 1.0 for reward in found])
    table("titles share a noun of the rule", pairs, [not set(ours[p.goal]).isdisjoint(ours[p.product]) for p in pairs])
    choice = report_bounds(pairs, titles)
    every = {title: tuple(token.lower() for token in split_title(title) if is_word(token)) for title in titles}
    sure = {title: tuple(token.lower() for token in split_title(title) if is_certain(token)) for title in titles}
    report_against("b. the rule against every word", pairs, choice, ours, every)
    report_against("b. the rule against its certain words", pairs, choice, ours, sure)
    runs = []
    for seed in SEEDS:
        wrong = flipped(titles, seed)
        runs.append(sum(differ(found, rewards(pairs, wrong, wrong))))
        if seed == SEEDS[0]:
            report_against(
                f"c. the rule against itself with {FLIPS:.0%} of its tags turned over, seed {seed}",
                pairs,
                choice,
                ours,
                wrong,
            )
    print(
        f"   mean of {len(runs)} seeds: {fmean(runs):,.0f} pairs ({fmean(runs) / len(pairs):.2%}), from {min(runs):,} to {max(runs):,}"
    )
    official_ones: list[tuple[str, Tagged]] = []
    for path in given.saved:
        saved = json.loads(path.read_text())
        official_ones.append((saved["name"], {title: tuple(saved["nouns"][title]) for title in titles}))
    for name, nouns in official_ones:
        report_against(f"d. the rule against {name}", pairs, choice, ours, nouns)
    for (one, nouns), (other, others) in pairwise(official_ones):
        report_against(f"d. {one} against {other}", pairs, choice, nouns, others)
    if not official_ones:
        print("d. no nouns of spaCy's model were given (--saved)")


if __name__ == "__main__":
    main()
