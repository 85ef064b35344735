"""WebShop's catalogue as it is kept on a machine: whole or not at all, made once, noticed when its files change."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.envs.webshop.catalogue import catalogue as catalogue_module
from skill_ttrl.envs.webshop.catalogue.catalogue import forget, open_catalogue
from skill_ttrl.envs.webshop.catalogue.product import Product, read_product
from skill_ttrl.envs.webshop.catalogue.search import Store, write_store
from skill_ttrl.errors import EnvError
from tests.webshop_files import LAMPS, LAMPS_ABOUT, LAMPS_HUMAN, product, wanted, write_catalogue


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where stores are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache" / "skill-ttrl" / "webshop"
    forget()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_catalogue(tmp_path / "data", LAMPS, LAMPS_ABOUT, LAMPS_HUMAN)


def stores(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def elsewhere(code: str, *arguments: Any, **kwargs: Any) -> subprocess.Popen[str]:
    """Python in a process of its own, with this one's cache."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PRODUCTS = st.builds(
    Product,
    asin=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=10),
    title=TEXTS, description=TEXTS,
    bullets=st.lists(TEXTS, max_size=3).map(tuple),
    category=TEXTS, query=TEXTS, product_category=TEXTS,
    prices=st.lists(st.floats(0.01, 1e6), min_size=1, max_size=2).map(tuple),
    options=st.dictionaries(TEXTS, st.lists(TEXTS, max_size=3).map(tuple), max_size=3),
    attributes=st.lists(TEXTS, min_size=1, max_size=3).map(tuple),
    instruction=st.none() | TEXTS,
    instruction_attributes=st.lists(TEXTS, max_size=3).map(tuple),
)  # fmt: skip


@settings(max_examples=25)
@given(st.lists(PRODUCTS, max_size=6, unique_by=lambda product: product.asin))
def test_products_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, products: list[Product]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    write_store(folder, iter(products or [read_product(product("B0LAMP0001"))]), {})
    store = Store(folder)
    if products:
        assert list(store) == products == [store[number] for number in range(len(store))]
        assert [store.number_of(each.asin) for each in products] == list(range(len(products)))
        assert store[-1] == products[-1]
        assert all(type(price) is float for each in store for price in each.prices)
    with pytest.raises(IndexError):
        store[len(store)]


def test_a_changed_file_is_noticed_and_its_old_store_removed(cache: Path, data: Path) -> None:
    """Who has the old one open keeps it."""
    old = open_catalogue(data)
    write_catalogue(data, [product("B0NEWONE01")], {"B0NEWONE01": wanted()})
    new = open_catalogue(data)
    assert [each.asin for each in new.store] == ["B0NEWONE01"]
    assert [cache / name for name in stores(cache)] == [new.store.folder] and not old.store.folder.exists()
    assert [each.asin for each in old.store] == [each["asin"] for each in LAMPS]
    assert len(old.goals("synthetic")) == 7 and old.goals("synthetic").find("B0LAMP0002-0") >= 0
    assert old.store.search_index.search("sofa") == [2]


def test_stores_of_files_that_are_gone_and_unused_ones_are_removed(cache: Path, data: Path, tmp_path: Path) -> None:
    gone = open_catalogue(write_catalogue(tmp_path / "gone", LAMPS, LAMPS_ABOUT)).store.folder
    unused = open_catalogue(write_catalogue(tmp_path / "unused", LAMPS, LAMPS_ABOUT)).store.folder
    used = open_catalogue(write_catalogue(tmp_path / "used", LAMPS, LAMPS_ABOUT)).store.folder
    shutil.rmtree(tmp_path / "gone")
    for number, foreign in enumerate(("[]", "{}", '{"files": 3}', "?")):
        (cache / f"foreign{number}").mkdir()
        (cache / f"foreign{number}" / "catalogue.json").write_text(foreign)
    for folder in (unused, used):
        long_ago = time.time() - 31 * 86_400
        os.utime(folder / "catalogue.json", (long_ago, long_ago))
    forget()
    open_catalogue(tmp_path / "used")
    new = open_catalogue(data).store.folder
    assert sorted([used.name, new.name, *(f"foreign{number}" for number in range(4))]) == stores(cache)
    assert not gone.exists() and not unused.exists()


def test_every_file_that_a_store_depends_on_is_known() -> None:
    """Files that the writers import or read decide what a store holds as well."""
    shop = Path(catalogue_module.__file__).parents[1]
    names = set(catalogue_module._WRITERS)
    texts = [(shop / name).read_text(encoding="utf-8") for name in names]
    imports = re.compile(r"^\s*from skill_ttrl\.envs\.webshop\.([\w.]+) import", re.M)
    imported = {f"{found.replace('.', '/')}.py" for text in texts for found in imports.findall(text)}
    data = {str(path.relative_to(shop)) for path in shop.glob("maker/*.toml")}
    assert {"catalogue/product.py"} <= imported <= names and len(data) == 2 and data <= names


def test_a_store_that_is_damaged_is_named_and_made_again_once_it_is_removed(cache: Path, data: Path) -> None:
    folder = open_catalogue(data).store.folder
    for name in ("products.jsonl", "ends.npy", "index/ranks.npy", "catalogue.json"):
        with open(folder / name, "r+b") as file:
            file.truncate(0)
        forget()
        with pytest.raises(EnvError, match=f"{folder} is damaged"):
            open_catalogue(data)
        shutil.rmtree(folder)
        assert len(open_catalogue(data).store) == 4, name


FILLED = """
import subprocess, sys
from pathlib import Path
from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.errors import EnvError
for kilobytes in (600, 1260, 1420):
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", sys.argv[1]], check=True)
    print("filled", flush=True)
    try:
        open_catalogue("generated")
    except EnvError as error:
        print(error, [str(path) for path in Path(sys.argv[1]).rglob("*") if path.name not in (".lock", "skill-ttrl", "webshop")])
    subprocess.run(["umount", sys.argv[1]], check=True)
"""


@pytest.mark.slow
def test_a_disk_that_fills_up_anywhere_is_an_error_and_never_the_end_of_the_process(cache: Path) -> None:
    """Also while the index is written, which is written through the memory: there the system sends a signal."""
    (disk := cache.parent.parent).mkdir()
    in_own_mounts = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", FILLED, str(disk)]
    try:
        done = subprocess.run(in_own_mounts, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs unshare")
    if "filled" not in done.stdout:
        pytest.skip(f"needs a file system of its own: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line != "filled"]
    assert len(lines) == 3 and all("cannot be stored in" in line and line.endswith(" []") for line in lines), (
        done.stdout
    )


SLOW = """
import sys, time
from skill_ttrl.envs.webshop.catalogue import catalogue
write = catalogue.write_store
def slow(folder, products, about):
    def watched():
        for product in products:
            yield product
            print("read", flush=True)
            time.sleep(float(sys.argv[2]))
    write(folder, watched(), about)
catalogue.write_store = slow
found = catalogue.open_catalogue(sys.argv[1])
print(len(found.store), found.store.folder, flush=True)
"""


def test_a_process_that_is_killed_while_it_makes_a_store_leaves_none(cache: Path, data: Path) -> None:
    process = elsewhere(SLOW, data, 60)
    assert process.stdout is not None and process.stdout.readline() == "read\n"
    left = stores(cache)
    assert len(left) == 1 and left[0].startswith(".making-")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    found = open_catalogue(data)
    assert len(found.store) == 4 and stores(cache) == [found.store.folder.name]


@pytest.mark.slow
def test_two_processes_at_once_make_one_store(cache: Path, data: Path) -> None:
    """The second waits for the first, which is still at it, and makes nothing."""
    first = elsewhere(SLOW, data, 0.5)
    assert first.stdout is not None and first.stdout.readline() == "read\n"
    second = elsewhere(SLOW, data, 0.5)
    said = [process.communicate(timeout=60) for process in (first, second)]
    lines = [output.splitlines() for output, _ in said]
    assert lines[0] == ["read"] * 3 + lines[1] and len(lines[1]) == 1, said
    assert lines[1][0].startswith("4 ") and stores(cache) == [Path(lines[1][0][2:]).name]
