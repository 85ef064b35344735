"""WebShop's search: how fast it is on the official products and on a million generated ones, and what quantised lengths change.

    WEBSHOP_DATA=... python benchmarks/webshop_search.py                   # the official files; about half a minute
    python benchmarks/webshop_search.py --products 1180000                 # generated, as many as the full catalogue has; ~20 min
    WEBSHOP_DATA=... python benchmarks/webshop_search.py --json search.json

- queries: of the official files the instructions of the 500 test goals, of generated products those of the first 500 that have
  one; each is searched once unmeasured, then measured once (wall time of `SearchIndex.search` with 50 results, one core)
- first: the same in a process that has just opened the index and never seen the queries (the files are in the page cache)
- memory: of that process after all queries, resident, beyond what it had before it opened the index; nearly all of it are pages of
  the files, which processes share
- building: reading and generating the products is counted apart; the peak is the resident memory of the process that builds,
  with Python, and with the pages of the files it writes
- Lucene: the official engine's arithmetic (lengths of documents kept in one byte, float32) beside the formula's, on the official
  files; ties by ASIN in both
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.envs.webshop.catalogue.product import Product, read_product
from skill_ttrl.envs.webshop.catalogue.search import (
    K1,
    B,
    SearchIndex,
    analyse,
    build_index,
    document_text,
    lucene_lengths,
)
from skill_ttrl.envs.webshop.maker.maker import make_products

QUERIES = 500


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of the official files; $WEBSHOP_DATA where it is not given")
    parser.add_argument("--products", type=int, help="so many generated products instead of the official files")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(_searched(Path(options.only[0]), json.loads(Path(options.only[1]).read_text()))))
        return
    figures: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}",
        "load": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory() as made:
        folder, queries = Path(made) / "index", Path(made) / "queries.json"
        folder.mkdir()
        if options.products is None:
            os.environ["XDG_CACHE_HOME"] = made
            catalogue = open_catalogue(options.data)
            products, source = list(catalogue.store), catalogue.source
            wanted = [goal.instruction for goal in itertools.islice(catalogue.goals("synthetic"), QUERIES)]
            figures["Lucene"] = _beside_lucene(products, wanted)
        else:
            products, source = _generated(options.products), f"generated, {options.products:,} products"
            wanted = _instructions(options.products)
        figures["source"] = source
        figures["building"] = _built(products, folder)
        queries.write_text(json.dumps(wanted))
        command = [sys.executable, __file__, "--only", str(folder), str(queries)]
        said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
        figures["searching"] = json.loads(said)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    _print(figures)


def _generated(count: int) -> Iterator[Product]:
    return (read_product(fields, about) for fields, about in make_products(count))


def _instructions(count: int) -> list[str]:
    instructed = (product.instruction for product in _generated(count) if product.instruction)
    return list(itertools.islice(instructed, QUERIES))


def _built(products: Iterable[Product], folder: Path) -> dict[str, float]:
    """Build the index, with the time that the products take on their way apart."""
    elsewhere = 0.0
    asins: list[str] = []

    def texts() -> Iterator[str]:
        nonlocal elsewhere
        each = iter(products)
        while True:
            begun = time.perf_counter()
            product = next(each, None)
            if product is None:
                return
            text = document_text(product)
            asins.append(product.asin)
            elsewhere += time.perf_counter() - begun
            yield text

    begun = time.perf_counter()
    build_index(texts(), folder, names=asins)
    seconds = time.perf_counter() - begun
    index = SearchIndex(folder)
    return {
        "products": len(index),
        "products made or read, s": elsewhere,
        "index built, s": seconds - elsewhere,
        "peak while building, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "files, MB": sum(path.stat().st_size for path in folder.iterdir()) / 2**20,
    }


def _searched(folder: Path, queries: Sequence[str]) -> dict[str, float]:
    """Open the index and search, in this process."""
    process = psutil.Process()
    before = process.memory_info().rss
    begun = time.perf_counter()
    index = SearchIndex(folder)
    opened = time.perf_counter() - begun
    first = [_timed(index, query) for query in queries]
    again = sorted(_timed(index, query) for query in queries)
    short = [" ".join(analyse(query)[:3]) for query in queries]
    for query in short:
        index.search(query)
    return {
        "queries": len(queries),
        "words of a query": statistics.mean(len(analyse(query)) for query in queries),
        "opened, ms": opened * 1e3,
        "first, p50 ms": statistics.median(first) * 1e3,
        "p50 ms": statistics.median(again) * 1e3,
        "p95 ms": again[int(len(again) * 0.95)] * 1e3,
        "most, ms": again[-1] * 1e3,
        "its first three words, p50 ms": statistics.median(_timed(index, query) for query in short) * 1e3,
        "memory of the index, MB": (process.memory_info().rss - before) / 2**20,
    }


def _timed(index: SearchIndex, query: str) -> float:
    begun = time.perf_counter()
    index.search(query)
    return time.perf_counter() - begun


def _beside_lucene(products: Sequence[Product], queries: Sequence[str]) -> dict[str, float]:
    """How many lists differ from those of the official engine's arithmetic, ours and those with exact lengths."""
    words = [Counter(analyse(document_text(product))) for product in products]
    lengths = [sum(own.values()) for own in words]
    asins = [product.asin for product in products]
    kept = lucene_lengths(np.asarray(lengths)).tolist()
    theirs = _lucene(words, sum(lengths) / len(lengths), kept, asins, queries)
    figures: dict[str, float] = {"queries": len(queries)}
    for name, exact in (("ours", False), ("with exact lengths", True)):
        with tempfile.TemporaryDirectory() as made:
            build_index(map(document_text, products), Path(made), names=asins, exact_lengths=exact)
            index = SearchIndex(Path(made))
            ours = [index.search(query) for query in queries]
        figures[f"{name}: first 10 in another order or others"] = sum(
            a[:10] != b[:10] for a, b in zip(ours, theirs, strict=True)
        )
        figures[f"{name}: others among the first 10"] = sum(
            set(a[:10]) != set(b[:10]) for a, b in zip(ours, theirs, strict=True)
        )
        figures[f"{name}: others among the first 50"] = sum(set(a) != set(b) for a, b in zip(ours, theirs, strict=True))
        figures[f"{name}: mean share of the first 50 that are the same"] = statistics.mean(
            len(set(a) & set(b)) / max(len(a), 1) for a, b in zip(ours, theirs, strict=True)
        )
        figures[f"{name}: another first"] = sum(a[:1] != b[:1] for a, b in zip(ours, theirs, strict=True))
    return figures


def _lucene(
    words: Sequence[Counter[str]], average: float, lengths: Sequence[int], asins: Sequence[str], queries: Sequence[str]
) -> list[list[int]]:
    """The first 50 for each query as `BM25Similarity` of Lucene 8 computes: in float32, added in float64."""
    one, k1, b = np.float32(1), np.float32(K1), np.float32(B)
    inverse_D = one / (k1 * ((one - b) + b * np.asarray(lengths, dtype=np.float32) / np.float32(average)))
    held = Counter(word for own in words for word in own)
    found = []
    for query in queries:
        scores_D = np.zeros(len(words))
        for word in analyse(query):
            if not held[word]:
                continue
            weight = np.float32(math.log(1 + (len(words) - held[word] + 0.5) / (held[word] + 0.5)))
            counts_D = np.asarray([own[word] for own in words], dtype=np.float32)
            scores_D += weight - weight / (one + counts_D * inverse_D)
        rounded = scores_D.astype(np.float32)
        ranked = sorted(np.flatnonzero(rounded > 0).tolist(), key=lambda number: (-rounded[number], asins[number]))
        found.append(ranked[:50])
    return found


def _print(figures: dict[str, Any]) -> None:
    print(f"{figures['source']}. {figures['machine']}, load {figures['load']:.1f}.")
    for part in ("building", "searching", "Lucene"):
        if part in figures:
            print(f"\n| {part} | |\n|---|---|")
            for name, value in figures[part].items():
                digits = 0 if float(value).is_integer() else 3 if value < 10 else 1
                print(f"| {name} | {value:,.{digits}f} |")


if __name__ == "__main__":
    main()
