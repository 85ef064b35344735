"""The nouns of a title: the rule, the tagger by name, and what is said where spaCy or its model is missing."""

from __future__ import annotations

import importlib.util
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs.webshop.catalogue.nouns import (
    FUNCTION_WORDS,
    NOUNS,
    NUMBER_WORDS,
    OFTEN_NO_NOUN,
    SMALL_NO_NOUN,
    find_nouns,
    split_title,
)
from skill_ttrl.errors import ConfigError, MissingDependencyError

RULE = find_nouns("rule")


@pytest.mark.parametrize(
    ("title", "tokens"),
    [
        ("Women's Shoes (2 Pack), Black", "Women|'s|Shoes|(|2|Pack|)|,|Black"),
        ("SC-HT830V DVD/VCR", "SC|-|HT830V|DVD|/|VCR"),
        ("2-Pack of 64GB at 4K", "2|-|Pack|of|64|GB|at|4|K"),
        ('5x7 3/4 1.8oz 10.5"', '5x7|3/4|1.8|oz|10.5|"'),
        ("e.l.f. D.O.N. D.o.n. Inc. A.", "e.l.f|.|D.O.N.|D.o.n|.|Inc.|A."),
        ("Wi-Fi&More+ 100% $5", "Wi|-|Fi&More+|100|%|$|5"),
        ("“Soft”…™ 【Gift】", "“|Soft|”|…|™|【|Gift|】"),
        ("", ""),
        (" - ", "-"),
    ],
)
def test_a_title_is_split_as_spacy_splits_it(title: str, tokens: str) -> None:
    assert "|".join(split_title(title)) == tokens


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("Portable Makeup Tweezers", "portable makeup tweezers"),
        ("a portable makeup tweezer for the very soft skin", "makeup tweezer skin"),
        ("Cover Made With Love and FOR YOU in US", "cover love us"),
        ("Two 2 x 3 5x7 12/13 Shoes", "shoes"),
        ("50ml 1080P 64GB", "50ml 1080p gb"),
        ("Oil | Dry Skin 100%", "oil | dry skin %"),
        ("a waterproof washable colourful shoe", "shoe"),
        ("Shoe shoe SHOE", "shoe shoe shoe"),
        ("!!! — … ,", ""),
        ("", ""),
    ],
)
def test_the_rule_finds_nouns_in_small_letters_in_order_with_repetitions(title: str, found: str) -> None:
    assert " ".join(RULE(title)) == found


def test_the_lists_of_words_are_in_small_letters_and_say_each_word_once() -> None:
    lists = [FUNCTION_WORDS, NUMBER_WORDS, OFTEN_NO_NOUN, SMALL_NO_NOUN]
    assert all(word == word.lower() for words in lists for word in words)
    assert not OFTEN_NO_NOUN & SMALL_NO_NOUN, "what is no noun with a capital is none without"


@given(st.text(max_size=60))
def test_every_text_has_nouns_that_are_among_its_tokens(title: str) -> None:
    tokens = split_title(title)
    assert "".join(tokens) == "".join(title.split())
    rest = iter([token.lower() for token in tokens])
    assert all(noun in rest for noun in RULE(title)), "in order"


@pytest.mark.parametrize("chunk", ["(" * 50_000, "1" * 50_000 + "a", "a." * 25_000 + "!" * 25_000, "a-" * 25_000])
def test_a_hostile_title_is_tagged_in_time_that_grows_with_its_length(chunk: str) -> None:
    start = time.perf_counter()
    RULE(chunk)
    assert time.perf_counter() - start < 5, "a quadratic rule takes minutes"


def test_taggers_go_by_name() -> None:
    assert list(NOUNS) == ["rule", "spacy"]
    assert find_nouns("rule").name == "rule"
    with pytest.raises(ConfigError, match=r"Unknown noun tagger 'rules'.*Did you mean 'rule'"):
        find_nouns("rules")


@pytest.fixture
def own_taggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_taggers_of_a_test.py").write_text(
        "class Capitals:\n"
        "    name = 'capitals'\n"
        "    def __call__(self, title):\n"
        "        return tuple(word.lower() for word in title.split() if word[0].isupper())\n"
        "made = Capitals()\n"
        "def nameless(title='x'):\n"
        "    return ()\n"
        "nothing = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_taggers_of_a_test"
    sys.modules.pop("own_taggers_of_a_test", None)


@pytest.mark.parametrize("attribute", ["Capitals", "made"])
def test_a_tagger_of_ones_own_is_a_class_or_a_thing_in_a_module(own_taggers: str, attribute: str) -> None:
    found = find_nouns(f"{own_taggers}:{attribute}")
    assert found.name == "capitals" and found("Red shoe Box") == ("red", "box")


@pytest.mark.parametrize("attribute", ["nameless", "nothing"])
def test_what_is_no_tagger_is_refused(own_taggers: str, attribute: str) -> None:
    with pytest.raises(ConfigError, match="is to be called with a title and to have a `name`"):
        find_nouns(f"{own_taggers}:{attribute}")


def test_without_spacy_its_tagger_says_how_to_install_it_and_auto_is_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingDependencyError, match=r"pip install spacy && python -m spacy download en_core_web_sm"):
        find_nouns("spacy")
    assert find_nouns("auto").name == "rule"


def test_with_spacy_and_without_its_model_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, exclude: list[str]) -> None:
        raise OSError(f"[E050] Can't find model '{name}'.")

    spacy = types.ModuleType("spacy")
    spacy.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    with pytest.raises(MissingDependencyError, match=r"Can't find model 'en_core_web_sm'.*Or choose 'rule'"):
        find_nouns("spacy")


@pytest.mark.skipif(
    not (importlib.util.find_spec("spacy") and importlib.util.find_spec("en_core_web_sm")),
    reason="spaCy's model en_core_web_sm is not installed",
)
def test_where_spacy_and_its_model_are_installed_auto_is_the_official_tagger() -> None:
    official = find_nouns("auto")
    assert official.name.startswith("spacy (en_core_web_sm ")
    assert official("Rusticware Kitchen and Bath Cabinet Knob")[-4:] == ("kitchen", "bath", "cabinet", "knob")
    assert official("") == ()
