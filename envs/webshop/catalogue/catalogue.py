"""The catalogue to shop in: written once on a machine, mapped into memory by every process that shops in it.

The full official catalogue has 1.18 million products, 5 GB of JSON. Nothing of it is held by an environment: products, search
index and the order of the goals are files in the user's cache, whose pages all environments of a machine share.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from skill_ttrl.envs.text_env import generated_count
from skill_ttrl.envs.webshop.catalogue.product import (
    HOW_TO_GET,
    VARIABLE,
    Files,
    HumanInstruction,
    Product,
    find_files,
    read_human,
    read_product,
    read_products,
)
from skill_ttrl.envs.webshop.catalogue.search import META, Store, write_store
from skill_ttrl.envs.webshop.goals import DEV_GOALS, KINDS, TEST_GOALS, GoalList, SyntheticGoals
from skill_ttrl.errors import EnvError, did_you_mean
from skill_ttrl.storage.files import cache_folder, digest_of, made_once

Progress = Callable[[int, int], None]
"""Callback that receives (items done, items in total)."""

GENERATED, OFFICIAL = "generated", "official"
SERVER = "http://127.0.0.1:3000"
"""For messages: how the address of a running server is written."""
GOALS = ("auto", *KINDS)
_WRITERS = (
    "goals.py",
    *(f"catalogue/{name}.py" for name in ("product", "search")),
    *(f"maker/{name}" for name in ("maker.py", "sentences.toml", "words.toml")),
)
"""Files whose text decides what a store holds: one that other text has made is made again."""

DEFAULT_PRODUCTS, MAX_PRODUCTS = 1_000, 10_000_000
"""Products of the generated catalogue, where no number is given, and at most."""
DAYS_UNUSED = 30
"""A store that was not opened for so long is removed when another is made."""

_opened: dict[str, Catalogue] = {}
_lock = threading.RLock()


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Products, the search in them, and their goals; the same object for all environments of a process."""

    store: Store
    files: Files | None
    """None: the generated catalogue, which is made on this machine."""
    _lists: dict[str, GoalList] = field(default_factory=dict, init=False, repr=False)

    @property
    def source(self) -> str:
        """Where the products are from: `official` or `generated`, and how many there are."""
        return f"{GENERATED if self.files is None else OFFICIAL}, {len(self.store):,} products"

    def goals(self, kind: str = "auto") -> GoalList:
        """Return the goals of a kind in their fixed order.

        Args:
            kind: `synthetic`, `human`, or `auto`: human goals if there are enough for every split, or no synthetic ones. The official
                file of human goals is for the full catalogue; `setup.sh` puts it next to the 1,000 products as well, few of which
                have one.

        Raises:
            EnvError: there are none, or no such kind.
        """
        if kind not in GOALS:
            raise EnvError(f"There are no goals of a kind {kind!r:.60}.{did_you_mean(str(kind)[:50], GOALS)}")
        human = self.files is not None and self.files.human is not None
        if kind == "human" and not human:
            where = self.files.products.parent if self.files is not None else "the generated catalogue"
            raise EnvError(f"There is no items_human_ins.json in {where}, so no human goals; there are synthetic ones.")
        if kind == "auto":
            kind = "human" if human and self._has_human_ones_for_every_split else "synthetic"
        if kind not in self._lists:
            self._lists[kind] = GoalList(self.store, kind, self._written if kind == "human" else None)
        return self._lists[kind]

    @cached_property
    def _has_human_ones_for_every_split(self) -> bool:
        count = sum(len(each) for asin, each in self._written.items() if self.store.number_of(asin) is not None)
        return count > TEST_GOALS + DEV_GOALS or not len(self.store.array("goal_counts"))

    @cached_property
    def _written(self) -> dict[str, tuple[HumanInstruction, ...]]:
        assert self.files is not None and self.files.human is not None
        return read_human(self.files.human)


def open_catalogue(data: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> Catalogue:
    """Open the catalogue that `data` names; the first call on a machine does the slow work and stores it in the user's cache.

    Args:
        data: the folder of the official files, the path of their file of products, `official` (that of `$WEBSHOP_DATA`), or
            `generated`, with `generated:10000` for so many products. None: `$WEBSHOP_DATA` where it is set, else `generated`.
        progress: called while a catalogue is read for the first time: with (products done, products in total) for a generated one,
            with (megabytes read, megabytes in total) for files.

    Raises:
        EnvError: there are no such files, they cannot be read, or the cache cannot be written.
    """
    variable, said = os.environ.get(VARIABLE), "" if data not in (None, OFFICIAL) else f"${VARIABLE}"
    if data == OFFICIAL and not variable:
        raise EnvError(
            f"data={OFFICIAL!r} needs ${VARIABLE}, the folder of the official files, which is not set. {HOW_TO_GET}"
        )
    asked: Any = variable if data == OFFICIAL else data if data is not None else variable or GENERATED
    if isinstance(asked, str) and "://" in asked:
        raise EnvError(
            f"The products must be in a folder, found the address {asked[:200]!r}{f' ({said})' * bool(said)}. To play on a running server, set data={SERVER!r}, on the command line --env-data {SERVER}."
        )
    if not isinstance(asked, str | os.PathLike):
        raise EnvError(f"data must be a folder or {GENERATED!r}, found {data!r:.200}.")
    count = generated_count(asked, "products", MAX_PRODUCTS)
    files = None if count is not None else find_files(asked, said)
    states = [] if files is None else [_state(path) for path in files.paths()]
    key = f"{GENERATED}-{count or DEFAULT_PRODUCTS}" if files is None else files.products.stem
    key = f"{key}-{hashlib.blake2b(json.dumps([states, _writers()]).encode(), digest_size=8).hexdigest()}"
    with _lock:
        if key not in _opened:
            products = _products(files, count or DEFAULT_PRODUCTS, progress or (lambda done, total: None))
            _opened[key] = Catalogue(_open_store(key, files, states, products), files)
        return _opened[key]


def forget() -> None:
    """The next `open_catalogue` opens anew."""
    with _lock:
        _opened.clear()


def _products(files: Files | None, count: int, progress: Progress) -> Iterator[Product]:
    """The products of files, or as many as are to be generated, with the progress of reading them."""
    if files is None:
        from skill_ttrl.envs.webshop.maker.maker import make_products

        for number, (fields, about) in enumerate(make_products(count), 1):
            yield read_product(fields, about)
            progress(number, count)
        return
    total, told = max(1, files.products.stat().st_size >> 20), -1
    for product, read in read_products(files):
        if (megabytes := min(read >> 20, total)) > told:
            told = megabytes
            progress(told, total)
        yield product
    if told < total:
        progress(total, total)


def _open_store(key: str, files: Files | None, states: list[list[Any]], products: Iterator[Product]) -> Store:
    """The store kept under `key`; made first where there is none, by one process while others that want it wait.

    It appears whole or not at all. What a killed process left is removed by the next that makes one, and so are stores that nobody will open again: those whose files have changed or gone, and
    those that were not opened for `DAYS_UNUSED`. A process that has one open keeps what it has mapped.
    """
    cache = cache_folder("webshop")
    try:
        folder = made_once(cache / key, lambda beside: _make(beside, files, {"files": states}, products))
    except OSError as error:
        raise EnvError(
            f"The catalogue cannot be stored in {cache}: {error.strerror or error}. Free some space, or set XDG_CACHE_HOME to a "
            "folder that can be written."
        ) from error
    try:
        store = Store(folder)
    except (OSError, EOFError, ValueError, LookupError) as error:
        raise EnvError(f"{folder} is damaged: {error}. Remove it, and it is made again.") from error
    with suppress(OSError):  # a cache that may only be read
        os.utime(folder / META)
    return store


def _make(folder: Path, files: Files | None, about: dict[str, Any], products: Iterator[Product]) -> None:
    goals = SyntheticGoals()
    write_store(folder, goals.watch(products), about)
    if files is not None and _is_replaced(about):  # the store's name is of the files as they were before
        raise EnvError(
            f"The files of {files.products} changed while they were being read. Open them again once they are complete."
        )
    for name, array in goals.arrays().items():
        np.save(folder / f"{name}.npy", array)
    for meta in cache_folder("webshop").glob("*/" + META):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # what is no store of ours stays
            if time.time() - meta.stat().st_mtime > DAYS_UNUSED * 86_400 or _is_replaced(json.loads(meta.read_bytes())):
                shutil.rmtree(meta.parent, ignore_errors=True)


def _is_replaced(about: dict[str, Any]) -> bool:
    """True if a file that a store was made from is gone or has changed: the store is useless, and may be as large as its files."""
    return any(not os.path.exists(path) or _state(Path(path)) != [path, *rest] for path, *rest in about["files"])


def _state(path: Path) -> list[Any]:
    stat = path.stat()
    return [str(path), stat.st_size, stat.st_mtime_ns]


@functools.cache
def _writers() -> str:
    """Return a text of all else that a store's content depends on: the code that writes it, and the versions of Unicode and the stemmer.

    Python installations of one machine share the cache, and each has to search with the versions that it indexed with.
    """
    import Stemmer

    shop = Path(__file__).parents[1]
    return f"{digest_of(shop / name for name in _WRITERS)} Unicode {unicodedata.unidata_version} Stemmer {Stemmer.version()}"
