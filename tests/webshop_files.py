"""Small catalogues in WebShop's official schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def product(asin: str, name: str = "Oak Desk Lamp", **fields: Any) -> dict[str, Any]:
    """An element of `items_shuffle.json`; a field that is None is left out."""
    found = {
        "asin": asin,
        "name": name,
        "full_description": "A lamp for work at night.",
        "small_description": ["bulb included", "two years of warranty"],
        "pricing": "$12.50",
        "category": "garden",
        "query": "Desk Lamp ",
        "product_category": "Home & Kitchen › Lighting › Lamps",
        "customization_options": "",
        "images": [],
        "average_rating": "",
        **fields,
    }
    return {key: value for key, value in found.items() if value is not None}


def options(**values: Iterable[str]) -> dict[str, Any]:
    """Customisation options by name."""
    return {name: [{"value": value} for value in given] for name, given in values.items()}


def wanted(instruction: str = "Find me a lamp", *attributes: str) -> dict[str, Any]:
    """What `items_ins_v2.json` has under an ASIN with a synthetic goal."""
    named = list(attributes or ("dimmable",))
    return {"attributes": [*named, "heavy duty"], "instruction": instruction, "instruction_attributes": named}


def written(instruction: str = "I need a lamp.", *attributes: str, chosen: Iterable[str] = ()) -> dict[str, Any]:
    """One instruction of `items_human_ins.json`."""
    return {
        "instruction": instruction,
        "instruction_attributes": list(attributes),
        "instruction_options": list(chosen),
        "attributes": [],
        "options": [],
        "assignment_id": "A",
        "worker_id": "W",
    }


def write_catalogue(
    folder: Path, products: Any, about: Any = None, human: Mapping[str, Any] | None = None, ending: str = ""
) -> Path:
    """The files of a catalogue in `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"items_shuffle": products, "items_ins_v2": {} if about is None else about, "items_human_ins": human}
    for name, content in files.items():
        if content is not None:
            (folder / f"{name}{ending}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


LAMPS = [
    product("B0LAMP0001", customization_options=options(Color=("Red", "Sky Blue"), size=("S/M", "L", "XL"))),
    product("B0LAMP0002", "Steel Floor Lamp", pricing="$19.99$27.99"),
    product("B0SOFA0003", "Grey Sofa", category="garden", query="sofa", pricing="", product_category="Home › Sofas"),
    product("B0NONE0004", "Plain Thing", customization_options=options(color=())),
]
LAMPS_ABOUT = {
    "B0LAMP0001": wanted("Find me a lamp"),
    "B0LAMP0002": wanted("Find me a floor lamp", "steel", "tall"),
    "B0SOFA0003": {"attributes": ["soft"]},
    "B0NONE0004": wanted("Find me a thing"),
}
LAMPS_HUMAN = {
    "B0LAMP0002": [
        written("A tall lamp.", "tall"),
        written("no attributes"),
        written("Steel, please..", "steel", chosen=["red"]),
    ],
    "B0GONE0009": [written("Not sold.", "blue")],
    "B0LAMP0001": [written("i want a dimmable lamp", "dimmable")],
}
"""Seven synthetic goals (six and one), three human ones."""
