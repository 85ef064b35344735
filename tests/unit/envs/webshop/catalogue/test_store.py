"""WebShop's catalogue as it is kept on a machine: whole or not at all, made once, noticed when its files change."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.envs.webshop.catalogue import catalogue as catalogue_module
from skill_ttrl.envs.webshop.catalogue import store as store_module
from skill_ttrl.envs.webshop.catalogue.catalogue import forget, open_catalogue
from skill_ttrl.envs.webshop.catalogue.product import Product, read_product
from skill_ttrl.envs.webshop.catalogue.store import Store, open_store, write_store
from skill_ttrl.errors import EnvError
from tests.webshop_files import LAMPS, LAMPS_ABOUT, LAMPS_HUMAN, options, product, wanted, write_catalogue


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


LAMP = [read_product(product("B0ONE00001", "Lamp"), None)]


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
    title=TEXTS,
    description=TEXTS,
    bullets=st.lists(TEXTS, max_size=3).map(tuple),
    category=TEXTS,
    query=TEXTS,
    product_category=TEXTS,
    prices=st.lists(st.floats(0.01, 1e6), min_size=1, max_size=2).map(tuple),
    options=st.dictionaries(TEXTS, st.lists(TEXTS, max_size=3).map(tuple), max_size=3),
    attributes=st.lists(TEXTS, min_size=1, max_size=3).map(tuple),
    instruction=st.none() | TEXTS,
    instruction_attributes=st.lists(TEXTS, max_size=3).map(tuple),
    image=TEXTS,
)


@settings(max_examples=25)
@given(st.lists(PRODUCTS, max_size=6, unique_by=lambda product: product.asin))
def test_products_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, products: list[Product]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    write_store(folder, iter(products or [read_product(product("B0LAMP0001"))]), {})
    store = Store(folder)
    if products:
        assert list(store) == products == store[:] == [store[number] for number in range(len(store))]
        assert [store.number_of(each.asin) for each in products] == list(range(len(products)))
        assert store[-1] == products[-1]
        assert all(type(price) is float for each in store for price in each.prices)
    with pytest.raises(IndexError):
        store[len(store)]


@pytest.mark.parametrize(
    "asin", ["", "B0LAMP000", "B0LAMP0001\0", "b0lamp0001", "B0LAMP00010", "x" * 10**6, "\ud800", "A", "Z"]
)
def test_a_product_that_is_not_there_is_none(cache: Path, data: Path, asin: str) -> None:
    store = open_catalogue(data).store
    assert store.number_of(asin) is None and store.number_of("B0LAMP0001") == 0


def test_one_process_opens_a_catalogue_once(cache: Path, data: Path) -> None:
    told: list[tuple[int, int]] = []
    first = open_catalogue(data, lambda done, total: told.append((done, total)))
    assert open_catalogue(str(data)) is first and open_catalogue(data / "items_shuffle.json") is first
    assert told[-1] == (1, 1) and len(stores(cache)) == 1
    assert first.store.about["products"] == 4
    del told[:]
    forget()
    again = open_catalogue(data, lambda done, total: told.append((done, total)))
    assert again is not first and list(again.store) == list(first.store) and told == []


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


@pytest.mark.parametrize("name", ["items_ins_v2.json", "items_human_ins.json"])
def test_every_file_of_a_catalogue_is_looked_at(cache: Path, data: Path, name: str) -> None:
    first = open_catalogue(data)
    os.utime(data / name, ns=(0, 0))
    assert open_catalogue(data) is not first
    (data / "items_human_ins.json").unlink()
    assert open_catalogue(data).files != first.files


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


def test_what_other_code_has_written_is_written_anew(cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_catalogue(data)
    monkeypatch.setattr(catalogue_module, "_writers", lambda: "another version")
    assert open_catalogue(data).store.folder != first.store.folder
    # Both versions may be in use: neither takes the other's away.
    assert len(stores(cache)) == 2


def test_every_file_that_a_store_depends_on_is_known() -> None:
    """Files that the writers import or read decide what a store holds as well."""
    shop = Path(catalogue_module.__file__).parents[1]
    names = set(catalogue_module._WRITERS)
    texts = [(shop / name).read_text(encoding="utf-8") for name in names]
    imports = re.compile(r"^\s*from skill_ttrl\.envs\.webshop\.([\w.]+) import", re.M)
    imported = {f"{found.replace('.', '/')}.py" for text in texts for found in imports.findall(text)}
    data = {str(path.relative_to(shop)) for path in shop.glob("maker/*.toml")}
    assert {"goal.py", "catalogue/product.py"} <= imported <= names and len(data) == 2 and data <= names


@pytest.mark.parametrize("changed", ["unicodedata.unidata_version", "Stemmer.version"])
def test_another_python_or_stemmer_makes_a_store_of_its_own(
    cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """What is a letter and what a stem differs between them: an index answers only queries that are cut up like its texts."""
    first = open_catalogue(data)
    monkeypatch.setattr(changed, "99.0" if "unidata" in changed else lambda: "99.0")
    catalogue_module._writers.cache_clear()
    try:
        assert open_catalogue(data).store.folder != first.store.folder
    finally:
        catalogue_module._writers.cache_clear()


@pytest.mark.parametrize("harm", ["removed", "cut", "emptied"])
def test_a_store_that_is_not_whole_is_made_again(cache: Path, data: Path, harm: str) -> None:
    folder = open_catalogue(data).store.folder
    before = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in ("products.jsonl", "goal_order.npy", "index/words.bin", "catalogue.json", "sizes.json"):
        if harm == "removed":
            (folder / name).unlink()
        else:
            with open(folder / name, "r+b") as file:
                file.truncate(0 if harm == "emptied" else len(before[Path(name)]) - 1)
        forget()
        assert len(open_catalogue(data).store) == 4, name
        assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert stores(cache) == [folder.name]


def test_a_cache_that_is_removed_meanwhile_is_made_again(cache: Path, data: Path) -> None:
    first = open_catalogue(data)
    shutil.rmtree(cache)
    assert open_catalogue(data) is first and first.store[2].title == "Grey Sofa"
    forget()
    assert open_catalogue(data).store[2].title == "Grey Sofa"


@pytest.mark.parametrize("times", [1, 99])
def test_a_store_that_another_process_removes_just_then_is_made_again(
    cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    opened: list[Path] = []

    def removed(folder: Path) -> Store:
        opened.append(folder)
        if len(opened) <= times:
            shutil.rmtree(folder)
        return Store(folder)

    monkeypatch.setattr(store_module, "Store", removed)
    if times == 1:
        assert open_catalogue(data).store[2].title == "Grey Sofa" and len(opened) == 2
    else:
        with pytest.raises(EnvError, match="was removed while it was opened, 5 times"):
            open_catalogue(data)


@pytest.mark.parametrize("name", ["ends.npy", "asins.npy", "numbers.npy", "goal_order.npy", "goal_products.npy"])
def test_a_store_of_which_only_a_part_was_still_there_is_opened_again(
    cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its files go one after the other: an array that is gone when they are listed is missed by nobody who lists them."""
    opened: list[Path] = []

    def half_removed(folder: Path) -> Store:
        opened.append(folder)
        if len(opened) == 1:
            (folder / name).unlink()
        return Store(folder)

    monkeypatch.setattr(store_module, "Store", half_removed)
    goals = open_catalogue(data).goals("synthetic")
    assert len(goals) == 7 and goals[goals.find("B0LAMP0002-0")].asin == "B0LAMP0002" and len(opened) == 2


def test_files_that_change_while_they_are_read_make_no_store(
    cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stand under the name of what they were before, and be found there by who puts that back."""
    write = store_module.write_store

    def changed(folder: Path, products: Iterator[Product], about: dict[str, Any]) -> None:
        write_catalogue(data, [product("B0NEWONE01")], {"B0NEWONE01": wanted()})
        write(folder, products, about)

    with monkeypatch.context() as patch:
        patch.setattr(catalogue_module, "write_store", changed)
        with pytest.raises(EnvError, match=r"data/items_shuffle\.json have changed while they were read"):
            open_catalogue(data)
    assert stores(cache) == [] and [each.asin for each in open_catalogue(data).store] == ["B0NEWONE01"]


@pytest.mark.parametrize("blocked", ["a file in its place", "a file as its parent"])
def test_a_cache_that_cannot_be_written_is_an_error_that_says_where(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, blocked: str
) -> None:
    forget()
    parent = tmp_path / "blocked"
    if blocked == "a file as its parent":
        parent.write_text("")
    else:
        (parent / "skill-ttrl").mkdir(parents=True)
        (parent / "skill-ttrl" / "webshop").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(parent))
    with pytest.raises(
        EnvError, match=r"The catalogue cannot be kept in .*/blocked/skill-ttrl/webshop: .*XDG_CACHE_HOME"
    ):
        open_catalogue(data)


FULL = """
import resource, sys
from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.errors import EnvError
resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    open_catalogue(sys.argv[1])
except EnvError as error:
    print(error)
"""


def test_a_disk_that_takes_no_more_leaves_nothing_behind(cache: Path, data: Path) -> None:
    said, problems = elsewhere(FULL, data).communicate(timeout=60)
    assert "cannot be kept in" in said and "File too large" in said, problems
    assert stores(cache) == []


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
        print(error, [str(path) for path in Path(sys.argv[1]).rglob("*") if path.suffix != ".lock" and path.name not in ("skill-ttrl", "webshop")])
    subprocess.run(["umount", sys.argv[1]], check=True)
"""


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
    assert len(lines) == 3 and all("cannot be kept in" in line and line.endswith(" []") for line in lines), done.stdout


SLOW = """
import sys, time
from skill_ttrl.envs.webshop.catalogue import catalogue, store
write = store.write_store
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
    assert len(left) == 1 and left[0].endswith(".making")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    found = open_catalogue(data)
    assert len(found.store) == 4 and stores(cache) == [found.store.folder.name]


def test_two_processes_at_once_make_one_store(cache: Path, data: Path) -> None:
    """The second waits for the first, which is still at it, and makes nothing."""
    first = elsewhere(SLOW, data, 0.5)
    assert first.stdout is not None and first.stdout.readline() == "read\n"
    second = elsewhere(SLOW, data, 0.5)
    said = [process.communicate(timeout=60) for process in (first, second)]
    lines = [output.splitlines() for output, _ in said]
    assert lines[0] == ["read"] * 3 + lines[1] and len(lines[1]) == 1, said
    assert lines[1][0].startswith("4 ") and stores(cache) == [Path(lines[1][0][2:]).name]


def test_a_whole_store_is_opened_from_a_cache_that_cannot_be_written(cache: Path, data: Path) -> None:
    """Neither a lock nor a date is needed for it."""
    folder = open_catalogue(data).store.folder
    lock = cache / f".{folder.name}.lock"
    lock.unlink()
    lock.mkdir()  # what cannot be locked
    forget()
    assert open_catalogue(data).store.folder == folder
    (folder / "ends.npy").unlink()
    forget()
    with pytest.raises(EnvError, match="cannot be kept in"):
        open_catalogue(data)


def test_making_one_catalogue_does_not_keep_others_waiting(cache: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(folder: Path) -> None:
        begun.set()
        assert go_on.wait(60)
        write_store(folder, iter(LAMP), {})

    slow = threading.Thread(target=open_store, args=("slow", slowly), daemon=True)
    slow.start()
    try:
        assert begun.wait(60)
        quick = threading.Thread(
            target=open_store, args=("quick", lambda folder: write_store(folder, iter(LAMP), {})), daemon=True
        )
        quick.start()
        quick.join(30)
        assert stores(cache) == [".slow.making", "quick"], "what another makes is left alone"
    finally:
        go_on.set()
    slow.join(60)
    assert stores(cache) == ["quick", "slow"]


def test_a_process_opens_one_catalogue_while_it_makes_another(cache: Path, data: Path, tmp_path: Path) -> None:
    other = write_catalogue(tmp_path / "other", LAMPS)
    found: list[str] = []

    def opens_another(done: int, total: int) -> None:
        if not found:
            thread = threading.Thread(target=lambda: found.append(open_catalogue(other).source), daemon=True)
            thread.start()
            thread.join(30)

    open_catalogue(data, opens_another)
    assert found == ["official, 4 products"]


def test_option_values_and_words_of_any_script_are_kept(cache: Path, tmp_path: Path) -> None:
    odd = product("B0ODD00001", "Lampe für Köche 😀 数", customization_options=options(größe=("½ Zoll", "数")))
    found = open_catalogue(write_catalogue(tmp_path / "odd", [odd])).store
    assert found[0].title == "Lampe für Köche 😀 数" and found[0].options == {"größe": ("½ zoll", "数")}
    assert found.search_index.search("KÖCHE") == [0] and found.search_index.search("zzz") == []
    assert replace(found[0], title="x") != found[0] and hash(replace(found[0], title="x")) == hash(found[0])


def test_the_store_is_plain_data(cache: Path, data: Path) -> None:
    """Nothing of it is executed when it is read: JSON, arrays of numbers and text."""
    folder = open_catalogue(data).store.folder
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert kinds == {".json", ".jsonl", ".npy", ".bin"}
    for line in (folder / "products.jsonl").read_text(encoding="utf-8").splitlines():
        assert isinstance(json.loads(line), list)
