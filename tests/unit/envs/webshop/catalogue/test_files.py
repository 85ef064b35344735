"""WebShop's official files: what is read of them, what is left out, and what is said of those that cannot be read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs.webshop.catalogue.catalogue import forget, open_catalogue
from skill_ttrl.envs.webshop.catalogue.product import (
    Product,
    find_files,
    read_human,
    read_product,
    read_products,
)
from skill_ttrl.errors import EnvError
from tests.webshop_files import LAMPS, LAMPS_ABOUT, options, product, wanted, write_catalogue, written


def read(folder: Path) -> list[Product]:
    return [each for each, _ in read_products(find_files(folder))]


def test_every_field_has_the_meaning_that_the_official_engine_gives_it() -> None:
    given = product(
        "B0LAMP0001",
        query=" Desk LAMP ",
        pricing="$1,299.99$2,000",
        customization_options={**options(Color=(" Red/White ", "BLUE")), "Fit Type": None},
        small_description="one feature",
    )
    found = read_product(given, wanted("Find me a lamp", "dimmable"))
    assert found == Product(
        asin="B0LAMP0001",
        title="Oak Desk Lamp",
        description="A lamp for work at night.",
        bullets=("one feature",),
        category="garden",
        query="desk lamp",
        product_category="Home & Kitchen › Lighting › Lamps",
        prices=(1299.99, 2000.0),
        options={"color": ("red | white", "blue")},
        attributes=("dimmable", "heavy duty"),
        instruction="Find me a lamp",
        instruction_attributes=("dimmable",),
    )
    assert found.price_tag == "$1299.99 to $2000.0"
    assert found.option_text == "color: red | white, blue"


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"asin": None}, "asin is a text, found nothing"),
    ({"asin": "B0LAMP\0"}, r"asin is a text without NUL, found 'B0LAMP\x00'"),
    ({"name": None}, "B0LAMP0001: name is a text, found nothing"),
    ({"full_description": 3.5}, "B0LAMP0001: full_description is a text, found float"),
    ({"small_description": [None]}, "small_description is a list of texts"),
    ({"pricing": 12.5}, "pricing is a text like $19.99 or $19.99$27.99, found '12.5'"),
    ({"pricing": "12.50"}, "pricing is a text like $19.99 or $19.99$27.99, found '12.50'"),
    ({"pricing": "$" + "9" * 400}, "pricing is a text like"),
    ({"customization_options": ["red"]}, "customization_options is a JSON object of lists"),
    ({"customization_options": {"color": "red"}}, "whose objects have a text `value`"),
]


@pytest.mark.parametrize(("fields", "said"), BAD_FIELDS, ids=[f"{field}" for field, _ in BAD_FIELDS])
def test_a_field_of_another_kind_is_named_with_the_product_and_the_file(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    folder = write_catalogue(tmp_path, [product("B0FIRST001"), {**product("B0LAMP0001"), **fields}])
    with pytest.raises(EnvError, match=re.escape(said)) as error:
        read(folder)
    assert str(error.value).startswith(f"{folder}/items_shuffle.json, product 1 (counted from 0): ")


def test_products_that_the_official_engine_leaves_out_are_left_out(tmp_path: Path) -> None:
    kept = [product("B0LAMP0001", "first"), product("B0LAMP0002")]
    left = [product("nan"), product("B0TOOLONG01"), product("B0LAMP0001", "second")]
    # What is left out may be of any kind: nobody looks at it.
    left += [{"asin": "nan", "name": 3.5}, {"asin": "B0LAMP0002"}]
    found = read(write_catalogue(tmp_path, [*kept, *left]))
    assert [(each.asin, each.title) for each in found] == [("B0LAMP0001", "first"), ("B0LAMP0002", "Oak Desk Lamp")]


BAD_PRODUCTS = {
    "cut off": (json.dumps(LAMPS)[:-40], "is not a complete JSON list"),
    "empty": ("", "is not a complete JSON list"),
    "no list": (json.dumps({"B0LAMP0001": {}}), "holds no products; expected"),
    "nothing in it": ("[]", "holds no products"),
    "not UTF-8": (b'[{"asin": "\xff"}]', "is not a complete JSON list"),
}


@pytest.mark.parametrize(("content", "said"), BAD_PRODUCTS.values(), ids=BAD_PRODUCTS)
def test_a_damaged_file_of_products_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, said: str
) -> None:
    """And leaves nothing in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_catalogue(tmp_path / "data", [], LAMPS_ABOUT)
    (folder / "items_shuffle.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(EnvError, match=re.escape(said)) as error:
        open_catalogue(folder)
    assert str(error.value).startswith(f"{folder}/items_shuffle.json") and "setup.sh" in str(error.value)
    assert [path.name for path in (tmp_path / "cache/skill-ttrl/webshop").iterdir()] == [".lock"]


def test_what_people_wrote_is_read_without_instructions_that_name_no_attribute(tmp_path: Path) -> None:
    human = {"B0LAMP0001": [written("no"), written("yes", "tall", chosen=["red"])], "B0LAMP0002": []}
    found = read_human(write_catalogue(tmp_path, LAMPS, None, human) / "items_human_ins.json")
    assert [(each.number, each.text, each.attributes, each.options) for each in found["B0LAMP0001"]] == [
        (1, "yes", ("tall",), ("red",))
    ]
    assert found["B0LAMP0002"] == ()


def test_the_files_are_found_by_folder_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_catalogue(tmp_path, LAMPS, LAMPS_ABOUT, ending="_1000")
    files = find_files(folder)
    assert [path.name for path in files.paths()] == ["items_shuffle_1000.json", "items_ins_v2_1000.json"]
    assert find_files(str(folder / "items_shuffle_1000.json")) == files
    # The official small catalogue goes with the one file of human instructions.
    (folder / "items_human_ins.json").write_text("{}")
    assert find_files(folder).human == folder / "items_human_ins.json"
    (folder / "items_human_ins_1000.json").write_text("{}")
    assert find_files(folder).human == folder / "items_human_ins_1000.json"
    monkeypatch.chdir(tmp_path.parent)
    assert find_files(tmp_path.name).products.is_absolute()
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert find_files(f"~/{tmp_path.name}").products == files.products


def test_the_variable_names_the_folder_and_stands_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(EnvError, match=r"There is no folder or file .*/nowhere \(\$WEBSHOP_DATA\)"):
        open_catalogue()
    monkeypatch.setenv("WEBSHOP_DATA", str(write_catalogue(tmp_path / "data", LAMPS, LAMPS_ABOUT)))
    assert open_catalogue().source == "official, 4 products"
    # Named data comes first; an empty variable is none.
    assert open_catalogue("generated").source == "generated, 1,000 products"
    assert open_catalogue("generated:40").source == "generated, 40 products"
    for wrong in ("generated:", "generated:0", "generated:-1", "generated:many"):
        with pytest.raises(EnvError, match='"generated:10000"'):
            open_catalogue(wrong)
    monkeypatch.setenv("WEBSHOP_DATA", "")
    assert open_catalogue().source == "generated, 1,000 products"
    with pytest.raises(EnvError, match="data must be a folder or 'generated', found 7"):
        open_catalogue(7)  # type: ignore[arg-type]
    forget()
