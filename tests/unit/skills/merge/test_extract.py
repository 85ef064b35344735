"""Techniques that winners' solutions share, found by counting."""

from __future__ import annotations

import pytest

from skill_ttrl.skills.merge.heuristic import technique

WON = [
    "We have 3 apples. Split the sum into tens and units, then carry. 3+4=7.",
    "Compute. Split the sum into tens and units, then carry. So 7.",
    "First read it. Split the sum into tens and units, then carry.",
]
LOST = ["I guess 9.", "Count on fingers. 8"]


def test_a_sentence_that_winners_share_and_losers_lack_is_found() -> None:
    assert technique("What is 3+4?", WON, LOST) == "Split the sum into tens and units, then carry."


def test_numbers_of_the_problem_are_written_as_n() -> None:
    won = [f"Multiply by {number} then reduce every remainder." for number in (3, 17, 250)]
    assert technique("Q", won, []) == "Multiply by n then reduce every remainder."


def test_a_run_of_words_is_found_where_no_sentence_is_shared() -> None:
    won = [
        f"{start} use the pigeonhole principle on residues {end}" for start, end in (("Here", "now"), ("We", "mod 7"))
    ]
    assert technique("Q", won, ["Try all cases."]) == "use the pigeonhole principle on residues"


@pytest.mark.parametrize(
    ("problem", "won", "lost"),
    [
        ("Q", WON[:1], LOST),
        ("Q", WON, WON),
        ("Q", ["Do this thing here.", "Other words stand there.", "Nothing is shared at all."], []),
        ("Q", ["Let's think step by step about it."] * 3, []),
        ("Q", ["<answer>the same long answer here</answer>"] * 3, []),
        ("A farmer sells red apples daily", ["A farmer sells red apples."] * 3, []),
        ("Q", ["3 + 4 = 7."] * 3, []),
        ("Q", ["", "", ""], [""]),
    ],
)
def test_nothing_is_found_where_there_is_nothing(problem: str, won: list[str], lost: list[str]) -> None:
    assert technique(problem, won, lost) is None
