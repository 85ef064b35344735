"""The nouns of a title."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.envs.webshop.catalogue.nouns import nouns_of, split_title


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
    assert " ".join(nouns_of(title)) == found


@given(st.text(max_size=60))
def test_every_text_has_nouns_that_are_among_its_tokens(title: str) -> None:
    tokens = split_title(title)
    assert "".join(tokens) == "".join(title.split())
    rest = iter([token.lower() for token in tokens])
    assert all(noun in rest for noun in nouns_of(title)), "in order"
