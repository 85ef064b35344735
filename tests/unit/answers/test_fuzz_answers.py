"""Fuzzing: whatever is written, the grader answers, the same each time; and expressions of known value are equal exactly when their values are.

The values are computed here, in exact arithmetic of this file's own (`Value`): fractions, x and y, π and eˣ as symbols of no
relation, √2, i, √x and cos x with their squares. `pytest -m slow tests/unit/answers` runs the same checks on fifty times as many examples.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skill_ttrl.answers import (
    bare_key,
    canonical,
    canonicals,
    compute_reward,
    correct,
    equivalent,
    extract,
    grade_answer,
    true_answer,
    verdict,
)
from skill_ttrl.voting import batch_majority_vote, majority_vote

Check = Callable[..., None]

PIECES = [
    *"0123456789xyzabnkieRCIE+-*/^_=<>()[]{}|,.;:!%&$#~'\"\\ \n\t", "12", "1.5", ".5", "1,000", "10,\\!080", "1e5", "0x1", "1_000",
    "\\frac", "\\frac{1}{2}", "\\frac12", "\\dfrac{", "}{", "\\sqrt", "\\sqrt{2}", "\\sqrt[3]{", "\\left(", "\\right)", "\\left[",
    "\\right]", "\\{", "\\}", "\\pi", "\\infty", "\\pm", "\\mp", "\\cup", "\\in", "\\le", "\\ge", "\\ne", "\\cdot", "\\times", "\\div",
    "\\text{", "\\text{ cm}", "\\text{ or }", "\\mathrm{", "\\mbox{ inches}^2", "^\\circ", "\\%", "\\$", "\\,", "\\!", "\\ ", "\\\\",
    "\\sin", "\\cos x", "\\tan^{-1}", "\\log_2", "\\ln(", "\\binom{5}{2}", "\\binom", "!", "\\begin{pmatrix}", "\\end{pmatrix}", "&",
    "\\begin{cases}", "\\overline{3}", "\\boxed{", "\\def\\x{", "\\input{", "_8", "_{10}", " or ", " and ", "x \\in ", "x = ", "**", "//",
    "==", "lambda x:", "__import__('os')", ".__class__", "eval(", "f'{", "None", "True", "nan", "inf", "oo", "zoo", "Symbol", "I", "E",
    "1j", "π", "∞", "√", "²", "½", "−", "×", "·", "≤", "∪", "±", "°", "٣", "１", "х", "\u200b", "\u202e", "\ufeff", "\x00", "\x1b[31m",
    "\ud800", "\u0301", "𝟏", "ß", "ı", "<answer>", "</answer>", "answer is", "\\(", "\\)", "\\[", "\\]", "$$",
]  # fmt: skip
ANSWERS = [
    r"\left( 3, \frac{\pi}{2} \right)", "p - q", r"\frac{14}{3}", r"\text{Evelyn}", r"90^\circ", r"3\sqrt{13}", "6 - 5i", r"\pi",
    "x=5", "1,-2", "52_8", r"11\sqrt2", "1.25", "x^5 - x^4 + x^3 - x^2 + x - 1", "(6,31,-1)", "x^3+3x-6", r"\cot x", r"1 \pm \sqrt{19}",
    r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}", "(a+5)(b+2)", "(3,4]", r"\frac43", "1+274i", "4210_{5}", ".0000672",
    r"\frac{270}7\text{ degrees}", "5x - 7y + 11z + 4 = 0", r"(2,\infty)", r"10,\!080", r"\text{(C)}", r"\frac 59", r"\$32,\!348",
    r"864 \mbox{ inches}^2", r"1\frac{4}{5}", r"\left(\frac{3}{5},\frac{8}{3}\right]", r"5.4 \text{ cents}", r"(-\infty, 0]",
    r"\frac{11+9a}{20}", r"(0,9) \cup (9,36)", r"\frac{20000}{\pi}", r"x \in [-2,7]", r"\{1\pm\sqrt{5},-2\}", "3R^2", "y = 2x + 3",
    r"137 \frac{1}{2}", "58,500", r"50\%", "42", "-7", "0", r"\emptyset", r"\frac{\sqrt{3}}{3}", r"2^{10}", "10!", r"\log_2 8",
]  # fmt: skip
DATA = Path(__file__).parents[3].parent / "shared" / "data" / "math" / "math.json"

pieces = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A real answer with pieces cut out, doubled, exchanged, or taken from another."""
    text = draw(st.sampled_from(ANSWERS))
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, len(text)))
        end = draw(st.integers(begin, min(len(text), begin + 6)))
        other = draw(st.sampled_from(ANSWERS))
        inserted = draw(st.sampled_from(["", text[begin:end] * 2, other[begin:end], other, *PIECES]))
        text = text[:begin] + inserted + text[end:]
    return text


texts = st.one_of(pieces, mutated(), st.text(st.characters(exclude_categories=()), max_size=20))


# Whatever is written.


def check_anything(text: str) -> None:
    """Nothing raises, and what is said of one text agrees with itself."""
    key = canonical(text)
    assert key is None or (isinstance(key, str) and key)
    assert canonical(text) == key and canonicals([text, None, text]) == [key, None, key]
    assert equivalent(text, text) == (key is not None)
    if any(character.isalnum() for character in text):
        assert key is not None
    graded = grade_answer(text, text)
    right = key is not None and true_answer(text) is not None
    assert graded["score"] == float(right) and (graded["match_type"] == "none") != right
    for whole in (text, f"so \\boxed{{{text}}}", f"<answer>{text}</answer>", f"the answer is {text}"):
        found = extract(whole)
        for answer in (found, extract(whole, last_number=True)):
            assert answer is None or answer == answer.strip() != ""
        assert compute_reward(whole, "1")["score"] >= float(found is not None and equivalent(found, "1"))


def check_equivalence(many: list[str]) -> None:
    """Reflexive, symmetric, transitive; keys and `equivalent` are one relation, and grading accepts all of it."""
    keys = canonicals(many)
    related = {(a, b) for a in range(len(many)) for b in range(len(many)) if equivalent(many[a], many[b])}
    for a in range(len(many)):
        for b in range(len(many)):
            same = keys[a] is not None and keys[a] == keys[b]
            assert ((a, b) in related) == same == ((b, a) in related)
            assert (grade_answer(many[a], many[b])["score"] == 1.0) >= (same and true_answer(many[b]) is not None)
            assert all((a, c) in related for c in range(len(many)) if (a, b) in related and (b, c) in related)


def check_votes(many: list[str | None], order: random.Random) -> None:
    """The winner's class and who matches it do not depend on the order; a tie is said to be one."""
    places = list(range(len(many)))
    order.shuffle(places)
    vote, (other,) = majority_vote(many), batch_majority_vote([[many[place] for place in places]])
    assert sorted(count for _, count in vote.classes) == sorted(count for _, count in other.classes)
    assert (vote.majority_ratio, vote.abstained, vote.tie) == (other.majority_ratio, other.abstained, other.tie)
    if not vote.tie:
        assert canonical(vote.answer) == canonical(other.answer)
        assert [vote.matches[place] for place in places] == list(other.matches)
    for text, match in zip(many, vote.matches, strict=True):
        same = text is not None and vote.answer is not None and equivalent(text, vote.answer)
        assert match >= same and (match == same or bare_key(canonical(text)) == bare_key(canonical(vote.answer)))


# Expressions of known value.

Monomial = tuple[int, ...]
Polynomial = dict[Monomial, Fraction]
SYMBOLS = ("x", "y", "pi", "exp", "sin", "sqrt2", "i", "root", "cos")
X, SIN, SQRT2, TURN, ROOT, COS = (SYMBOLS.index(name) for name in ("x", "sin", "sqrt2", "i", "root", "cos"))
ONE: Monomial = (0,) * len(SYMBOLS)


def reduced(powers: list[int], value: Fraction) -> Polynomial:
    """A monomial with √2 · √2 = 2, i · i = -1, √x · √x = x and cos² x = 1 - sin² x: the form that each value has but once."""
    value *= 2 ** (powers[SQRT2] // 2) * (-1) ** (powers[TURN] // 2)
    powers[X] += powers[ROOT] // 2
    squares = powers[COS] // 2
    for place in (SQRT2, TURN, ROOT, COS):
        powers[place] %= 2
    found: Polynomial = {}
    for chosen in range(squares + 1):
        term = [power + 2 * chosen * (place == SIN) for place, power in enumerate(powers)]
        found[tuple(term)] = value * comb(squares, chosen) * (-1) ** chosen
    return found


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    """Product."""
    product: Polynomial = {}
    for left, one in a.items():
        for right, two in b.items():
            for monomial, value in reduced([p + q for p, q in zip(left, right, strict=True)], one * two).items():
                product[monomial] = product.get(monomial, Fraction(0)) + value
    return {monomial: value for monomial, value in product.items() if value}


def plus(a: Polynomial, b: Polynomial, sign: int = 1) -> Polynomial:
    total = {monomial: a.get(monomial, Fraction(0)) + sign * b.get(monomial, Fraction(0)) for monomial in {**a, **b}}
    return {monomial: value for monomial, value in total.items() if value}


class Value:
    """A quotient of polynomials over ℚ(√2, i), in x, y, π, and √x, sin x, cos x, eˣ."""

    def __init__(self, above: Polynomial, below: Polynomial | None = None) -> None:
        self.above, self.below = above, {ONE: Fraction(1)} if below is None else below

    def same(self, other: Value) -> bool:
        return times(self.above, other.below) == times(other.above, self.below)


Tree = tuple[Any, ...]


def value_of(tree: Tree) -> Value | None:
    """The value of an expression; None where it is divided by zero, or zero to the zeroth."""
    kind, *parts = tree
    if kind == "num":
        return Value({ONE: parts[0]} if parts[0] else {})
    if kind == "sym":
        return Value({tuple(int(name == parts[0]) for name in SYMBOLS): Fraction(1)})
    values = [value_of(part) for part in parts if isinstance(part, tuple)]
    if any(value is None for value in values):
        return None
    first, second = values[0], values[-1]
    assert first is not None and second is not None
    if kind in ("+", "-"):
        above = plus(times(first.above, second.below), times(second.above, first.below), 1 if kind == "+" else -1)
        return Value(above, times(first.below, second.below))
    if kind == "*":
        return Value(times(first.above, second.above), times(first.below, second.below))
    if kind == "/":
        return Value(times(first.above, second.below), times(first.below, second.above)) if second.above else None
    if not first.above and parts[1] <= 0:
        return None
    base = first if parts[1] >= 0 else Value(first.below, first.above)
    result = Value({ONE: Fraction(1)})
    for _ in range(abs(parts[1])):
        result = Value(times(result.above, base.above), times(result.below, base.below))
    return result


LATEX = {"pi": r"\pi", "sqrt2": r"\sqrt{2}", "root": r"\sqrt{x}", "sin": r"\sin x", "cos": r"\cos{x}", "exp": "e^x"}
PLAIN = {"pi": "pi", "sqrt2": "sqrt(2)", "root": "sqrt(x)", "sin": "sin(x)", "cos": "cos(x)", "exp": "exp(x)"}


def rendered(tree: Tree, style: random.Random, latex: bool) -> str:
    """The expression as text, in one of many ways."""
    kind, *parts = tree
    if kind == "num":
        return number(parts[0], style, latex)
    if kind == "sym":
        name: str = parts[0]
        return (LATEX if latex else PLAIN).get(name, name)
    opened, closed = (r"\left(", r"\right)") if latex and style.random() < 0.3 else ("(", ")")
    space = style.choice(["", " ", r"\, "] if latex else ["", " "])
    inside = [rendered(part, style, latex) for part in parts if isinstance(part, tuple)]
    wrapped = [f"{opened}{text}{closed}" for text in inside]
    if kind in ("+", "-"):
        return f"{inside[0]}{space}{kind}{space}{wrapped[1]}"
    if kind == "*":
        return style.choice([r" \cdot ", r" \times ", "", " "] if latex else ["*", " * ", ""]).join(wrapped)
    if kind == "/":
        if latex and style.random() < 0.7:
            return rf"\{style.choice(['frac', 'dfrac', 'tfrac'])}{{{inside[0]}}}{{{inside[1]}}}"
        return f"{wrapped[0]}{space}/{space}{wrapped[1]}"
    return f"{wrapped[0]}^{{{parts[1]}}}" if latex else f"{wrapped[0]}{style.choice(['^', '**'])}({parts[1]})"


def number(value: Fraction, style: random.Random, latex: bool) -> str:
    """A fraction in one of the ways that it can be written."""
    ways = [f"{value.numerator}/{value.denominator}" if value.denominator > 1 else f"{value.numerator}"]
    if latex:
        ways.append(rf"\frac{{{value.numerator}}}{{{value.denominator}}}")
    if Fraction(str(float(value))) == value:
        ways.append(str(float(value)))
    text = style.choice(ways)
    return f"({text})" if text.startswith("-") or "/" in text else text


def trees(symbols: tuple[str, ...]) -> st.SearchStrategy[Tree]:
    leaves: list[st.SearchStrategy[Tree]] = [st.tuples(st.just("num"), st.fractions(-9, 9, max_denominator=8))]
    if symbols:
        leaves += [st.tuples(st.just("sym"), st.sampled_from(symbols))] * 2
    return st.recursive(
        st.one_of(leaves),
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["+", "-", "*", "/"]), inner, inner),
            st.tuples(st.just("^"), inner, st.integers(-2, 3)),
        ),
        max_leaves=6,
    )


families = st.sampled_from([
    (), (), ("x",), ("x", "y"), ("sqrt2",), ("i",), ("pi",), ("sqrt2", "x"), ("i", "sqrt2"), ("sin", "cos"), ("x", "exp"), ("root", "x"),
])  # fmt: skip


@st.composite
def two_expressions(draw: st.DrawFn) -> tuple[Tree, Tree, random.Random]:
    """Two expressions of one family: any two, or one and the same after rewriting by an identity, perhaps with a slip."""
    one_family = trees(draw(families))
    first = draw(one_family)
    other = draw(one_family)
    square = ("+", ("^", other, 2), ("*", ("num", Fraction(2)), ("*", first, other)))
    rewritten = [
        other, first, ("+", other, ("-", first, other)), ("-", ("*", ("num", Fraction(3)), first), ("+", first, first)),
        ("*", first, ("/", other, other)), ("-", ("^", ("+", first, other), 2), square),
        ("+", first, ("num", Fraction(1, 7))), ("*", first, ("num", Fraction(-1))),
    ]  # fmt: skip
    second = draw(st.sampled_from(rewritten))
    return first, second, draw(st.randoms(use_true_random=False))


FUNCTIONS = ("exp", "sin", "cos", "root")
missed: Counter[str] = Counter()
"""Equal expressions in this run: those that were told apart, and all."""


def symbols_of(tree: Tree) -> set[str]:
    if tree[0] == "sym":
        return {tree[1]}
    return set().union(*(symbols_of(part) for part in tree[1:] if isinstance(part, tuple)))


def check_values(case: tuple[Tree, Tree, random.Random]) -> None:
    """Equal keys exactly for equal values, however both are written.

    Only what was given up may be told apart from its equals; and of functions, which have no normal form, a few.
    """
    one, two, style = case
    first, second = value_of(one), value_of(two)
    if first is None or second is None:
        return
    for _ in range(2):
        a, b = rendered(one, style, style.random() < 0.6), rendered(two, style, style.random() < 0.6)
        said = [verdict(a), verdict(b)]
        if not first.same(second):
            assert not equivalent(a, b), (a, b, said)
            continue
        missed.update({"equal": 1, "told apart": int(not equivalent(a, b))})
        if not symbols_of(one) & {*FUNCTIONS}:
            assert equivalent(a, b) or any(found is not None and found.gave_up for found in said), (a, b, said)


def check_containers(many: list[Fraction], other: list[Fraction], style: random.Random) -> None:
    """Sets and lists have no order, but each value as often as it is named; tuples have one."""
    inside, beside = ([number(value, style, True) for value in values] for values in (many, other))
    plain = [text.strip("()") if "/" not in text else text for text in inside]
    assert equivalent(f"({', '.join(inside)})", f"({', '.join(beside)})") == (many == other)
    assert equivalent(rf"\{{{', '.join(inside)}\}}", rf"\left\{{ {' , '.join(beside)} \right\}}") == (
        sorted(many) == sorted(other)
    )
    assert equivalent(", ".join(plain), rf"\{{{', '.join(sorted(beside))}\}}") == (sorted(many) == sorted(other))
    assert equivalent(f"[{', '.join(inside)}]", f"({', '.join(inside)})") is False
    if min(many) < max(many):
        low, high = number(min(many), style, True), number(max(many), style, True)
        inequality = rf"{low} < x \le {high}"
        assert equivalent(f"({low}, {high}]", inequality) and not equivalent(f"({low}, {high})", inequality)


several = st.lists(st.fractions(-20, 20, max_denominator=12), min_size=2, max_size=4)
voters = st.lists(st.one_of(st.none(), texts, st.sampled_from(ANSWERS[:4])), max_size=12)
CHECKS: dict[str, tuple[Check, tuple[st.SearchStrategy[Any], ...], int]] = {
    "anything": (check_anything, (texts,), 60),
    "equivalence": (check_equivalence, (st.lists(texts, min_size=2, max_size=6),), 40),
    "votes": (check_votes, (voters, st.randoms()), 40),
    "values": (check_values, (two_expressions(),), 40),
    "containers": (check_containers, (several, several, st.randoms(use_true_random=False)), 50),
}


def run(name: str, factor: int = 1) -> None:
    check, strategies, examples = CHECKS[name]
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    missed.clear()
    settings(max_examples=examples * factor, deadline=None, suppress_health_check=quiet)(given(*strategies)(check))()
    assert missed["told apart"] <= 2 + missed["equal"] // 50, missed


@pytest.mark.parametrize("name", CHECKS)
def test_fuzz(name: str) -> None:
    run(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_fuzz_long(name: str) -> None:
    run(name, 50)


def some_texts(count: int) -> list[str]:
    """The same mutations of real answers each time."""
    draw = random.Random(7)
    found = list(ANSWERS)
    while len(found) < count:
        text = draw.choice(ANSWERS)
        place = draw.randrange(len(text) + 1)
        found.append(text[:place] + draw.choice(PIECES) + text[place + draw.randrange(3) :])
    return list(dict.fromkeys(found))


@pytest.mark.slow
def test_another_process_gives_the_same_keys() -> None:
    """Another seed of hashes, another start of the worker."""
    many = some_texts(250)
    code = "import json, sys; from skill_ttrl.answers import canonicals; print(json.dumps(canonicals(json.load(sys.stdin))))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(many), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [verdict(text) for text in many]
    for text, key, other, found in zip(many, canonicals(many), json.loads(done.stdout), said, strict=True):
        assert key == other or (found is not None and found.gave_up == "timeout"), text


@pytest.mark.parametrize("source", ["own", "data"])
def test_rewrites_are_the_same_and_near_misses_are_not(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the benchmark holds against math-verify, without math-verify."""
    if source == "data" and not DATA.exists():
        pytest.skip(f"the real problem set is not at {DATA}")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import answers_misses  # type: ignore[import-not-found]
    import answers_rewrites  # type: ignore[import-not-found]

    answers = ANSWERS if source == "own" else list(dict.fromkeys(row["answer"] for row in json.loads(DATA.read_text())))
    cases = [
        (name, answer, other, same)
        for rewrites, same in ((answers_rewrites.REWRITES, True), (answers_misses.NEAR_MISSES, False))
        for name, rewrite in rewrites.items()
        for answer in answers
        for other in rewrite(answer)
        if other != answer
    ]
    assert len(cases) > 500
    canonicals([text for _, answer, other, _ in cases for text in (answer, other)])
    graded = correct([(other, answer) for _, answer, other, _ in cases])
    wrong = [(*case, right) for case, right in zip(cases, graded, strict=True) if right is not case[3]]
    assert not wrong, wrong[:20]
    # One with a unit and one without are one answer to a grader and in a vote, and two by themselves.
    apart = [(*case,) for case in cases if equivalent(case[1], case[2]) is not case[3]]
    assert all(bare_key(canonical(answer)) == bare_key(canonical(other)) for _, answer, other, _ in apart), apart[:20]
