"""WebShop's goals: constructed as upstream does, in one fixed order, split without overlap, with the same prices everywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs.webshop.catalogue.catalogue import Catalogue, forget, open_catalogue
from skill_ttrl.envs.webshop.goals import NO_CEILING, Goal, GoalList, ceiling, shuffled
from skill_ttrl.errors import EnvError, SplitError
from tests.webshop_files import LAMPS, LAMPS_ABOUT, LAMPS_HUMAN, options, product, wanted, write_catalogue, written


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        forget()
        yield folder
    forget()


@pytest.fixture(scope="module")
def lamps(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return open_catalogue(write_catalogue(tmp_path_factory.mktemp("lamps"), LAMPS, LAMPS_ABOUT, LAMPS_HUMAN))


@pytest.fixture(scope="module")
def official(cache: Path, official_products: Path) -> GoalList:
    return open_catalogue(official_products).goals("synthetic")


def by_id(goals: GoalList) -> dict[str, Goal]:
    return {goal.id: goal for goal in goals}


def test_a_product_with_an_instruction_has_a_goal_for_each_combination_of_its_options(lamps: Catalogue) -> None:
    goals = by_id(lamps.goals("synthetic"))
    # Names in the alphabet's order, the last one's values first; the sofa has no instruction, the thing no value to choose.
    assert [(goals[f"B0LAMP0001-{number}"].options) for number in range(6)] == [
        {"color": color, "size": size} for color in ("red", "sky blue") for size in ("s | m", "l", "xl")
    ]
    assert sorted(goals) == [*(f"B0LAMP0001-{number}" for number in range(6)), "B0LAMP0002-0"]
    red = goals["B0LAMP0001-0"]
    assert red.price_upper in (30.0, 40.0, 50.0)
    assert red == Goal(
        id="B0LAMP0001-0",
        asin="B0LAMP0001",
        title="Oak Desk Lamp",
        category="garden",
        query="desk lamp",
        product_category="Home & Kitchen › Lighting › Lamps",
        instruction=f"Find me a lamp with color: red, and size: s | m, and price lower than {red.price_upper:.2f} dollars",
        attributes=("dimmable",),
        options={"color": "red", "size": "s | m"},
        price_upper=red.price_upper,
    )
    assert goals["B0LAMP0002-0"].instruction.startswith("Find me a floor lamp, and price lower than ")


def test_what_people_wrote_is_a_goal_each(lamps: Catalogue) -> None:
    goals = by_id(lamps.goals("human"))
    assert {goal.id: (goal.instruction.partition(", and price")[0], goal.attributes, goal.options) for goal in goals.values()} == {
        "B0LAMP0001-h0": ("i want a dimmable lamp", ("dimmable",), ()),
        "B0LAMP0002-h0": ("A tall lamp", ("tall",), ()),
        "B0LAMP0002-h2": ("Steel, please", ("steel",), ("red",)),
    }  # fmt: skip


def test_human_goals_are_taken_where_they_are_enough_for_every_split_or_the_only_ones(
    cache: Path, lamps: Catalogue, tmp_path: Path
) -> None:
    """`setup.sh -d small` puts what people wrote for the full catalogue beside 1,000 products, few of which it is about."""
    assert lamps.goals("auto") is lamps.goals("synthetic")
    with pytest.raises(SplitError, match=r"The 3 human goals .* the split 'train' by goal.*goals=synthetic"):
        lamps.goals("human").split("train")
    only = open_catalogue(write_catalogue(tmp_path / "only", LAMPS, {}, LAMPS_HUMAN))
    assert only.goals() is only.goals("human")
    for count, kind in ((1500, "synthetic"), (1501, "human")):
        human = {"B0LAMP0001": [written("a lamp", "dimmable")] * count, "B0OTHER": [written("a cup", "blue")] * 9}
        assert open_catalogue(write_catalogue(tmp_path / kind, LAMPS, LAMPS_ABOUT, human)).goals().kind == kind


def test_options_of_millions_of_combinations_do_not_take_the_machine(cache: Path, tmp_path: Path) -> None:
    """Three options of 2,000 values each are 8,000,000,000 goals; upstream would write each of them down."""
    values = {name: [f"{name}{number}" for number in range(2000)] for name in ("a", "b", "c")}
    huge = product("B0HUGE0001", customization_options=options(**values))
    about = {"B0HUGE0001": wanted(), "B0LAMP0002": wanted()}
    found = open_catalogue(write_catalogue(tmp_path, [*LAMPS[1:2], huge], about, {"B0HUGE0001": [written("x", "y")]}))
    with pytest.raises(
        EnvError, match=r"more than 50,000,000 synthetic goals, .* B0HUGE0001 has most of them\. Use human"
    ):
        found.goals("synthetic")
    assert [goal.id for goal in found.goals("human")] == ["B0HUGE0001-h0"]


@pytest.mark.parametrize("count", [0, 1, 415, 6910, 12087])
def test_the_order_is_upstreams_permutation(count: int) -> None:
    expected = list(range(count))
    random.seed(233)  # as upstream does it, with the global generator
    random.shuffle(expected)
    assert shuffled(count).tolist() == expected


@given(st.one_of(st.floats(0.01, 1200), st.integers(0, 120).map(lambda tens: 10.0 * tens)), st.text(max_size=10))
def test_a_ceiling_is_the_larger_of_two_of_the_next_four_multiples_of_ten(price: float, name: str) -> None:
    """Upstream: `[p for p in price_range if p > price][:4]`, `sample(…, 2)`, the larger; 1e6 where there are fewer than two."""
    above = [10.0 * step for step in range(1, 100) if 10.0 * step > price][:4]
    found = ceiling(price, name)
    assert found in above[1:] if len(above) >= 2 else found == NO_CEILING
    assert found == ceiling(price, name)


def test_every_goal_is_found_by_its_id(lamps: Catalogue) -> None:
    for kind in ("synthetic", "human"):
        goals = lamps.goals(kind)
        assert [goals.find(goal.id) for goal in goals] == list(range(len(goals)))


def test_splits_are_upstreams_ranges_of_the_one_order(official: GoalList) -> None:
    assert (len(official), len({goal.asin for goal in official})) == (6_910, 415)
    found = {name: official.split(name).tolist() for name in ("test", "dev", "train")}
    assert found == {"test": [*range(500)], "dev": [*range(500, 1500)], "train": [*range(1500, 6910)]}
    assert [official[number].id for number in range(3)] == ["B0743JKHBV-6", "B09QCP4579-5", "B099WH1RTM-24"]
    assert (official[500].id, official[1500].id) == ("B094Q7B3SS-2", "B07HRFSNL4-369")


def test_a_split_by_product_has_no_product_on_two_sides(official: GoalList) -> None:
    numbers = {name: official.split(name, "product") for name in ("test", "dev", "train")}
    assert {name: len(found) for name, found in numbers.items()} == {"test": 500, "dev": 1000, "train": 4032}
    products = [{official[int(number)].asin for number in found} for found in numbers.values()]
    assert not products[0] & products[1] and not products[0] & products[2] and not products[1] & products[2]
    # By goal they are on both, which is why there is this split.
    goals = [{official[int(number)].asin for number in official.split(name)} for name in ("test", "train")]
    assert len(goals[0] & goals[1]) > 100
    assert [official[int(number)].id for number in numbers["test"][:2]] == ["B07HRFSNL4-314", "B092VDY5MF-2"]


def test_goals_that_are_train_both_ways_are_no_test_goals_in_either(official: GoalList) -> None:
    both = official.split("train_both").tolist()
    assert both == official.split("train_both", "product").tolist() and len(both) == 3_148
    assert set(both) <= {*official.split("train").tolist()} & {*official.split("train", "product").tolist()}
    instructions = {official[number].instruction for number in both}
    measured = {
        by: {official[int(number)].instruction for number in official.split("test", by)} for by in ("goal", "product")
    }
    assert {by: len(asked & instructions) for by, asked in measured.items()} == {"goal": 7, "product": 0}


def test_weights_are_upstreams(official: GoalList) -> None:
    """A goal's: the mean, over its attributes, of 1 / (goals with that attribute)."""
    counts: dict[str, int] = {}
    for goal in official:
        for attribute in goal.attributes:
            counts[attribute] = counts.get(attribute, 0) + 1
    numbers = official.split("dev")
    expected = [
        sum(1 / counts[each] for each in official[n].attributes) / len(official[n].attributes)
        for n in map(int, numbers)
    ]
    assert official.weights(numbers) == pytest.approx(expected, rel=1e-12)
