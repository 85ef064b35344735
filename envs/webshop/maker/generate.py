"""The generated catalogue as files in the official schema, for who wants to look at them, or another size or seed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.envs.webshop.catalogue.catalogue import GENERATED_FILE
from skill_ttrl.envs.webshop.catalogue.files import ABOUT, HUMAN, PRODUCTS
from skill_ttrl.envs.webshop.maker.maker import DEFAULT_PRODUCTS, GENERATOR, MAX_PRODUCTS, SEED, make_products
from skill_ttrl.errors import EnvError
from skill_ttrl.progress import Counting, Progress, SilentProgress
from skill_ttrl.signals import StopSignal
from skill_ttrl.storage.cache import remove_unfinished, unfinished
from skill_ttrl.storage.files import acquire_lock, fsync, release_lock, write_atomic

SCHEMA = 1
TELL_EVERY = 1_000
_encode = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class GeneratedCatalogue:
    """A catalogue as `run` leaves it."""

    folder: str
    """Value for `data`."""
    products: int
    """In the folder now."""
    written: int
    """By this call: all of them or, where they were there, none."""
    seed: int
    seconds: float


def run(
    output: str | Path, products: int = DEFAULT_PRODUCTS, *, seed: int = SEED, progress: Progress | None = None
) -> GeneratedCatalogue:
    """Write `items_shuffle.json` and `items_ins_v2.json`, whole or not at all, as `skillttrl envs generate webshop` does.

    `generated.json` next to them describes them. The same call again finds them and writes nothing; after an interrupted call it
    starts from the beginning. 1,000 products take 1.3 MB and a tenth of a second, 1.18 million 1.5 GB and two minutes of one core.

    Args:
        output: value for `data`; created if missing. It may contain other files.
        products: how many, from 1 to `MAX_PRODUCTS`. A smaller catalogue is the beginning of a larger one with the same seed.
        seed: seed of all random choices, 0 or above.
        progress: reports the products written.

    Raises:
        EnvError: an argument is out of range, the folder has another catalogue, or it cannot be written.
        RunFolderError: another process is writing there.
        Interrupted: a signal came; no part of the catalogue is there.
    """
    started, folder = time.monotonic(), Path(output)
    if not 1 <= products <= MAX_PRODUCTS:
        raise EnvError(f"Choose from 1 to {MAX_PRODUCTS:,} products, found {products:,}.")
    if seed < 0:
        raise EnvError(f"A seed is 0 or above, found {seed}.")
    wanted = {"schema": SCHEMA, "generator": GENERATOR, "products": products, "seed": seed}
    count = Counting(progress or SilentProgress(), "products", "product")
    try:
        with StopSignal() as stop, stop.interruptible("Stopped. Nothing was written; the same command starts again."):
            there = _is_there(folder, wanted)  # or is refused, before anything is touched
            if not there:
                folder.mkdir(parents=True, exist_ok=True)
                lock = acquire_lock(folder)
                try:
                    there = _is_there(folder, wanted)
                    if not there:
                        _write(folder, wanted, count)
                finally:
                    release_lock(folder, lock)
    except OSError as error:
        raise EnvError(
            f"Cannot write a catalogue to {folder}: {error.strerror or error}. Free some space, or choose another folder."
        ) from error
    return GeneratedCatalogue(
        str(output), products, 0 if there else products, seed, round(time.monotonic() - started, 1)
    )


def _is_there(folder: Path, wanted: dict[str, Any]) -> bool:
    """True if the folder contains the whole catalogue; False if it contains none, or a part of it.

    Raises:
        EnvError: it contains another catalogue.
    """
    record = _read_record(folder)
    there = sorted(each.name for name in (PRODUCTS, ABOUT, HUMAN) for each in folder.glob(f"{name}*.json"))
    if not there:
        return False
    if record is None:
        raise EnvError(f"{folder} has {there[0]}, which this command did not generate. Choose another folder.")
    if record != wanted:
        raise EnvError(
            f"{folder} already has another generated catalogue: {record['products']} products of seed {record['seed']}. Choose "
            "another folder."
        )
    return {f"{PRODUCTS}.json", f"{ABOUT}.json"} <= set(there)


def _write(folder: Path, wanted: dict[str, Any], progress: Callable[[int, int], None]) -> None:
    remove_unfinished(folder)
    with unfinished(folder) as beside:
        _write_files(beside, wanted["products"], wanted["seed"], progress)
        # The record first: files without one would be taken for official ones. The file of products last: a catalogue is
        # found by it, and where it is, the other is too.
        write_atomic(folder / GENERATED_FILE, (json.dumps(wanted, indent=1) + "\n").encode())
        for name in (ABOUT, PRODUCTS):
            os.replace(beside / f"{name}.json", folder / f"{name}.json")
    fsync(folder)


def _write_files(folder: Path, count: int, seed: int, progress: Callable[[int, int], None]) -> None:
    """Both files at once, product by product: a catalogue may be larger than the memory."""
    with (
        open(folder / f"{PRODUCTS}.json", "w", encoding="utf-8", newline="\n") as products,
        open(folder / f"{ABOUT}.json", "w", encoding="utf-8", newline="\n") as known,
    ):
        products.write("[\n")
        known.write("{")
        before = "\n"
        progress(0, count)
        for number, (fields, about) in enumerate(make_products(count, seed), 1):
            products.write(_encode(fields) + (",\n" if number < count else "\n"))
            if about is not None:
                known.write(f"{before}{_encode(fields['asin'])}: {_encode(about)}")
                before = ",\n"
            if number % TELL_EVERY == 0 or number == count:
                progress(number, count)
        products.write("]\n")
        known.write("\n}\n")
        for stream in (products, known):
            stream.flush()
            os.fsync(stream.fileno())


def _read_record(folder: Path) -> dict[str, Any] | None:
    path = folder / GENERATED_FILE
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise EnvError(f"{path} cannot be read: {error}. Choose another folder.") from None
    if not isinstance(record, dict) or not {"schema", "products", "seed"} <= set(record):
        raise EnvError(f"{path} is not a record of a generated catalogue. Choose another folder.")
    return record
