"""A catalogue as it is kept on a machine: written once, mapped into memory by every process that shops in it.

The full official catalogue has 1.18 million products, 5 GB of JSON. Nothing of it is held by an environment: products, search
index and the order of the goals are files in the user's cache, whose pages all environments of a machine share.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.envs.webshop.catalogue.product import Product
from skill_ttrl.envs.webshop.catalogue.search import SearchIndex, build_index, document_text
from skill_ttrl.errors import EnvError
from skill_ttrl.storage.files import cache_folder, fsync, made_whole, remove_unfinished, waiting_for, write_atomic

KEPT_PRODUCTS = 2048
"""Products that a process keeps read."""
_META = "catalogue.json"
_SIZES = "sizes.json"
"""File → bytes of a whole store, written last."""


class Store:
    """The products of one catalogue, in its order, and the search in them.

    Args:
        folder: what `write_store` has made.

    Raises:
        OSError: a file is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / _META).read_bytes())
        """Metadata that `write_store` stored, with the count of `products`."""
        self._lines = np.memmap(folder / "products.jsonl", dtype=np.uint8, mode="r")
        # All at once: what is mapped stays, even when another process removes the folder. As plain arrays: each look into a
        # `memmap` costs microseconds more.
        self._arrays = {path.stem: np.asarray(np.load(path, mmap_mode="r")) for path in folder.glob("*.npy")}
        if missing := {"ends", "asins", "numbers"} - self._arrays.keys():
            raise FileNotFoundError(f"{folder} has no {min(missing)}.npy")
        self._ends, self._asins = self._arrays["ends"], self._arrays["asins"]
        self._longest = self._asins.dtype.itemsize // np.dtype("U1").itemsize
        self.search_index = SearchIndex(folder / "index")
        self._read = lru_cache(maxsize=KEPT_PRODUCTS)(self._parse)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> Product:
        return self._read(range(len(self))[number])

    def __iter__(self) -> Iterator[Product]:
        """Every product once, without keeping it."""
        return (self._parse(number) for number in range(len(self)))

    def number_of(self, asin: str) -> int | None:
        """Where a product stands; None: it is not there."""
        if len(asin) > self._longest:
            return None
        place = int(np.searchsorted(self._asins, asin))
        if place == len(self._asins) or str(self._asins[place]) != asin:
            return None
        return int(self._arrays["numbers"][place])

    def array(self, name: str) -> NDArray[Any]:
        """Return an array that was stored next to the products, memory-mapped."""
        return self._arrays[name]

    def _parse(self, number: int) -> Product:
        start = 0 if number == 0 else int(self._ends[number - 1])
        fields = json.loads(self._lines[start : int(self._ends[number])].tobytes())
        values = [tuple(value) if type(value) is list else value for value in fields]
        product: dict[str, Any] = dict(zip(Product.__slots__, values, strict=True))
        product["options"] = {name: tuple(offered) for name, offered in product["options"].items()}
        return Product(**product)


def write_store(folder: Path, products: Iterator[Product], about: dict[str, Any]) -> None:
    """Write products and their search index into an empty folder.

    Args:
        folder: exists and is empty.
        products: in the order of the catalogue; no two with the same ASIN.
        about: plain data that is stored with them; `products`, their count, is added.
    """
    ends: list[int] = []
    asins: list[str] = []

    def documents() -> Iterator[str]:
        written = 0
        with open(folder / "products.jsonl", "wb") as lines:
            for product in products:
                line = json.dumps([getattr(product, name) for name in Product.__slots__], ensure_ascii=False)
                # Half of a surrogate pair, which some parsers that ijson can find let through, is "?" as in the other files.
                written += lines.write(line.encode(errors="replace") + b"\n")
                ends.append(written)
                asins.append(product.asin)
                yield document_text(product)

    (folder / "index").mkdir()
    # Equal scores stand in the order of the ASINs, as in the official engine.
    build_index(documents(), folder / "index", names=asins)
    order = np.argsort(np.asarray(asins), kind="stable")
    np.save(folder / "ends.npy", np.asarray(ends, dtype=np.int64))
    np.save(folder / "asins.npy", np.asarray(asins)[order])
    np.save(folder / "numbers.npy", order.astype(np.int32))
    (folder / _META).write_text(json.dumps({**about, "products": len(ends)}), encoding="utf-8")


def open_store(key: str, make: Callable[[Path], None]) -> Store:
    """The store kept under `key`; made first where there is none, by one process while others that want it wait.

    It appears whole or not at all; one of which a file has gone or has another size is made again. What a killed process left
    is removed by the next that makes one.

    Args:
        key: a name of letters, digits and dashes that no other catalogue has.
        make: fills an empty folder.

    Raises:
        EnvError: the cache cannot be written.
    """
    cache = cache_folder("webshop")
    folder = cache / key
    try:
        if not _is_whole(folder):
            cache.mkdir(parents=True, exist_ok=True)
            with waiting_for(cache / ".stores.lock"):
                if not _is_whole(folder):
                    _make_whole(folder, make)
        store = Store(folder)
    except OSError as error:
        raise EnvError(
            f"The catalogue cannot be stored in {cache}: {error.strerror or error}. Free some space, or set XDG_CACHE_HOME to a "
            "folder that can be written."
        ) from error
    with suppress(OSError):  # a cache that may only be read
        os.utime(folder / _META)
    return store


def forget_stores(cache: Path, unused: Callable[[dict[str, Any]], bool], days: float) -> None:
    """Remove stores that nobody will open again. A process that has one open keeps what it has mapped.

    Those are `unused`, by what was said of them when they were written, or were not opened for so many days.
    """
    for meta in cache.glob("*/" + _META):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # what is no store of ours stays
            about = json.loads(meta.read_bytes())
            if time.time() - meta.stat().st_mtime > days * 86_400 or unused(about):
                shutil.rmtree(meta.parent, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / _SIZES).read_bytes())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _make_whole(folder: Path, make: Callable[[Path], None]) -> None:
    remove_unfinished(folder.parent)
    with made_whole(folder) as beside:
        make(beside)
        files = [path for path in beside.rglob("*") if path.is_file()]
        for path in files:  # a machine that stops now leaves no store of the right sizes with nothing in it
            fsync(path)
        sizes = {str(path.relative_to(beside)): path.stat().st_size for path in files}
        write_atomic(beside / _SIZES, json.dumps(sizes).encode())
