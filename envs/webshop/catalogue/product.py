"""Products, and how they are read from the official files: where these lie, and what their words mean.

`Product` holds what the simulator shows and the reward looks at; `read_product` gives it the meaning that the official engine
gives the fields (`web_agent_site/engine/engine.py`, `load_products`, of princeton-nlp/WebShop).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from skill_ttrl.errors import EnvError

NO_PRICE = 100.0
"""US dollars of a product for which the catalogue names no price."""
NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Attributes of a product of which the file of attributes knows none."""
NO_RATING = "N.A."

_NO_PRICE_CHARACTER = re.compile(r"[^\d.]")
_ONE_POINT = re.compile(r"\d*\.?\d+|\d+\.")


@dataclass(frozen=True, slots=True)
class Product:
    """Data of one product, independent of goals and of chance."""

    asin: str
    """Its id, at most 10 characters."""
    title: str
    description: str
    """May be empty."""
    bullets: tuple[str, ...]
    """Its features."""
    category: str
    """One of five in the official files: beauty, electronics, fashion, garden, grocery."""
    query: str
    """The search that it was found by, in small letters."""
    product_category: str
    """A path, its parts separated by ›."""
    prices: tuple[float, ...]
    """US dollars: one price, or the two ends of a range as they are given."""
    options: Mapping[str, tuple[str, ...]]
    """Name → values, in small letters; empty where there is nothing to choose."""
    attributes: tuple[str, ...] = NO_ATTRIBUTES
    instruction: str | None = None
    """Instruction of its synthetic goals, without options; None: it has no such goals."""
    instruction_attributes: tuple[str, ...] = ()
    """Those of its attributes that `instruction` names."""

    def __hash__(self) -> int:
        return hash(self.asin)

    @property
    def price_tag(self) -> str:
        """Its price as pages show it: "$19.99", or "$19.99 to $27.99"."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def option_text(self) -> str:
        """Its options as the search knows them: "color: red, blue, and size: s"."""
        return ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())


def read_product(fields: Any, about: Any = None) -> Product:
    """A product in the official schema. It may lack a description, features, a price and options.

    Args:
        fields: one element of `items_shuffle.json`.
        about: what `items_ins_v2.json` has under its ASIN; None: nothing.

    Raises:
        EnvError: a field is missing or is not of its kind. The message names the field, and not the file.
    """
    asin = _field(fields, "asin", str, "a product")
    if "\0" in asin:  # the store's list of them, fixed in width, cannot tell one at the end
        raise EnvError(f"asin is a text without NUL, found {asin[:20]!r}")
    what, about = asin[:20], {} if about is None else about
    bullets = fields.get("small_description")
    instruction = _field(about, "instruction", str, what, optional=True)
    wanted = _field(about, "instruction_attributes", list, what, optional=True) or ()
    if instruction is not None and not wanted:
        raise EnvError(f"{what}: an instruction is a text, and names at least one of instruction_attributes")
    return Product(
        asin=asin,
        title=_field(fields, "name", str, what),
        description=_field(fields, "full_description", str, what, optional=True) or "",
        bullets=(bullets,)
        if isinstance(bullets, str)
        else _field(fields, "small_description", list, what, optional=True) or (),
        category=_field(fields, "category", str, what),
        query=_field(fields, "query", str, what).lower().strip(),
        product_category=_field(fields, "product_category", str, what),
        prices=_prices(fields.get("pricing"), what),
        options=_options(fields.get("customization_options"), what),
        attributes=_field(about, "attributes", list, what) if "attributes" in about else NO_ATTRIBUTES,
        instruction=instruction,
        instruction_attributes=wanted if instruction is not None else (),
    )


def _field(fields: Any, name: str, kind: Any, what: str, *, optional: bool = False) -> Any:
    """A text, or a list of texts as a tuple; None where there may be none and is none."""
    if not isinstance(fields, Mapping):
        raise EnvError(f"{what} is a JSON object, found {type(fields).__name__}")
    value: Any = fields.get(name)
    if value is None and optional:
        return None
    if not isinstance(value, kind) or (kind is list and not all(isinstance(each, str) for each in value)):
        wanted = "a text" if kind is str else "a list of texts"
        found = "nothing" if value is None else type(value).__name__
        raise EnvError(f"{f'{what}: ' * (name != 'asin')}{name} is {wanted}, found {found}")
    return tuple(value) if kind is list else value


def _prices(pricing: Any, what: str) -> tuple[float, ...]:
    """A text like $19.99$27.99 is a range; more than two prices are cut to two, as upstream does."""
    if not pricing:
        return (NO_PRICE,)
    written = [_NO_PRICE_CHARACTER.sub("", each) for each in str(pricing).split("$")[1:]]
    prices = [float(each) for each in written if _ONE_POINT.fullmatch(each)]
    if not written or len(prices) != len(written) or not all(math.isfinite(price) for price in prices):
        raise EnvError(f"{what}: pricing is a text like $19.99 or $19.99$27.99, found {str(pricing)[:40]!r}")
    return tuple(prices[:2])


def _options(given: Any, what: str) -> dict[str, tuple[str, ...]]:
    options: dict[str, tuple[str, ...]] = {}
    try:
        for name, contents in (given or {}).items():
            if contents is not None:
                values = tuple(content["value"].strip().replace("/", " | ").lower() for content in contents)
                options[str(name).lower()] = values
    except (TypeError, KeyError, AttributeError):
        raise EnvError(
            f"{what}: customization_options is a JSON object of lists, whose objects have a text `value`"
        ) from None
    return options


VARIABLE = "WEBSHOP_DATA"
PRODUCTS = "items_shuffle"
ABOUT = "items_ins_v2"
HUMAN = "items_human_ins"
HOW_TO_GET = (
    "The script setup.sh of github.com/princeton-nlp/WebShop fetches the official files (-d small: 1,000 products; -d all: "
    'every product). Or take the shop that this package makes itself: data="generated".'
)
MAX_ASIN = 10
"""Characters: the official engine leaves out products with a longer one."""


@dataclass(frozen=True, slots=True)
class Files:
    """One catalogue in the official schema."""

    products: Path
    about: Path
    human: Path | None
    """None: no instructions that people wrote."""

    def paths(self) -> tuple[Path, ...]:
        """Every file of it."""
        return (self.products, self.about) if self.human is None else (self.products, self.about, self.human)


def find_files(data: str | os.PathLike[str], said: str = "") -> Files:
    """The files of a catalogue.

    Args:
        data: the folder they lie in, or the path of the file of products where a folder has several.
        said: where `data` was asked for, for the message.

    Raises:
        EnvError: one is missing, or a folder has several catalogues.
    """
    path, where = Path(os.path.expanduser(data)), f" ({said})" if said else ""
    if path.is_dir():
        found = sorted(path.glob(f"{PRODUCTS}*.json"))
        if len(found) > 1:
            names = ", ".join(each.name for each in found)
            raise EnvError(f"There are {len(found)} catalogues in {path}{where}: {names}. Name one: data={found[0]}.")
        if not found:
            raise EnvError(f"There is no {PRODUCTS}*.json in {path}{where}, so no products. {HOW_TO_GET}")
        path = found[0]
    elif not path.is_file():
        raise EnvError(f"There is no folder or file {path}{where}. {HOW_TO_GET}")
    elif not path.name.startswith(PRODUCTS):
        raise EnvError(f"{path}{where} is not a file of products: its name must begin with {PRODUCTS}. {HOW_TO_GET}")
    ending = path.name[len(PRODUCTS) :]
    about, human = path.with_name(ABOUT + ending), path.with_name(HUMAN + ending)
    if not about.is_file():
        raise EnvError(
            f"{about.name}, which has the instructions for {path.name}, is missing in {path.parent}{where}. {HOW_TO_GET}"
        )
    if not human.is_file():
        human = path.with_name(f"{HUMAN}.json")
    return Files(path.absolute(), about.absolute(), human.absolute() if human.is_file() else None)


def read_products(files: Files) -> Iterator[tuple[Product, int]]:
    """The products in the order of the file, with how many bytes of it are read so far.

    Those that the official engine leaves out are left out: an ASIN that was there before, `nan`, or one of more than 10
    characters.

    Raises:
        EnvError: a file is no JSON of its schema, or holds nothing.
    """
    import ijson

    about = _object(files.about)
    seen: set[str] = set()
    with _reading(files.products) as stream:
        try:
            for number, fields in enumerate(ijson.items(stream, "item", use_float=True)):
                asin = fields.get("asin") if isinstance(fields, Mapping) else None
                if isinstance(asin, str) and (asin in seen or asin == "nan" or len(asin) > MAX_ASIN):
                    continue
                try:
                    product = read_product(fields, about.get(asin) if isinstance(asin, str) else None)
                except EnvError as error:
                    raise EnvError(
                        f"{files.products}, product {number} (counted from 0): {error}. {HOW_TO_GET}"
                    ) from None
                seen.add(product.asin)
                yield product, stream.tell()
        except ijson.JSONError as error:
            why = next(iter(str(error).strip().splitlines()), "")  # below it a picture of the place
            raise EnvError(
                f"{files.products} is not a complete JSON list of products: {why[:200]}. {HOW_TO_GET}"
            ) from None
    if not seen:
        raise EnvError(f"{files.products} holds no products; expected a JSON list of them. {HOW_TO_GET}")


@dataclass(frozen=True, slots=True)
class HumanInstruction:
    """Instruction that a person wrote for a product after looking at it."""

    asin: str
    number: int
    """Among those of the product, from 0."""
    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Only values; the file has no names for them."""


def read_human(path: Path) -> dict[str, tuple[HumanInstruction, ...]]:
    """ASIN → the instructions that people wrote for it; those without attributes are left out, as the official engine does.

    Raises:
        EnvError: the file is no JSON of its schema.
    """
    found: dict[str, tuple[HumanInstruction, ...]] = {}
    for asin, entries in _object(path).items():
        kept = []
        try:
            for number, entry in enumerate(entries if isinstance(entries, list) else [None]):
                attributes, options = (
                    _field(entry, f"instruction_{name}", list, "it") for name in ("attributes", "options")
                )
                text = _field(entry, "instruction", str, "it")
                if attributes:
                    kept.append(HumanInstruction(asin, number, text, attributes, options))
        except EnvError:
            raise EnvError(
                f"{path}, {asin[:20]}: an instruction has a text `instruction` and two lists of texts, "
                f"`instruction_attributes` and `instruction_options`. {HOW_TO_GET}"
            ) from None
        found[asin] = tuple(kept)
    return found


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as stream:
            yield stream
    except OSError as error:
        raise EnvError(f"{path} cannot be read: {error.strerror or error}.") from error


def _object(path: Path) -> dict[str, Any]:
    with _reading(path) as stream:
        raw = stream.read()
    try:
        read = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise EnvError(f"{path} is not complete JSON: {str(error)[:200]}. {HOW_TO_GET}") from None
    if b"\\ud" in raw.lower():  # half of a surrogate pair, which no file or terminal takes: "?", as among the products
        read = json.loads(json.dumps(read, ensure_ascii=False).encode(errors="replace"))
    if not isinstance(read, dict):
        raise EnvError(f"{path} must hold a JSON object keyed by ASIN, found {type(read).__name__}. {HOW_TO_GET}")
    return read
