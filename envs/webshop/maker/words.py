"""Kinds of products in the generated catalogue, what is said of them, and what there is to choose: `words.toml`, parsed."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
KINDS: dict[str, str] = _TABLES["kinds"]
ATTRIBUTES: dict[str, str] = _TABLES["attributes"]
CHOICES: dict[str, list[str]] = _TABLES["choices"]
VALUES: dict[str, str] = _TABLES["values"]


class Kind(NamedTuple):
    """A kind of product: those of one kind compete for the same goals."""

    category: str
    path: str
    """The official `product_category`: parts separated by ›."""
    query: str
    nouns: tuple[str, ...]
    """Its names in titles; each has a word of `query` or its synonym."""
    attributes: tuple[str, ...]
    """Groups of `ATTRIBUTES`."""
    options: str
    """A row of `CHOICES`."""
    prices: tuple[int, int]
    """US dollars, lowest and highest."""


class Attribute(NamedTuple):
    """Something that a product is, has or is meant for."""

    name: str
    """As `items_ins_v2.json` and the instruction have it: two or three words."""
    role: str
    """`is`, `with` or `for`: its place in an instruction."""
    phrase: str
    """As sentences say it."""


@functools.cache
def kinds() -> tuple[Kind, ...]:
    """All kinds; every one of them is as likely as another."""
    return tuple(
        Kind(category, path, query, _listed(nouns), tuple(groups.split()), options, _ends(prices))
        for category, rows in KINDS.items()
        for path, query, nouns, groups, options, prices in (
            (cell.strip() for cell in row.split("|")) for row in rows.strip().splitlines()
        )
    )


@functools.cache
def attributes(group: str) -> tuple[Attribute, ...]:
    """One group of `ATTRIBUTES`. A name that sentences say in other words has these after an equals sign."""
    found = []
    for role, row in zip(("is", "with", "for"), ATTRIBUTES[group].strip().split("/"), strict=True):
        for entry in _listed(row):
            name, _, phrase = entry.partition(" = ")
            found.append(Attribute(name, role, phrase or name))
    return tuple(found)


@functools.cache
def values(row: str) -> tuple[str, ...]:
    """One row of `VALUES`."""
    return _listed(VALUES[row])


def _listed(text: str) -> tuple[str, ...]:
    """Split a text at commas; lines may break anywhere, and empty entries are dropped."""
    return tuple(entry for each in text.split(",") if (entry := " ".join(each.split())))


def _ends(prices: str) -> tuple[int, int]:
    low, high = prices.split()
    return int(low), int(high)
