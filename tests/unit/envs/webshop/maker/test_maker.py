"""The generated catalogue: the same bytes everywhere, like real shops where it matters, and fair to who shops by reading."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs.webshop.catalogue.files import find_files, read_products
from skill_ttrl.envs.webshop.catalogue.nouns import find_nouns
from skill_ttrl.envs.webshop.catalogue.product import Product, read_product
from skill_ttrl.envs.webshop.goals import Goal, ceiling, combination, price_of
from skill_ttrl.envs.webshop.maker.generate import run
from skill_ttrl.envs.webshop.maker.maker import DEFAULT_PRODUCTS, asin, make_products
from skill_ttrl.envs.webshop.reward import purchase_reward
from skill_ttrl.errors import EnvError, RunFolderError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.storage.files import acquire_lock, release_lock
from tests.integration.test_cli_commands import refused, skillttrl

FIRST_TWENTY = "e0f6f6feca33c78e"
"""Hash of the first products of seed 0. Where it changes, `maker.GENERATOR` changes too, and results of before no longer hold."""
DEFAULT_CATALOGUE = "4f5a8464d17aeb1c"

Made = list[tuple[dict[str, Any], dict[str, Any] | None]]


def digest(made: Made) -> str:
    return hashlib.blake2b(json.dumps(made, ensure_ascii=False).encode(), digest_size=8).hexdigest()


@pytest.fixture(scope="module")
def made() -> Made:
    return list(make_products(DEFAULT_PRODUCTS))


@pytest.fixture(scope="module")
def products(made: Made) -> list[Product]:
    return [read_product(fields, about) for fields, about in made]


def goals_of(product: Product) -> list[Goal]:
    return [
        Goal(
            id=f"{product.asin}-{number}",
            asin=product.asin,
            title=product.title,
            category=product.category,
            query=product.query,
            product_category=product.product_category,
            instruction=product.instruction or "",
            attributes=product.instruction_attributes,
            options=combination(product, number),
            price_upper=ceiling(price_of(product), product.asin),
        )
        for number in range(math.prod(len(offered) for offered in product.options.values()))
    ]


def test_the_same_seed_gives_the_same_bytes_everywhere(made: Made) -> None:
    assert digest(made[:20]) == FIRST_TWENTY
    assert digest(made) == DEFAULT_CATALOGUE


def test_a_smaller_catalogue_is_the_beginning_of_a_larger_one_and_another_seed_another_catalogue(made: Made) -> None:
    assert list(make_products(37)) == made[:37]
    assert list(make_products(0)) == []
    others = list(make_products(DEFAULT_PRODUCTS, seed=1))
    assert not {fields["name"] for fields, _ in others} & {fields["name"] for fields, _ in made}


def test_every_goal_is_reached_in_full_by_its_own_product(products: list[Product]) -> None:
    nouns = find_nouns("rule")
    for product in products:
        for goal in goals_of(product) if product.instruction is not None else ():
            bought = purchase_reward(product, goal, price_of(product), dict(goal.options), nouns)  # type: ignore[arg-type]
            assert bought.total == 1.0, (product.title, goal.options, bought)


def test_the_written_files_hold_the_same_products(tmp_path: Path, made: Made, products: list[Product]) -> None:
    told: list[int] = []

    class Listening(SilentProgress):
        def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
            told.append(done)

    assert run(tmp_path, DEFAULT_PRODUCTS, progress=Listening()).written == 1_000
    assert told == [0, 1_000]
    assert json.loads((tmp_path / "items_shuffle.json").read_text("utf-8")) == [fields for fields, _ in made]
    known = json.loads((tmp_path / "items_ins_v2.json").read_text("utf-8"))
    assert known == {fields["asin"]: about for fields, about in made if about is not None}
    assert [product for product, _ in read_products(find_files(tmp_path))] == products


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    run(tmp_path, 5)
    before = (tmp_path / "items_shuffle.json").stat().st_mtime_ns
    assert run(tmp_path, 5).written == 0
    assert (tmp_path / "items_shuffle.json").stat().st_mtime_ns == before
    for count, seed in ((6, 0), (5, 1)):
        with pytest.raises(EnvError, match=r"another generated catalogue: 5 products of seed 0\. Choose another"):
            run(tmp_path, count, seed=seed)


@pytest.mark.parametrize(
    "name", ["items_shuffle.json", "items_shuffle_1000.json", "items_ins_v2.json", "items_human_ins.json"]
)
def test_files_of_somebody_else_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(EnvError, match=rf"has {name}, which this command did not"):
        run(tmp_path, 5)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "[]"


def test_stopped_while_it_writes_it_leaves_nothing_of_a_catalogue(tmp_path: Path) -> None:
    class Stopped(SilentProgress):
        def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
            if done:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 1_500, progress=Stopped())
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert run(tmp_path, 3).written == 3


def test_killed_between_its_two_files_it_is_made_again_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = os.replace

    def killed(source: Path, target: Path) -> None:
        if target.name == "items_shuffle.json":
            raise KeyboardInterrupt
        put(source, target)

    monkeypatch.setattr("skill_ttrl.envs.webshop.maker.generate.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 3)
    monkeypatch.undo()
    assert not (tmp_path / "items_shuffle.json").exists()
    assert (tmp_path / "items_ins_v2.json").exists()
    assert run(tmp_path, 3).written == 3
    assert len(list(read_products(find_files(tmp_path)))) == 3


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path) -> None:
    lock = acquire_lock(tmp_path)
    try:
        with pytest.raises(RunFolderError):
            run(tmp_path, 3)
    finally:
        release_lock(tmp_path, lock)


@pytest.mark.parametrize(
    ("count", "seed", "message"),
    [
        (0, 0, "from 1 to 10,000,000 products, found 0"),
        (10_000_001, 0, "found 10,000,001"),
        (1, -1, "0 or above, found -1"),
    ],
)
def test_an_argument_out_of_range_is_refused_before_a_folder_is_made(
    tmp_path: Path, count: int, seed: int, message: str
) -> None:
    with pytest.raises(EnvError, match=message):
        run(tmp_path / "new", count, seed=seed)
    assert not (tmp_path / "new").exists()


def test_the_command_makes_a_catalogue_and_says_so_as_json(
    tmp_path: Path,
) -> None:
    words = ("-o", tmp_path, "--products", 40, "--seed", 3, "--json")
    said = json.loads(skillttrl("envs", "generate", "webshop", *words).out)
    assert said["seconds"] >= 0
    assert {**said, "seconds": 0} == {
        "folder": str(tmp_path), "products": 40, "written": 40, "seed": 3, "seconds": 0,
    }  # fmt: skip
    read = [product.asin for product, _ in read_products(find_files(tmp_path))]
    assert read == [asin(number, 3) for number in range(40)]


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (("webshp",), 3, "Did you mean 'webshop'? Known: alfworld, webshop"),
        (("webshop", "--games", 3, "--split", "dev"), 2, "--split and --games cannot be set for webshop"),
        (("webshop", "--types", "tea"), 2, "--types cannot be set for webshop"),
        (("alfworld", "--products", 3), 2, "--products cannot be set for alfworld"),
        (("webshop", "--products", 20_000_000), 3, "found 20,000,000"),
    ],
)
def test_the_command_refuses_what_does_not_fit(
    tmp_path: Path, said: tuple[object, ...], code: int, message: str
) -> None:
    refused(skillttrl("envs", "generate", *said, "-o", tmp_path / "new"), code, message)
    assert not (tmp_path / "new").exists()
