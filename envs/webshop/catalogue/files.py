"""The official files: where they lie, and their products one by one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from skill_ttrl.envs.webshop.catalogue.product import Product, read_product
from skill_ttrl.errors import EnvError

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
    path = Path(os.path.expanduser(data))
    where = f" ({said})" if said else ""
    try:
        return _find(path, where)
    except OSError as error:
        raise EnvError(f"{str(path)[:200]}{where} cannot be listed: {error.strerror or error}.") from None


def _find(path: Path, where: str) -> Files:
    if path.is_dir():
        found = sorted(path.glob(f"{PRODUCTS}*.json"))
        if not found:
            raise EnvError(f"There is no {PRODUCTS}*.json in {path}{where}, so no products. {HOW_TO_GET}")
        if len(found) > 1:
            raise EnvError(
                f"There are {len(found)} catalogues in {path}{where}: {', '.join(each.name for each in found)}. Name one: "
                f"data={found[0]}."
            )
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
        for number, entry in enumerate(entries if isinstance(entries, list) else [None]):
            try:
                attributes, options = entry["instruction_attributes"], entry["instruction_options"]
                text = entry["instruction"]
                whole = isinstance(text, str) and _are_texts(attributes) and _are_texts(options)
            except (TypeError, KeyError):
                whole = False
            if not whole:
                raise EnvError(
                    f"{path}, {asin[:20]}: an instruction has a text `instruction` and two lists of texts, "
                    f"`instruction_attributes` and `instruction_options`. {HOW_TO_GET}"
                )
            if attributes:
                kept.append(HumanInstruction(asin, number, text, tuple(attributes), tuple(options)))
        found[asin] = tuple(kept)
    return found


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as stream:
            yield stream
    except OSError as error:
        raise EnvError(f"{path} cannot be read: {error.strerror or error}.") from error


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


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
