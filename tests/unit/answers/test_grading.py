"""Grading against a reference: what it accepts that votes keep apart, what it does not, and that votes stay an equivalence."""

from __future__ import annotations

import itertools
import time

import pytest

from skill_ttrl.answers import canonical, compute_reward, correct, equivalent, extract, grade_answer
from skill_ttrl.voting import majority_vote

ACCEPTED = {
    "several boxes": [
        (r"Hence \boxed{2} and \boxed{3}.", "2, 3"),
        (r"Hence \boxed{3}, \boxed{2}", r"\{2, 3\}"),
        (r"\(\boxed{7}\) or \(\boxed{9}\)", "9, 7"),
        (r"\[\boxed{(1, 2)} \quad \text{and} \quad \boxed{(2, 1)}\]", "(2, 1), (1, 2)"),
        (r"It takes \boxed{4} boxes and \boxed{6} lids.", "4, 6"),
        (r"Then $a = \boxed{4}$ and $b = \boxed{6}$.", "4, 6"),
        (r"\boxed{5}, \boxed{5}", "5"),
    ],
    "order": [
        (r"\boxed{\{8, 1, 4\}}", "1, 4, 8"),
        (r"\boxed{(3, 5)}", "5, 3"),
        (r"\boxed{B, C, A}", r"\{A, B, C\}"),
        (r"\boxed{2, 2, 3}", "2, 3"),
        (r"\boxed{\{1, 3\}}", "(1, 3)"),
    ],
    "names": [
        (r"\boxed{x = 5}", "5"),
        (r"\boxed{5}", "x = 5"),
        (r"\boxed{4, 5}", "AB=4, CD=5"),
        (r"\boxed{m = 4, n = 5}", "4, 5"),
        (r"\boxed{(4, 5)}", "m = 4, n = 5"),
        (r"\boxed{7, 3}", "x_1 = 3, x_2 = 7"),
        (r"\boxed{x = 3 \text{ or } x = 7}", "7, 3"),
        (r"\boxed{(1,2), (3,4)}", "p=1, q=2; p=3, q=4"),
        (r"\boxed{(x, y) = (1, 2) \text{ and } (3, 4)}", "(1,2), (3,4)"),
        (r"\boxed{\frac{2}{7}}", r"\frac{AB}{CD} = \frac{2}{7}"),
        (r"\boxed{3:8}", "S_1:S_2 = 3:8"),
        (r"\boxed{3}", "|PQ| = 3"),
        (r"\boxed{a = 2 + 4 = 6}", "a = 6"),
        (r"\boxed{x \approx 4.5}", "4.5"),
        (r"\boxed{\frac{2}{7} \approx 0.286}", r"\frac{2}{7}"),
    ],
    "decimals": [
        (r"\boxed{\frac{2}{7}}", "0.29"),
        (r"\boxed{2.7182818}", "2.718"),
        (r"\boxed{\pi}", "3.14"),
        (r"\boxed{(\sqrt{2}, 1/3)}", "(1.414, 0.333)"),
        (r"\boxed{0.2857}", r"\frac{2}{7}"),
        (r"\boxed{1{,}234.567}", "1234.57"),
    ],
    "inequalities": [
        (r"\boxed{-x > -2}", "x < 2"),
        (r"\boxed{3x + 1 \le 7}", r"x \le 2"),
        (r"\boxed{5 > 1 - 2y}", r"y > -2"),
        (r"\boxed{(-2, 4]}", r"-2 < t \le 4"),
        (r"\boxed{-2 < t \le 4}", r"(-2, 4]"),
        (r"\boxed{1 < 2x + 3 < 5}", "(-1, 1)"),
        (r"\boxed{(2, 3)}", "2 < f(x) < 3"),
    ],
    "money, percent, marks": [
        ("So the price is 250.75€", "250.75"),
        (r"\boxed{250.75€}", "250.75"),
        ("35 pct", r"35\%"),
        (r"\boxed{35 percentage}", r"35\%"),
        (r"\boxed{35}", r"35\%"),
        (r"\boxed{35\%}", "35"),
        ("2 500 000", "2500000"),
        (r"\boxed{12,5}", "12.5"),
        ("0,125", "0.125"),
        (r"\boxed{\\frac{1}{2}}", r"\frac{1}{2}"),
    ],
    "sums": [
        (r"\boxed{\sum_{k=1}^{n} a_{n-k} b_k}", r"\sum_{k=1}^{n} b_k a_{n-k}"),
        (r"\boxed{S_n = 1 + \sum_{j=0}^{n-1} S_j S_{n-1-j}}", r"S_n = \sum_{j=0}^{n-1} S_{n-1-j} S_{j} + 1"),
    ],
    "units": [
        (r"\boxed{5}", r"5 \text{ cm}"),
        (r"\boxed{5 \text{ centimeters}}", "5 cm"),
        (r"\boxed{5 \text{ miles per hour}}", "5 mph"),
        (r"\boxed{9\mbox{ m}^2}", r"9 \text{ square meters}"),
        (r"\boxed{\$5}", r"5 \text{ dollars}"),
        (r"\boxed{90}", r"90^\circ"),
    ],
    "matrices": [
        (
            r"\boxed{\left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right]}",
            r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        ),
        (
            r"\boxed{\begin{pmatrix} 1 & 1 \\ 0 & 1 \end{pmatrix}\begin{pmatrix} 2 \\ 3 \end{pmatrix}}",
            r"\begin{pmatrix} 5 \\ 3 \end{pmatrix}",
        ),
        (
            r"\boxed{2\begin{pmatrix} 1 \\ x \end{pmatrix} - \begin{pmatrix} 1 \\ x \end{pmatrix}}",
            r"\begin{pmatrix} 1 \\ x \end{pmatrix}",
        ),
    ],
    "unmarked": [
        ("$14$", "14"),
        ("Thus $y \\ge 3$ holds.", r"y \geq 3"),
        ("Let $k$ be 2. Hence, there are 14 of them.", "14"),
        ("We add. Final Answer: The largest $n$ is 34.", "34"),
        ("7", "so 3 + 4 = 7\n#### 7"),
        ("The answer is the number $14$ as before.", "14"),
    ],
}
REFUSED = [
    (r"\boxed{2} is wrong, it is \boxed{3}", "2, 3"),
    (r"\boxed{2}. So \boxed{3}", "2, 3"),
    (r"\boxed{2} and \boxed{3}", "3"),
    (r"\boxed{2, 3, 4}", "2, 3"),
    (r"\boxed{5, 8}", "5, 5, 8"),
    (r"\boxed{(2, 1)}", "(1, 2)"),
    (r"\boxed{\{2, 1\}}", "(1, 2)"),
    (r"\boxed{[1, 2]}", "(1, 2)"),
    (r"\boxed{C, B, A}", "A, B, C"),
    (r"\boxed{x = 2, y = 1}", "x = 1, y = 2"),
    (r"\boxed{1, 2}", "x = 2, y = 1"),
    (r"\boxed{x = 2, y = 1}", "1, 2"),
    (r"\boxed{2}", "x = 1, y = 2"),
    (r"\boxed{(2, 1)}", "x = 1, y = 2"),
    (r"\boxed{1}", "2x + z = 1"),
    (r"\boxed{11a + c}", "7 = 11a + c"),
    (r"\boxed{0.3}", "1/3"),
    (r"\boxed{0.333}", "1/3"),
    (r"\boxed{0.3}", "0.33"),
    (r"\boxed{0.54}", "0.5"),
    (r"\boxed{7.0001}", "7"),
    (r"\boxed{0.34}", "0.333"),
    (r"\boxed{-x > -2}", "x > 2"),
    (r"\boxed{x < 2}", r"x \le 2"),
    (r"\boxed{28}", "0.28"),
    (r"\boxed{28}", r"\frac{28}{100}"),
    (r"\boxed{28\%}", r"2800"),
    (r"\boxed{12,5}", "125"),
    (r"\boxed{-2.1}", "-2,1"),
    (r"\boxed{0.5\%}", "0.5"),
    (r"\boxed{\frac12\%}", r"\frac12"),
    (r"\boxed{1, 25}", "125"),
    (r"\boxed{\sum_{k=1}^{n} a_k}", r"\sum_{k=1}^{n+1} a_k"),
    (r"\boxed{5 \text{ km}}", r"5 \text{ cm}"),
    (r"\boxed{15 \text{ cm}}", r"15 \text{ cm}^2"),
    (r"\boxed{5 \text{ cents}}", r"\$5"),
    (r"\boxed{5€}", r"£5"),
    (r"\boxed{5 \text{ km/h}}", "5 mph"),
    ("no idea, 42", "42"),
    ("The answer is any number but $42$.", "42"),
    ("Answer $ \n 9 \n $", "9"),
]


@pytest.mark.parametrize(
    ("text", "reference"),
    [case for cases in ACCEPTED.values() for case in cases],
    ids=lambda text: text.replace("\n", " ")[:50],
)
def test_a_response_that_a_grader_accepts(text: str, reference: str) -> None:
    assert compute_reward(text, reference)["score"] == 1.0


@pytest.mark.parametrize(("text", "reference"), REFUSED, ids=lambda text: text.replace("\n", " ")[:50])
def test_a_response_that_a_grader_does_not_accept(text: str, reference: str) -> None:
    assert compute_reward(text, reference) | {"score": 0.0, "match_type": "none"} == compute_reward(text, reference)


def test_what_made_them_the_same() -> None:
    assert grade_answer("x = 5", "5")["match_type"] == "numeric"
    assert grade_answer("4, 5", "AB=4, CD=5")["match_type"] == "lenient"
    assert compute_reward("$9$", "9")["extraction"] == "whole"
    assert compute_reward("Answer \\[ \n 9 \n \\]", "9")["extraction"] == "formula"
    assert compute_reward("Hence it is 9, as was to be shown.", "9")["extraction"] == "conclusion"
    assert correct([("5", "5 cm"), (None, "5"), ("5", None), ("6", "5")]) == [True, False, False, False]


def test_what_grading_accepts_leaves_the_vote_an_equivalence() -> None:
    """Keys of everything above: one relation, whatever grading holds together."""
    answers = sorted(
        {found for cases in ACCEPTED.values() for text, true in cases for found in (extract(text), true) if found}
    )
    keys = {answer: canonical(answer) for answer in answers}
    for a, b in itertools.product(answers, repeat=2):
        assert equivalent(a, b) == (keys[a] is not None and keys[a] == keys[b])
    # 50 % may answer both, which are two answers.
    assert correct([(r"50\%", "50"), (r"50\%", "0.5"), ("50", "0.5")]) == [True, True, False]
    assert not equivalent(r"50\%", "50")


@pytest.mark.parametrize(
    ("answers", "sizes"),
    [
        (["5", "5 cm", "5 centimeters", "7"], [3, 1]),
        (["5 cm", "5 km", "5 cm"], [2, 1]),
        (["5", "5 cm", "5 km", "5"], [2, 1, 1]),
        (["5", "5 cm", "6 km", "6"], [2, 2]),
        (["5 apples", "5"], [2]),
    ],
)
def test_a_missing_unit_is_the_one_that_the_others_state(answers: list[str], sizes: list[int]) -> None:
    for order in itertools.permutations(answers):
        vote = majority_vote(order)
        assert sorted((count for _, count in vote.classes), reverse=True) == sizes
        winner = [answer for answer, match in zip(order, vote.matches, strict=True) if match]
        assert sum(vote.matches) == sizes[0] and len({answer.split()[0] for answer in winner}) == 1


@pytest.mark.parametrize(
    "hostile",
    [
        "x = 2 + 3 = 9**9**9**9",
        "a = " * 400 + "5",
        ", ".join(f"x_{place} = {place}" for place in range(200)),
        "(" * 900 + "1, 2" + ")" * 900,
        "≈" * 1500,
        "1,2" * 600,
        "%" * 1900,
        r"\sum_{k=0}^{9} " * 100 + "k",
        r"\begin{matrix}" + "1 & " * 300 + r"1 \end{matrix}" * 2,
    ],
    ids=lambda text: text[:15],
)
def test_what_is_tried_in_other_words_is_bounded(hostile: str) -> None:
    began = time.perf_counter()
    assert grade_answer(hostile, "4, 7")["score"] == 0.0
    assert grade_answer("4, 7", hostile)["score"] == 0.0
    assert time.perf_counter() - began < 20.0  # each rewriting has the time limit of one answer


@pytest.mark.parametrize("denial", ["isn't", "isn’t", "cannot be", "can’t be"])
def test_a_formula_in_words_that_deny_it_is_no_answer(denial: str) -> None:
    assert compute_reward(f"Answer: It {denial} $9$", "9")["score"] == 0
    assert compute_reward("Answer: It is the number $9$", "9")["score"] == 1
