"""The search of the shop: words as Lucene's English analysis has them, scores by hand, the same ranking as the plain formula."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs.webshop.catalogue import search
from skill_ttrl.envs.webshop.catalogue.product import read_product
from skill_ttrl.envs.webshop.catalogue.search import (
    SearchIndex,
    analyse,
    build_index,
    document_text,
    split_words,
    stem,
)

Build = Callable[..., SearchIndex]

TINY = ["red shoes red", "blue shoes", "green hat green scarf"]
# The lengths that Lucene's one byte can hold, up to 3,864 words: the table that its SmallFloat.byte4ToInt gives.
REMEMBERED = [
    *range(40), *range(40, 56, 2), *range(56, 88, 4), *range(88, 152, 8), *range(152, 280, 16), *range(280, 536, 32),
    *range(536, 1048, 64), *range(1048, 2072, 128), *range(2072, 4120, 256),
]  # fmt: skip


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A function that builds and opens an index of some texts."""
    made = 0

    def build(texts: Sequence[str], names: Sequence[str] | None = None, *, exact_lengths: bool = False) -> SearchIndex:
        nonlocal made
        made += 1
        folder = tmp_path / str(made)
        folder.mkdir()
        build_index(iter(texts), folder, names=names, exact_lengths=exact_lengths)
        return SearchIndex(folder)

    return build


def plain_searcher(texts: Sequence[str]) -> Callable[[str, int], list[int]]:
    """The search of a query by the formula alone: Python's dictionaries, exact sums."""
    words = [Counter(analyse(text)) for text in texts]
    exact = [sum(own.values()) for own in words]
    lengths = [max(kept for kept in REMEMBERED if kept <= length) for length in exact]
    average = sum(exact) / len(texts) or 1.0
    held = Counter(word for own in words for word in own)

    def search(query: str, k: int) -> list[int]:
        wanted = Counter(analyse(query))
        scores = []
        for own, length in zip(words, lengths, strict=True):
            parts = []
            for word, times in wanted.items():
                if f := own[word]:
                    idf = np.float32(math.log(1 + (len(texts) - held[word] + 0.5) / (held[word] + 0.5)))
                    part = float(idf) * (f / (0.9 * ((1 - 0.4) + 0.4 * length / average) + f))
                    parts += [float(np.float32(part))] * times
            scores.append(float(np.float32(math.fsum(parts))))
        ranked = sorted(range(len(texts)), key=lambda number: (-scores[number], number))
        return [number for number in ranked if scores[number] > 0][:k]

    return search


# --- words ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("easy-care T-shirts", ["easi", "care", "t", "shirt"]),
        ("women's men’s kids＇s Levi'S", ["women", "men", "kid", "levi"]),
        ("don't l'eau d'issey", ["don't", "l'eau", "d'issei"]),
        ("size:M size: m size : m", ["size:m", "size", "m", "size", "m"]),
        ("U.S.A. e.g. end.Start", ["u.s.a", "e.g", "end.start"]),
        ("3.5mm 1,000.50 .5 5. 2:1 10'12 a.5 5.a", ["3.5mm", "1,000.50", "5", "5", "2", "1", "10'12", "5", "5"]),
        ("20%off $9.99 50/60hz 4\"x6\"", ["20", "off", "9.99", "50", "60hz", "4", "x6"]),
        ("snake_case _x x_ __ _._", ["snake_cas", "_x", "x_"]),
        ("Café naïve CRÈME", ["café", "naïv", "crème"]),
        ("m² ½ cup ① Ⅳ", ["m", "cup", "ⅳ"]),
        ("日本語 ひら カタカナ 한국어 ภาษาไทย", ["日", "本", "語", "ひ", "ら", "カタカナ", "한국어", "ภาษาไทย"]),
        ("soft\u00adhyphen zero\u200bwidth non\u00a0break", ["soft\u00adhyphen", "zero", "width", "non", "break"]),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
        ("❤❤️🌸 bluetooth™ ©2020 👨\u200d💼 👍🏽 🇺🇸", ["❤", "❤️", "🌸", "bluetooth", "™", "©", "2020", "👨\u200d💼", "👍🏽", "🇺🇸"]),
        ("ＡＢＣ １２ size：m", ["ａｂｃ", "１２", "size：m"]),
        ("ｶﾞﾗｽ (ﾟωﾟ)", ["ｶﾞﾗｽ", "ωﾟ"]),
        ("\ud800 half \udfff a pair", ["half", "pair"]),
        ("", []),
        (" \t\n ...—!? *# ", []),
    ],
)  # fmt: skip
def test_words_end_where_unicode_says_and_are_reduced_as_lucene_does(text: str, words: list[str]) -> None:
    assert analyse(text) == words


def test_stems_are_those_of_porters_program_where_it_departs_from_his_paper() -> None:
    assert [stem(word) for word in ("us", "as", "s", "5s")] == ["us", "as", "s", "5s"]
    assert {stem(word) for word in ("technology", "technologies", "technological")} == {"technolog"}
    assert [stem(word) for word in ("geology", "possibly", "incredibly", "assembly", "assembling", "nobly")] == [
        "geologi",
        "possibl",
        "incred",
        "assembl",
        "assembl",
        "nobli",
    ]
    assert [stem(word) for word in ("trekking", "trekkings", "revved", "waxxed", "filling", "apologying")] == [
        "trek",
        "trek",
        "rev",
        "wax",
        "fill",
        "apolog",
    ]


@given(st.text())
def test_words_stand_in_the_text_in_order_and_any_text_is_analysed(text: str) -> None:
    place = 0
    for word in split_words(text):
        place = text.index(word, place) + len(word)
    assert all(word == word.lower() for word in analyse(text.upper().lower()))


# --- scores ---


def test_scores_of_three_documents_are_those_computed_by_hand(build: Build) -> None:
    index = build(TINY)
    # red: in 1 of 3, so ln(1 + 2.5/1.5) = 0.980829; twice among 3 words, the average: 2 / (2 + 0.9) = 0.689655
    # shoe: in 2 of 3, so ln(1 + 1.5/2.5) = 0.470004; 1 / 1.9 = 0.526316, and among 2 words 1 / (1 + 0.9 * 0.866667) = 0.561798
    assert index.scores("red").tolist() == pytest.approx([0.676434, 0, 0], abs=1e-6)
    assert index.scores("shoes").tolist() == pytest.approx([0.247370, 0.264047, 0], abs=1e-6)
    assert index.scores("RED shoe").tolist() == pytest.approx([0.923804, 0.264047, 0], abs=1e-6)
    # green: 2 / (2 + 0.9 * (0.6 + 0.4 * 4/3)) = 0.662252
    assert index.scores("green").tolist() == pytest.approx([0, 0, 0.649556], abs=1e-6)
    assert index.search("shoes") == [1, 0]
    assert index.search("red shoes") == [0, 1]


def corpus(seed: int, documents: int, words: int = 60) -> list[str]:
    """Texts with few words, so that many score alike, and some of which are the same."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(words)]
    texts = [
        " ".join(f"w{word}" for word in rng.choices(range(words), weights, k=rng.randrange(12)))
        for _ in range(documents)
    ]
    return [rng.choice(texts[: number + 1]) if rng.random() < 0.3 else text for number, text in enumerate(texts)]


@pytest.mark.parametrize("k", [1, 3, 10, 50])
def test_the_ranking_is_that_of_the_plain_formula_whatever_the_size(
    build: Build, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    rng = random.Random(k)
    texts = corpus(k, 260)
    plain = plain_searcher(texts)
    for blocks in (1, 2, 16):  # of few blocks each holds several of these documents, as with a million and 16
        monkeypatch.setattr(search, "BLOCKS", blocks)
        index = build(texts)
        for _ in range(8):
            query = " ".join(f"w{rng.randrange(64)}" for _ in range(rng.randrange(1, 9)))
            assert index.search(query, k) == plain(query, k), query


def test_the_library_opens_the_index_and_has_the_same_scores_to_the_bit(build: Build, tmp_path: Path) -> None:
    texts = [*corpus(9, 150), *TINY]
    index = build(texts, exact_lengths=True)
    theirs = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numpy", csc_backend="numpy")
    theirs.index([analyse(text) for text in texts], show_progress=False)
    opened = bm25s.BM25.load(tmp_path / "1", mmap=True, load_vocab=False)
    assert (opened.k1, opened.b, opened.method, opened.scores["num_docs"]) == (0.9, 0.4, "lucene", len(texts))
    for word in {word for text in texts for word in analyse(text)}:
        expected = theirs.get_scores([word])
        assert np.array_equal(index.scores(word).astype(np.float32), expected)
        assert np.array_equal(opened.get_scores_from_ids([index._number(word)]), expected)


@pytest.mark.slow
def test_the_official_products_are_found_as_by_the_plain_formula(build: Build, official_products: Path) -> None:
    file = next(official_products.glob("items_shuffle*.json"))
    products = [read_product(fields) for fields in json.loads(file.read_bytes())]
    texts = [document_text(product) for product in products]
    index, plain = build(texts), plain_searcher(texts)
    for product in products[::50]:
        assert index.search(product.title) == plain(product.title, 50)
        assert index.search(product.title)[0] == products.index(product)
