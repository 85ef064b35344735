"""Checks: which answers satisfy them, that an answer can only be a value there, and which texts are no check."""

from __future__ import annotations

import time

import pytest

from skill_ttrl.answers import conditions, satisfied

HOSTILE = [
    "x",
    "x + 0",
    "x + 7 = 25",
    "x = x",
    "0/0",
    "oo",
    "nan",
    "18, 19",
    r"\pm 18",
    "18) + (0",
    "9^{9^{9}}",
    "(" * 900,
    "1" * 3000,
]
CASES: dict[str, tuple[list[str], list[str | None]]] = {
    "x + 7 = 25": (["18", "18.0", "x = 18", r"\boxed{\frac{36}{2}}", "18 apples", "1800%"], [None, "", "17", "y", "17 = 18", *HOSTILE]),
    "2x = 10": (["5"], ["-5", "0) + (10", "5; 5", *HOSTILE]),
    "x^2 - 5x + 6 = 0": (["2", "3", r"\sqrt[3]{8}"], ["2, 3", "2 or 3", "4", *HOSTILE]),
    "x^2 = 2": ([r"\sqrt{2}", r"x = -\sqrt2", "sqrt(2) cm"], ["1.414", r"\sqrt{2} million", r"\pm\sqrt2", *HOSTILE]),
    "x^x = 27": (["3"], ["10^1000", "2^{5000}", *HOSTILE]),
    "6/x = 2": (["3"], ["0", "1/0"]),
    "x/x = 1": (["3"], ["0", "0/1"]),
    "0 < x <= 5, x^2 = 4": (["2"], ["-2"]),
    "x ≠ 3; x > 0": (["4", r"\pi"], ["3", "-1", "i"]),
    "x = 1,000": (["1000", "1,000"], ["1", "0"]),
}  # fmt: skip
"""Check → answers that satisfy it, and answers that do not."""


@pytest.mark.parametrize("check", CASES)
def test_an_answer_takes_the_place_of_the_unknown(check: str) -> None:
    right, wrong = CASES[check]
    began = time.process_time()
    assert satisfied([*right, *wrong], check) == [True] * len(right) + [False] * len(wrong)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "text", ["", "x", "1 = 1", "x + = 3", "x y = 3", "xx = 4", "x < oo", "(x, 1) = (2, 1)", "open('x') = x", "9" * 9000 + "= x"]
)  # fmt: skip
def test_what_is_no_check_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        conditions(text)
