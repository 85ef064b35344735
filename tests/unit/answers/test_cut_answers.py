"""No text ends the reader: every beginning of an answer is decided, and what is nested is decided by the text, not by the stack."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.answers.equivalence import EquivalenceResult, decide

GRAMMAR = [
    r"0.1\overline{6}", r"0.\bar{3}", r".\overline{3}", r"\sqrt[3]{\frac{1}{2}}", r"\log_{2} \left( 8 \right)", r"\sin^{-1} \frac{1}{2}",
    r"\lfloor 2.5 \rfloor + \lceil \pi \rceil", r"\left| -5 \right|", r"\binom{5}{2} \binom52", r"{5 \choose 2}", r"{1 \over 2}", r"1A_{16}",
    r"x \in \{5, 6\} \cup \{7\}", r"f^{-1}(x) = \frac{x - 3}{2}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}", r"\langle 1, 2 \rangle",
    r"(x, y) = (1, 2)", r"-3 \le x_{1} < \infty", r"2^{3^{2}}!\%", r"30^{\circ}", r"3 \text{ million } \text{ dollars}", r"x = 1 \text{ or } x = 2",
    r"1 \pm \sqrt{2} \mp \mathrm{i}", r"\mathbb{R}", "1*----5", "2**3/4/5", "exp(2, 3)", "root(8, 3)", "x⁻¹²", "5 km/h", "10_{2}",
]  # fmt: skip
REAL = [
    r"\left( 3, \frac{\pi}{2} \right)", r"\text{Evelyn}", r"90^\circ", "6 - 5i", "52_8", "4210_{5}", r"\$32,\!348", r"864 \mbox{ inches}^2", "(3,4]",
    r"1\frac{4}{5}", r"x \in [-2,7]", r"\{1\pm\sqrt{5},-2\}", "y = 2x + 3", r"50\%", r"11\sqrt2", r"(0,9) \cup (9,36)", "5x - 7y + 11z + 4 = 0",
]  # fmt: skip
CASES = json.loads((Path(__file__).parents[2] / "data" / "hostile_answers.json").read_text())["cases"]
SHORT = [
    parts for family in CASES.values() for parts in family.values() if all(isinstance(part, str) for part in parts)
]
HOSTILE = [text for text in map("".join, SHORT) if len(text) < 100]
ALL = [*REAL, *GRAMMAR, *HOSTILE]


def check_decided(text: str) -> None:
    """`decide` itself gives a verdict or a tree, whatever the worker would say."""
    for written in (text, f"  {text} ", f"{{{text}", f"1, {text}", f"x = {text}"):
        found = decide(written)
        assert isinstance(found, EquivalenceResult | tuple)
        assert found == decide(written)


@given(st.sampled_from(ALL), st.sampled_from(ALL), st.integers(0, 100), st.integers(0, 100))
def test_no_two_halves_of_answers_are_an_error(first: str, second: str, begin: int, end: int) -> None:
    check_decided(first[:begin] + second[end:])


@pytest.mark.slow
def test_no_beginning_of_an_answer_is_an_error() -> None:
    for number, whole in enumerate(ALL):  # of each a third of its beginnings
        for end in range(number % 3, len(whole) + 1, 3):
            check_decided(whole[:end])


@pytest.mark.parametrize("text", ["1*" + "-" * 250 + "5", "5" + "!" * 300, "5" + "%" * 300, "1" + "/1" * 190, "1" + r"\pm1" * 190,
                                  r"\sin" * 300 + "x", r"\sqrt" * 300 + "2", r"\frac1" * 300, "x" + "^{2}" * 90, "1" + "/1*1" * 90,
                                  "(" * 19 + "1" + ")" * 19, r"\sqrt{" * 20 + "2" + "}" * 20, "2^{" * 20 + "2" + "}" * 20, r"\frac{1}{" * 39 + "2" + "}" * 39,
                                  r"\{(" * 9 + "1" + r")\}" * 9, r"\sin\left(" * 13 + "x" + ")" * 13, "(" * 20 + "1" + ")^{2}" * 20, "||" * 10 + "5" + "||" * 10])  # fmt: skip
def test_a_key_does_not_depend_on_the_stack_that_is_left(text: str) -> None:
    def below(frames: int) -> Any:
        return decide(text) if not frames else below(frames - 1)

    shallow = decide(text)
    left = sys.getrecursionlimit() - len(inspect.stack(0))
    assert below(left - 450) == shallow
