"""Other ways to write an answer: each is graded equal and votes with the plain form, and its near misses do neither."""

from __future__ import annotations

import pytest

from skill_ttrl import batch_majority_vote, compute_reward, compute_voting_rewards, grade_answer, majority_vote
from skill_ttrl.answers import equivalent, extract

SAME = {
    "chains": [
        ("3", r"\sqrt{9}=3"),
        ("3", r"\log_2 8 = 3"),
        ("3", "|-3| = 3"),
        ("2", r"\lfloor 2.7 \rfloor = 2"),
        ("5", r"\sqrt{3^2+4^2} = 5"),
        ("5", r"\sqrt{3^2+4^2} = \sqrt{9+16} = \sqrt{25} = 5"),
        ("120", r"5! = 5 \cdot 4 \cdot 3 \cdot 2 \cdot 1 = 120"),
        (r"9\pi", r"\pi \cdot 3^2 = 9\pi"),
        (r"9\pi", r"A = \pi r^2 = \pi \cdot 3^2 = 9\pi"),
        ("120 km", r"d = vt = 60 \cdot 2 = 120 \text{ km}"),
        (r"50\%", r"p = \frac{1}{2} = 50\%"),
        (r"\{1, 2, 3\}", r"A \cup B = \{1, 2, 3\}"),
        (r"\pm 2", r"x = \pm\sqrt{4} = \pm 2"),
        ("5", r"\therefore x = 5"),
        ("5", "∴ x = 5"),
        ("5", r"\Rightarrow x = 2 + 3 = 5"),
    ],
    "named values": [
        (r"\frac13", r"P(A \mid B) = \frac13"),
        (r"\frac13", r"P(A|B) = \frac{P(A \cap B)}{P(B)} = \frac13"),
        ("1/6", "P(X = 2) = 1/6"),
        (r"\frac13", r"\mathbb{P}(A \cap B) = \frac13"),
        (r"\frac13", r"\Pr(X \le 2) = \frac13"),
        ("3", r"\mathbb{E}[X] = 3"),
        ("2", r"\operatorname{Var}(X) = 2"),
        ("15", r"1+2+\dots+5 = 15"),
        ("15", r"1+2+\cdots+5 = \frac{5 \cdot 6}{2} = 15"),
        ("15", "1+2+...+5 = 15"),
        ("15", r"\sum_{k=1}^{5} k = 15"),
        ("2", r"\int_0^2 x\,dx = 2"),
        ("2", r"\int_0^2 x \, \mathrm{d}x = \frac{2^2}{2} = 2"),
        ("1", r"\lim_{x\to 0}\frac{\sin x}{x} = 1"),
        (r"\infty", r"\lim_{n \rightarrow \infty} n^2 = \infty"),
        ("6", r"\det A = 6"),
        ("6", r"\det(A) = 2 \cdot 3 = 6"),
        ("-2", r"\det\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} = -2"),
        ("-2", r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix} = -2"),
        ("6", "|A| = 6"),
        ("7", r"|A \cup B| = 7"),
        ("5", r"\|v\| = 5"),
        ("3", r"\dim V = 3"),
        ("2", r"\dim(\ker T) = 2"),
        ("6", r"\gcd(12, 18) = 6"),
        ("36", r"\operatorname{lcm}(12, 18) = 36"),
        ("3", r"\operatorname{rank} A = 3"),
        ("3", r"\text{rank}(A) = 3"),
        ("3", "rank(A) = 3"),
        ("12", r"\text{Area} = 12"),
        ("7", r"\max(3, 7) = 7"),
        ("6", "f'(2) = 6"),
        (r"30^\circ", r"\angle ABC = 30^\circ"),
        ("7", "f(1, 2) = 7"),
    ],
    "repeating decimals": [
        ("1/3", "0.(3)"),
        ("5/3", "1.(6)"),
        ("7/30", "0.2(3)"),
        ("1/7", "0.(142857)"),
        ("1/3", r"0.\overline{3}"),
        ("1/7", r"0.\overline{142857}"),
        ("1/3", r"0.\dot{3}"),
        ("1/7", r"0.\dot{1}4285\dot{7}"),
        ("-1/6", "-0.1(6)"),
        ("1/3", "x = 0.(3)"),
        (r"\left(\frac13, 1\right)", "(0.(3), 1)"),
        ("1/300", r"0.(3)\%"),
    ],
    "other scripts": [
        (r"15\%", "15％"),
        (r"15\%", "١٥٪"),
        ("123", "١٢٣"),
        ("123", "۱۲۳"),
        ("123", "१२३"),
        ("123", "๑๒๓"),
        ("12", "১২"),
        ("123", "１２３"),
        ("12", "𝟏𝟐"),
        ("12.5", "١٢٫٥"),
        ("1234", "١٬٢٣٤"),
        ("3/4", "３／４"),
        ("3/4", "3∕4"),
        ("(1,2)", "（1，2）"),
        ("(1,2)", "(١، ٢)"),
        ("(1,2)", "（１、２）"),
        ("x+1", "ｘ＋１"),
        ("x=1", "x＝1"),
        ("-5", "‐5"),
        ("-5", "－5"),
        ("x_1^2", "x₁²"),
        (r"\log_2 5", r"\log₂ 5"),
        ("x^n", "xⁿ"),
        (r"\frac58", "⅝"),
        (r"3\frac12", "3½"),
        (r"2\theta", "2θ"),
        (r"30^\circ", "30º"),
        (r"30^\circ", "30∘"),
        (r"30^\circ", r"30\degree"),
        (r"x \ge 2", "x ⩾ 2"),
        ("12", "12。"),
    ],
    "intervals": [
        (r"(-\infty, 2]", r"]-\infty, 2]"),
        ("(1, 2)", "]1, 2["),
        ("[1, 2)", "[1, 2["),
        ("[1, 2)", r"\left[1, 2\right["),
        ("(1, 2)", "]1; 2["),
        (r"(-\infty, 1) \cup (2, \infty)", r"]-\infty, 1[ \cup ]2, +\infty["),
        ("[1, 2) \\cup (3, 4]", r"[1, 2[ \cup ]3, 4]"),
        ("x > 2", r"x \in ]2, \infty["),
        (r"(0, \frac{1}{2})", r"]0, \frac{1}{2}["),
    ],
    "spacing": [
        (r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}", r"\begin{pmatrix} 1 \\[1ex] 3 \\ \end{pmatrix}"),
        (r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}", r"\begin{pmatrix} 1 \\ [-2pt] 3 \end{pmatrix}"),
        (r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}", r"\begin{pmatrix}1\\*3\end{pmatrix}"),
        (r"\begin{pmatrix} 1 & 3 \end{pmatrix}", r"\begin{pmatrix} 1 \hspace{1em} & 3 \end{pmatrix}"),
        (r"1, 2", r"1,\enspace 2"),
    ],
    "units": [
        (r"9.8\ \mathrm{m/s^2}", r"9.8 \frac{\text{m}}{\text{s}^2}"),
        (r"9.8\ \mathrm{m/s^2}", r"9.8 \, \mathrm{m} / \mathrm{s}^2"),
        (r"9.8\ \mathrm{m/s^2}", r"9.8 \text{ m} \cdot \text{s}^{-2}"),
        (r"9.8\ \mathrm{m/s^2}", r"9.8\,\mathrm{m}\,\mathrm{s}^{-2}"),
        (r"9.8\ \mathrm{m/s^2}", r"9.8\,\mathrm{m\,s^{-2}}"),
        (r"9.8\ \mathrm{m/s^2}", "9.8 m/s²"),
        (r"9.8\ \mathrm{m/s^2}", "9.8 m/s^2"),
        (r"9.8\ \mathrm{m/s^2}", r"9.8 \mathrm{\frac{m}{s^2}}"),
        (r"60 \text{ km/h}", r"60 \frac{\text{km}}{\text{h}}"),
        (r"60 \text{ km/h}", r"60 \dfrac{\mathrm{km}}{\mathrm{hr}}"),
        (r"60 \text{ km/h}", r"60\,\mathrm{km}\,\mathrm{h}^{-1}"),
        (r"60 \text{ km/h}", "60 kilometers per hour"),
        (r"15 \text{ cm}^2", "15 cm²"),
        (r"15 \text{ cm}^2", r"15\,\mathrm{cm}^{2}"),
        (r"15 \text{ cm}^2", r"15 \text{ sq. cm}"),
        (r"15 \text{ cm}^2", r"15\ \mathrm{cm^2}"),
        (r"2 \text{ cm}^3/\text{s}", r"2 \frac{\text{cm}^3}{\text{s}}"),
    ],
}
DIFFERENT = [
    ("3", r"\log_2 8 = 4"),
    ("4", r"\log_2 8 = 4"),
    ("5", r"\sqrt{25} = -5"),
    ("-5", r"\sqrt{25} = -5"),
    ("120", "5! = 125"),
    ("125", "5! = 125"),
    ("3", r"\lfloor 2.7 \rfloor = 3"),
    ("2", r"\lfloor 2.7 \rfloor = 3"),
    ("5", r"\sqrt{3^2+4^2} = 7 = 5"),
    (r"6\pi", r"\pi \cdot 3^2 = 6\pi"),
    (r"\{1, 2\}", r"\{1, 2\} = \{1, 3\}"),
    ("6", "2x = 2 + 4 = 6 = y"),
    ("9", "x^2 = 9"),
    ("3", "x^2 = 9"),
    ("6", "x(x+1) = 6"),
    ("5", r"\text{no solution if } x = 5"),
    ("5", "only if x = 5"),
    ("x = 5", r"\text{except}(x) = 5"),
    ("5", "not x = 5"),
    ("6", r"\det A = 5"),
    ("6", r"\det A = 6, \det B = 7"),
    (r"\frac13", r"P(A \mid B) = \frac23"),
    ("1/3", "0.3"),
    ("1/3", "0.(4)"),
    ("1/3", "0.3(4)"),
    ("6", "2(3) = 7"),
    ("123", "١٢٤"),
    ("123", "１２４"),
    ("8", "৪"),
    ("x^2", "x₂"),
    ("x", "х"),
    ("21", "2¹"),
    (r"(-\infty, 2]", r"]-\infty, 2["),
    ("[1, 2]", "]1, 2["),
    ("[1, 2]", "[1, 2["),
    (r"9.8\ \mathrm{m/s^2}", r"9.8 \frac{\text{s}}{\text{m}^2}"),
    (r"9.8\ \mathrm{m/s^2}", r"9.8 \frac{\text{m}}{\text{s}}"),
    (r"9.8\ \mathrm{m/s^2}", r"9.8 \text{ m} \cdot \text{s}^{2}"),
    (r"15 \text{ cm}^2", r"15 \text{ cm}^3"),
    (r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \end{pmatrix}"),
]


@pytest.mark.parametrize(("reference", "answer"), [pair for pairs in SAME.values() for pair in pairs])
def test_another_form_of_the_same_answer(reference: str, answer: str) -> None:
    assert grade_answer(answer, reference)["score"] == 1
    assert grade_answer(reference, answer)["score"] == 1
    assert equivalent(answer, reference)
    assert majority_vote([answer, reference, "no"]).matches == (True, True, False)


@pytest.mark.parametrize(("reference", "answer"), DIFFERENT)
def test_a_near_miss_is_another_answer(reference: str, answer: str) -> None:
    assert grade_answer(answer, reference)["score"] == 0
    assert not equivalent(answer, reference)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"The answer is 12. Mark your solution with \boxed", "12"),
        (r"The answer is 12. Mark your solution with \boxed.", "12"),
        (r"The answer is 12. Write it in `\boxed`.", "12"),
        (r"The answer is 12. It goes into a \boxed environment.", "12"),
        ("The answer is 12.\nUse \\fbox", "12"),
        (r"The answer is 12. Put it in \boxed{}", "12"),
        (r"\boxed{12} is what \boxed{ } is for", "12"),
        (r"so \boxed 12.", "12"),
        (r"so \boxed{12} and \boxed", "12"),
        (r"so $\boxed C$", "C"),
        (r"so \boxed-5", "-5"),
        (r"\boxed", None),
    ],
)
def test_a_box_without_a_value_is_no_mark(text: str, answer: str | None) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize("missing", ["NaN", "nan", float("nan"), None])
def test_a_true_answer_that_is_missing_is_met_by_nothing(missing: object) -> None:
    for answer in ("NaN", "nan", "42"):
        assert grade_answer(answer, missing)["score"] == 0  # type: ignore[arg-type]
        assert compute_reward(f"<answer>{answer}</answer>", missing)["score"] == 0  # type: ignore[arg-type]


def test_numbers_are_answers() -> None:
    assert grade_answer(42, 42) == {"score": 1.0, "match_type": "exact", "predicted_answer": "42"}
    assert grade_answer("42.0", 42)["match_type"] == "numeric"
    assert compute_reward("so <answer>42</answer>", 42)["score"] == 1
    assert compute_reward("so <answer>0.5</answer>", 0.5)["score"] == 1
    vote = majority_vote([42, "42", 41, None, 2.5])
    assert (vote.answer, vote.matches) == ("42", (True, True, False, False, False))
    assert batch_majority_vote([[1, 2, 2]])[0].answer == "2"
    assert compute_voting_rewards([1, 1, 2]) == ([1.0, 1.0, 0.0], "1", 2 / 3)


@pytest.mark.parametrize("wrong", [["4"], {"answer": 4}, b"4", True])
def test_what_is_no_answer_is_refused_in_words(wrong: object) -> None:
    for call in (
        lambda: grade_answer(wrong, "4"),  # type: ignore[arg-type]
        lambda: compute_reward("<answer>4</answer>", wrong),  # type: ignore[arg-type]
        lambda: majority_vote([wrong]),  # type: ignore[list-item]
        lambda: batch_majority_vote([[wrong]]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError, match=f"An answer is a text or a number, found {type(wrong).__name__}"):
            call()
