"""Goals of a catalogue: in which fixed order they stand, and which belong to which split.

The order is upstream's (`web_agent_site/engine/goal.py`): as they are constructed, product by product, and then Python's
`random.seed(233)` and `shuffle`, which depends on the number of goals alone. Splits are ranges of that one order: test 0-499,
dev 500-1,499, train 1,500 on (Yao et al. 2022, 4.1).

Two things differ, on purpose. Upstream draws prices and price ceilings from the unseeded generator of each process; here they are
drawn from the product's or the goal's own name. And upstream's forks shuffle with another seed in each worker, so that training meets test goals; here
the order has no seed.

Goals of one product are alike but for its options, and lie in all splits: 6,910 goals of the 1,000 products are of 415. A split
by product keeps all goals of a product on one side. `train_both` has the goals that are `train` in both.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.envs.webshop.catalogue.product import HumanInstruction, Product
from skill_ttrl.envs.webshop.catalogue.search import Store
from skill_ttrl.errors import EnvError, SplitError, did_you_mean
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


SPLITS = ("train", "dev", "test")
TRAIN_BOTH = "train_both"
"""A split more: the goals that are `train` by goal and by product, so that one policy can be measured on the test goals of both."""
BY = ("goal", "product")
KINDS = ("synthetic", "human")
TEST_GOALS, DEV_GOALS = 500, 1000
TEST_SHARE, DEV_SHARE = 0.2, 0.2
"""Of the products that have goals, where the splits are by product."""
KEPT_GOALS = 4096
MOST_GOALS = 50_000_000
"""Synthetic ones of a catalogue, for to shuffle more takes minutes and gigabytes. The official 1,000 products have 6,910. Options of
one odd product are enough to be above, which is to be no reason to refuse a catalogue that people wrote goals for.
"""
_OTHER_NAMES = {"validation": "dev", "valid": "dev", "val": "dev", "eval": "dev"}


class GoalList:
    """The goals of one catalogue and kind in their fixed order; each is built when it is asked for.

    Args:
        store: the products.
        kind: `synthetic` or `human`.
        human: what people wrote, by ASIN, for `human`.

    Raises:
        EnvError: there is no goal of this kind.
    """

    def __init__(
        self, store: Store, kind: str, human: Mapping[str, tuple[HumanInstruction, ...]] | None = None
    ) -> None:
        self.store, self.kind = store, kind
        if kind == "synthetic":
            self._products, counts = store.array("goal_products"), store.array("goal_counts")
            self._weights = store.array("goal_weights")
            self._human: list[HumanInstruction] = []
        else:
            wanted = [(store.number_of(asin), written) for asin, written in (human or {}).items()]
            placed = sorted((number, written) for number, written in wanted if number is not None and written)
            self._human = [each for _, written in placed for each in written]
            self._products = np.asarray([number for number, _ in placed], dtype=np.int32)
            counts = np.asarray([len(written) for _, written in placed], dtype=np.int64)
            self._weights = np.ones(len(placed))
        self._ends = np.cumsum(counts)
        if kind == "synthetic" and len(self) > MOST_GOALS:
            most = int(counts.argmax())
            raise EnvError(
                f"The catalogue has more than {MOST_GOALS:,} synthetic goals, one for each combination of a product's options; "
                f"{store[int(self._products[most])].asin} has most of them. Use human goals, or remove the instruction of such a "
                "product."
            )
        if not len(self):
            raise EnvError(f"No product of the catalogue has a {kind} goal.")
        self._built = lru_cache(maxsize=KEPT_GOALS)(self._build)
        self._splits: dict[tuple[str, str], NDArray[np.int64]] = {}
        self._sums: dict[tuple[str | None, str], NDArray[np.float64]] = {}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __iter__(self) -> Iterator[Goal]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> Goal:
        return self._built(int(self._order[range(len(self))[number]]))

    def find(self, goal_id: str) -> int:
        """The number of a goal by its id.

        Raises:
            EnvError: there is none.
        """
        asin, _, which = goal_id.rpartition("-")
        product = self.store.number_of(asin)
        place = None if product is None else int(np.searchsorted(self._products, product))
        if place is not None and place < len(self._products) and self._products[place] == product:
            start, end = self._range(place)
            constructed = self._constructed(place, which)
            if constructed is not None:
                return int(self._places[constructed])
            raise EnvError(
                f"{asin} has {end - start} {self.kind} goals, from {asin}-{self._name(place, start)} to "
                f"{asin}-{self._name(place, end - 1)}, and no goal {goal_id[:60]!r}."
            )
        why = f"no product {asin[:20]!r}" if product is None else f"no {self.kind} goal for {asin}"
        raise EnvError(
            f"There is no goal {goal_id[:60]!r}: the catalogue has {why}. An id is an ASIN and a number: {self[0].id}."
        )

    def split(self, name: str, by: str = "goal") -> NDArray[np.int64]:
        """Numbers of the goals of a split, ascending.

        Args:
            name: `test`, `dev`, `train`, or `train_both`, which is the same by goal and by product.
            by: `goal`: upstream's ranges. `product`: a fifth of the products (those that have goals, shuffled with upstream's
                seed) is test, another dev, and of their goals the first 500 and 1,000 are played; no product is on two sides.

        Raises:
            SplitError: there is no such split, or it has no goals.
            EnvError: `by` is not known.
        """
        kept = self._splits.get((str(name), str(by)))
        if kept is not None:
            return kept
        check_split(name, by)
        numbers = np.arange(len(self))
        if name == TRAIN_BOTH:
            found = np.intersect1d(self.split("train", "goal"), self.split("train", "product"), assume_unique=True)
        elif by == "goal":
            cuts = {"test": slice(0, TEST_GOALS), "dev": slice(TEST_GOALS, TEST_GOALS + DEV_GOALS)}
            found = numbers[cuts.get(name, slice(TEST_GOALS + DEV_GOALS, None))]
        else:
            mine = self._sides[np.searchsorted(self._ends, self._order, side="right")] == SPLITS.index(name)
            found = numbers[mine][: {"test": TEST_GOALS, "dev": DEV_GOALS}.get(name)]
        if not len(found):
            other = " There may be more synthetic ones: goals=synthetic." if self.kind == "human" else ""
            raise SplitError(
                f"The {len(self)} {self.kind} goals of the catalogue leave none for the split {name!r} by {by}.{other}"
            )
        found.flags.writeable = False  # all environments of the process have this array
        return self._splits.setdefault((name, by), found)

    def weights(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Upstream's `weight` of goals: 1 for a human one, else the mean of 1 / (goals with this attribute) over its own."""
        places = np.searchsorted(self._ends, self._order[numbers], side="right")
        weights: NDArray[np.float64] = self._weights[places]
        return weights

    def draw(self, chance: float, split: str | None = None, by: str = "goal") -> int:
        """The number of a goal, drawn by upstream's weights.

        Args:
            chance: uniform in [0, 1).
            split: of which it is; None: of all.
            by: how it is split; see `split`.
        """
        numbers = np.arange(len(self)) if split is None else self.split(split, by)
        sums = self._sums.get((split, by))
        if sums is None:
            sums = self._sums.setdefault((split, by), self.weights(numbers).cumsum())
        place = int(np.searchsorted(sums, chance * sums[-1], side="right"))
        return int(numbers[min(place, len(numbers) - 1)])

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """Number → place in the construction."""
        return self.store.array("goal_order") if self.kind == "synthetic" else shuffled(len(self))

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """Place in the construction → number."""
        return self.store.array("goal_numbers") if self.kind == "synthetic" else np.argsort(self._order)

    @cached_property
    def _sides(self) -> NDArray[np.int64]:
        """Split of each product that has goals, as its place in `SPLITS`."""
        count = len(self._products)
        test = math.ceil(TEST_SHARE * count)
        dev = math.ceil(DEV_SHARE * count)
        sides = np.full(count, SPLITS.index("train"))
        order = shuffled(count)
        sides[order[:test]] = SPLITS.index("test")
        sides[order[test : test + dev]] = SPLITS.index("dev")
        return sides

    def _range(self, place: int) -> tuple[int, int]:
        return 0 if place == 0 else int(self._ends[place - 1]), int(self._ends[place])

    def _name(self, place: int, constructed: int) -> str:
        if self.kind == "human":
            return f"h{self._human[constructed].number}"
        return str(constructed - self._range(place)[0])

    def _constructed(self, place: int, which: str) -> int | None:
        start, end = self._range(place)
        if self.kind == "human":
            return next((each for each in range(start, end) if self._name(place, each) == which), None)
        # A product's options may have millions of combinations.
        number = int(which) if which.isascii() and which.isdigit() and len(which) < 12 else -1
        return start + number if 0 <= number < end - start and str(number) == which else None

    def _build(self, constructed: int) -> Goal:
        place = int(np.searchsorted(self._ends, constructed, side="right"))
        product = self.store[int(self._products[place])]
        name = f"{product.asin}-{self._name(place, constructed)}"
        options: Mapping[str, str] | tuple[str, ...]
        if self.kind == "human":
            written = self._human[constructed]
            text, attributes = written.text.strip("."), written.attributes
            options = written.options
        else:
            options = made = combination(product, constructed - self._range(place)[0])
            chosen = ", and ".join(f"{option}: {value}" for option, value in made.items())
            text = f"{product.instruction} with {chosen}" if chosen else str(product.instruction)
            attributes = product.instruction_attributes
        upper = ceiling(price_of(product), name if self.kind == "human" else product.asin)
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


def shuffled(count: int) -> NDArray[np.int64]:
    """Upstream's permutation of so many things: `random.seed(233)`, `random.shuffle`."""
    order = list(range(count))
    random.Random(UPSTREAM_SEED).shuffle(order)
    return np.asarray(order, dtype=np.int64)


def check_split(name: Any, by: object) -> None:
    """Raise `SplitError` if there is no such split, `EnvError` if there is no such way to split."""
    known = (*SPLITS, TRAIN_BOTH)
    if not isinstance(name, str) or name not in known:
        meant = f" WebShop's {name!r} is called {_OTHER_NAMES[name]!r} here." if str(name) in _OTHER_NAMES else ""
        raise SplitError(f"WebShop has no split {name!r:.60}.{meant}{did_you_mean(str(name)[:50], known)}")
    if by not in BY:
        raise EnvError(f"Goals are split by goal or by product, found {by!r:.60}.{did_you_mean(str(by)[:50], BY)}")


class SyntheticGoals:
    """Collects the data of a catalogue's synthetic goals while its products are read."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._counts: list[int] = []
        self._attributes: list[tuple[str, ...]] = []

    def watch(self, products: Iterator[Product]) -> Iterator[Product]:
        """The same products; those with an instruction are noted."""
        for number, product in enumerate(products):
            combinations = math.prod(len(values) for values in product.options.values())
            if product.instruction is not None and combinations:
                self._numbers.append(number)
                self._counts.append(min(combinations, MOST_GOALS + 1))
                self._attributes.append(product.instruction_attributes)
            yield product

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `GoalList` reads: the products with goals, their numbers of goals, their weights, and the permutation of
        all goals with its inverse.
        """
        together: Counter[str] = Counter()
        for count, attributes in zip(self._counts, self._attributes, strict=True):
            for attribute in attributes:
                together[attribute] += count
        weights = [sum(1 / together[each] for each in attributes) / len(attributes) for attributes in self._attributes]
        total = sum(self._counts)
        order = shuffled(total if total <= MOST_GOALS else 0)
        return {
            "goal_products": np.asarray(self._numbers, dtype=np.int32),
            "goal_counts": np.asarray(self._counts, dtype=np.int64),
            "goal_weights": np.asarray(weights, dtype=np.float64),
            "goal_order": order,
            "goal_numbers": np.argsort(order),
        }
