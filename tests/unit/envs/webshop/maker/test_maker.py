"""The generated catalogue: the same bytes everywhere, like real shops where it matters, and fair to who shops by reading."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.main import main
from skill_ttrl.envs.webshop.catalogue.files import find_files, read_products
from skill_ttrl.envs.webshop.catalogue.nouns import find_nouns
from skill_ttrl.envs.webshop.catalogue.product import Product, read_product
from skill_ttrl.envs.webshop.goal import Goal, ceiling, combination, price_of
from skill_ttrl.envs.webshop.maker import maker
from skill_ttrl.envs.webshop.maker.generate import write_catalogue
from skill_ttrl.envs.webshop.maker.maker import DEFAULT_PRODUCTS, MAX_CHOICES, asin, make_products
from skill_ttrl.envs.webshop.maker.sentences import CATEGORY_WORDS, OWN, PATTERNS, WORDS, fill, sentences, words
from skill_ttrl.envs.webshop.maker.words import ATTRIBUTES, CHOICES, attributes, kinds, values
from skill_ttrl.envs.webshop.pages import BUTTONS
from skill_ttrl.envs.webshop.reward import count_options, purchase_reward
from skill_ttrl.errors import EnvError, RunFolderError
from skill_ttrl.storage.files import acquire_lock, release_lock

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


def attributes_of(product: Product) -> dict[str, str]:
    """Name → phrase of what is known of it."""
    kind = next(kind for kind in kinds() if kind.query == product.query)
    known = {each.name: each.phrase for group in reversed(kind.attributes) for each in attributes(group)}
    return {name: known[name] for name in product.attributes if name in known}


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


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_another_process_with_other_hashes_makes_the_same(hash_seed: str) -> None:
    code = (
        "import hashlib, json; from skill_ttrl.envs.webshop.maker.maker import make_products;"
        "print(hashlib.blake2b(json.dumps(list(make_products(20)), ensure_ascii=False).encode(), digest_size=8).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == FIRST_TWENTY


def test_a_smaller_catalogue_is_the_beginning_of_a_larger_one_and_another_seed_another_catalogue(made: Made) -> None:
    assert list(make_products(37)) == made[:37]
    assert list(make_products(0)) == []
    others = list(make_products(DEFAULT_PRODUCTS, seed=1))
    assert not {fields["name"] for fields, _ in others} & {fields["name"] for fields, _ in made}


def test_products_are_made_one_at_a_time_and_leave_the_global_generator_alone() -> None:
    before = random.getstate()
    assert next(make_products(10**9))[0]["asin"] == asin(0)
    assert random.getstate() == before


def test_no_two_products_share_an_asin_at_any_size() -> None:
    assert math.gcd(maker._STEP, maker._ASINS) == 1
    assert math.gcd(maker._TURN, len(kinds())) == 1
    for seed in (0, 7):
        codes = {asin(number, seed) for number in range(50_000)}
        assert len(codes) == 50_000
        assert all(re.fullmatch("G[0-9A-Z]{9}", code) for code in codes)


def test_fields_are_those_of_the_official_files(made: Made) -> None:
    names = "asin name full_description small_description product_category category query average_rating pricing customization_options images"
    for fields, about in made:
        assert list(fields) == names.split()
        assert about is None or list(about)[:1] == ["attributes"]
        assert about is None or set(about) <= {"attributes", "instruction", "instruction_attributes"}
        for offered in (fields["customization_options"] or {}).values():
            assert all(list(each) == ["value", "image"] and each["image"] is None for each in offered)
    assert {type(fields["small_description"]) for fields, _ in made} == {str, list}
    assert any(fields["small_description"] == [] for fields, _ in made)
    assert any(about is None for _, about in made)


def test_sizes_and_shares_are_those_of_a_real_shop(products: list[Product]) -> None:
    assert {product.category for product in products} == {"beauty", "electronics", "fashion", "garden", "grocery"}
    titles = sorted(len(product.title.split()) for product in products)
    assert titles[0] >= 5 and 11 <= titles[500] <= 18 and titles[-10] <= 25
    descriptions = sorted(len(product.description.split()) for product in products)
    assert descriptions[150] == 0 and 30 <= descriptions[500] <= 70 and descriptions[900] <= 130
    shares = Counter(len(product.options) for product in products)
    assert 440 <= shares[0] <= 540 and shares[2] >= 170 and shares[3] >= 1
    assert 60 <= sum(len(product.prices) == 2 for product in products) <= 120
    assert 380 <= sum(product.instruction is not None for product in products) <= 460
    assert max(len(product.attributes) for product in products) <= 8
    assert 1 <= sum(product.product_category == "" for product in products) <= 40


def test_prices_are_whole_cents_and_ranges_go_up(products: list[Product]) -> None:
    for product in products:
        assert all(price > 0 and abs(price * 100 - round(price * 100)) < 1e-6 for price in product.prices)
        assert list(product.prices) == sorted(set(product.prices))


def test_few_words_are_everywhere_and_many_are_rare_as_in_real_texts(products: list[Product]) -> None:
    """1,000 official products have 10,745 stems, 57 % of them in one product; the commonest is in 46 % of the products."""
    found = Counter[str]()
    for product in products:
        first = product.bullets[0] if product.bullets else ""
        text = f"{product.title} {product.description} {first} {product.option_text}".lower()
        found.update(set(re.findall(r"\w+", text)))
    assert len(found) > 6_000
    assert 0.5 < sum(count == 1 for count in found.values()) / len(found) < 0.8
    commonest = [count for _, count in found.most_common(1_000)]
    assert commonest[100] < 150 and commonest[300] > 30 and commonest[-1] >= 5


def test_there_are_goals_enough_and_no_product_has_most_of_them(products: list[Product]) -> None:
    counts = [len(goals_of(product)) for product in products if product.instruction is not None]
    assert sum(counts) >= 3_000
    assert max(counts) <= MAX_CHOICES == 60


def test_every_goal_is_reached_in_full_by_its_own_product(products: list[Product]) -> None:
    nouns = find_nouns("rule")
    for product in products:
        for goal in goals_of(product) if product.instruction is not None else ():
            bought = purchase_reward(product, goal, price_of(product), dict(goal.options), nouns)  # type: ignore[arg-type]
            assert bought.total == 1.0, (product.title, goal.options, bought)


def test_every_option_value_there_is_matches_itself_by_the_rewards_rules() -> None:
    for rows in CHOICES.values():
        for row in rows:
            name = row.partition(":")[0]
            for value in values(row):
                shown = value.replace("/", " | ")
                assert count_options([shown], {name: shown}) == 1, f"{name}: {value}"


def test_buttons_of_a_page_are_all_different(products: list[Product]) -> None:
    for product in products:
        offered = [value for options in product.options.values() for value in options]
        assert len(set(offered)) == len(offered)
        assert not set(offered) & {text.lower() for text in BUTTONS}


def test_an_instruction_names_some_of_what_the_product_is_has_and_is_for(products: list[Product]) -> None:
    for product in products:
        if product.instruction is None:
            continue
        assert product.instruction.startswith("Find me ")
        assert 2 <= len(product.instruction_attributes) <= 8
        assert set(product.instruction_attributes) <= set(product.attributes)
        assert product.query in product.instruction
        assert all(attribute in product.instruction for attribute in product.instruction_attributes)


def test_every_attribute_is_said_where_a_shopper_can_read_it(products: list[Product]) -> None:
    for product in products:
        texts = " ".join((product.title, product.description, *product.bullets)).lower()
        said = attributes_of(product)
        assert len(said) == len([name for name in product.attributes if name != "DUMMY_ATTR"])
        for phrase in said.values():
            assert phrase in texts, (product.title, phrase)


def test_choosing_takes_reading_since_every_kind_has_rivals_that_differ(products: list[Product]) -> None:
    rivals = defaultdict(list)
    for product in products:
        rivals[product.query].append(product)
    assert len(rivals) == len(kinds())
    assert min(map(len, rivals.values())) >= 4
    pairs = [pair for same in rivals.values() for pair in combinations(same, 2)]
    assert sum(set(one.attributes) != set(other.attributes) for one, other in pairs) > 0.9 * len(pairs)
    assert sum(one.prices != other.prices for one, other in pairs) > 0.9 * len(pairs)


def test_a_rival_rarely_earns_the_full_reward(products: list[Product]) -> None:
    nouns = find_nouns("rule")
    full = tried = 0
    for product in products[:300]:
        if product.instruction is None:
            continue
        goal = goals_of(product)[0]
        for rival in products:
            if rival.query == product.query and rival is not product:
                wanted = set(dict(goal.options).values())  # type: ignore[arg-type]
                chosen = {name: max(offered, key=wanted.__contains__) for name, offered in rival.options.items()}
                full += purchase_reward(rival, goal, price_of(rival), chosen, nouns).total == 1.0
                tried += 1
    assert 1 <= full < 0.05 * tried


def test_the_vocabulary_is_whole() -> None:
    for kind in kinds():
        assert kind.path.count("›") >= 2 and kind.options in CHOICES and 0 < kind.prices[0] < kind.prices[1]
        assert len({each.name for group in kind.attributes for each in attributes(group)}) >= 8
    for group in ATTRIBUTES:
        assert all(1 <= len(each.name.split()) <= 4 for each in attributes(group))
    assert {group for kind in kinds() for group in kind.attributes} == set(ATTRIBUTES)
    assert {kind.options for kind in kinds()} == set(CHOICES)
    own = dict.fromkeys(OWN, "x")
    for category in CATEGORY_WORDS:
        assert all(words(name, category) for name in WORDS)
        for name in PATTERNS:
            for pattern in sentences(name, category):
                assert not re.search(r"[{}]|%s", fill(pattern, own, random.Random(0).random))


def test_the_written_files_hold_the_same_products(tmp_path: Path, made: Made, products: list[Product]) -> None:
    told: list[tuple[int, int]] = []
    assert write_catalogue(tmp_path, DEFAULT_PRODUCTS, progress=lambda done, total: told.append((done, total))) == 1_000
    assert told == [(0, 1_000), (1_000, 1_000)]
    assert json.loads((tmp_path / "items_shuffle.json").read_text("utf-8")) == [fields for fields, _ in made]
    known = json.loads((tmp_path / "items_ins_v2.json").read_text("utf-8"))
    assert known == {fields["asin"]: about for fields, about in made if about is not None}
    assert [product for product, _ in read_products(find_files(tmp_path))] == products


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    write_catalogue(tmp_path, 5)
    before = (tmp_path / "items_shuffle.json").stat().st_mtime_ns
    assert write_catalogue(tmp_path, 5) == 0
    assert (tmp_path / "items_shuffle.json").stat().st_mtime_ns == before
    for count, seed in ((6, 0), (5, 1)):
        with pytest.raises(EnvError, match=r"a generated catalogue already: 5 products of seed 0\. Choose another"):
            write_catalogue(tmp_path, count, seed)


@pytest.mark.parametrize(
    "name", ["items_shuffle.json", "items_shuffle_1000.json", "items_ins_v2.json", "items_human_ins.json"]
)
def test_files_of_somebody_else_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(EnvError, match=rf"has {name}, which was not generated"):
        write_catalogue(tmp_path, 5)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "[]"


def test_stopped_while_it_writes_it_leaves_nothing_of_a_catalogue(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_catalogue(tmp_path, 1_500, progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert write_catalogue(tmp_path, 3) == 3


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
        write_catalogue(tmp_path, 3)
    monkeypatch.undo()
    assert not (tmp_path / "items_shuffle.json").exists()
    assert (tmp_path / "items_ins_v2.json").exists()
    assert write_catalogue(tmp_path, 3) == 3
    assert len(list(read_products(find_files(tmp_path)))) == 3


def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".making-gone").mkdir()
    (tmp_path / ".making-gone" / "items_shuffle.json").write_text("[")
    write_catalogue(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        "generated.json",
        "items_ins_v2.json",
        "items_shuffle.json",
    ]


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path) -> None:
    lock = acquire_lock(tmp_path)
    try:
        with pytest.raises(RunFolderError):
            write_catalogue(tmp_path, 3)
    finally:
        release_lock(tmp_path, lock)


@pytest.mark.parametrize(
    ("count", "seed", "message"),
    [
        (0, 0, "from 1 to 10,000,000 products, 0 were asked for"),
        (10_000_001, 0, "10,000,001 were asked for"),
        (1, -1, "0 or above, found -1"),
    ],
)
def test_an_argument_out_of_range_is_refused_before_a_folder_is_made(
    tmp_path: Path, count: int, seed: int, message: str
) -> None:
    with pytest.raises(EnvError, match=message):
        write_catalogue(tmp_path / "new", count, seed)
    assert not (tmp_path / "new").exists()


def test_a_path_that_is_a_file_and_a_foreign_record_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvError, match=r"Cannot write a catalogue to .*file: .*choose another folder"):
        write_catalogue(tmp_path / "file", 3)
    (tmp_path / "generated.json").write_text('{"schema": 1, "splits": {}}')
    with pytest.raises(EnvError, match=r"generated\.json is no record of a generated catalogue"):
        write_catalogue(tmp_path, 3)


Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    def run(*said: object) -> int:
        monkeypatch.setattr(sys, "argv", ["skillttrl", "envs", "generate", *map(str, said)])
        try:
            main()
        except SystemExit as left:
            return int(left.code or 0)
        return 0

    return run


def test_the_command_makes_a_catalogue_and_says_so_as_json(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("webshop", "-o", tmp_path, "--products", 40, "--seed", 3, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["seconds"] >= 0
    assert {**said, "seconds": 0} == {
        "folder": str(tmp_path), "products": 40, "written": 40, "seed": 3, "seconds": 0,
    }  # fmt: skip
    read = [product.asin for product, _ in read_products(find_files(tmp_path))]
    assert read == [asin(number, 3) for number in range(40)]


def test_the_command_says_what_is_there_and_how_to_shop_in_it(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("webshop", "-o", tmp_path) == 0
    said = capsys.readouterr().out
    assert f"1000 products in {tmp_path}, all new" in said
    assert f"skillttrl envs play webshop --env-data {tmp_path}" in said
    assert command("webshop", "-o", tmp_path) == 0
    assert f"1000 products in {tmp_path}, which were there already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (("webshp",), 3, "Did you mean 'webshop'? Known: alfworld, webshop"),
        (("webshop", "--games", 3, "--split", "dev"), 2, "--split and --games cannot be set for webshop"),
        (("webshop", "--types", "tea"), 2, "--types cannot be set for webshop"),
        (("alfworld", "--products", 3), 2, "--products cannot be set for alfworld"),
        (("webshop", "--products", 20_000_000), 3, "20,000,000 were asked for"),
    ],
)
def test_the_command_refuses_what_does_not_fit(
    tmp_path: Path,
    command: Command,
    capsys: pytest.CaptureFixture[str],
    said: tuple[object, ...],
    code: int,
    message: str,
) -> None:
    assert command(*said, "-o", tmp_path / "new") == code
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new").exists()
