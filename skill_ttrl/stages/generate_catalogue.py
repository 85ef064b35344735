"""A catalogue of our own for WebShop, into a folder: `skillttrl envs generate webshop`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from skill_ttrl.envs.webshop.maker.generate import write_catalogue
from skill_ttrl.envs.webshop.maker.maker import DEFAULT_PRODUCTS, SEED
from skill_ttrl.progress import Counting, Progress, SilentProgress
from skill_ttrl.signals import StopSignal

PHASE = "products"


@dataclass(frozen=True, slots=True)
class GeneratedCatalogue:
    """What `run` has made."""

    folder: str
    """What `data` takes."""
    products: int
    """In the folder now."""
    written: int
    """By this call: all of them or, where they were there, none."""
    seed: int
    seconds: float


def run(
    output: str | Path,
    products: int = DEFAULT_PRODUCTS,
    *,
    seed: int = SEED,
    progress: Progress | None = None,
) -> GeneratedCatalogue:
    """Make a catalogue in the official schema.

    Args:
        output: the folder, which must not have another catalogue.
        products: how many there are to be.
        seed: of everything that is drawn.
        progress: told after every thousand products.

    Raises:
        EnvError: see `write_catalogue`.
        RunFolderError: another process is writing there.
        Interrupted: a signal came; no part of the catalogue is there.
    """
    started = time.monotonic()
    tell = Counting(progress or SilentProgress(), PHASE, "product")
    with StopSignal() as stop, stop.interruptible("Stopped. Nothing was written; the same command begins anew."):
        written = write_catalogue(output, products, seed, tell)
    return GeneratedCatalogue(str(output), products, written, seed, round(time.monotonic() - started, 1))
