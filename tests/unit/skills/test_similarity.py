"""Which texts say the same, and which text stands for all of them."""

from __future__ import annotations

import pytest

from skill_ttrl.skills.similarity import Cluster, clusters, consensus_text
from tests.trigrams import ngram_similarity

# --- what says the same ---


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Check the parity first.", "check PARITY first"),
        ("Simply divide by 3,5!", "  Divide by\n3,5"),
        ("Ｆｅｒｍａｔ’s theorem", "Fermat's theorem."),
    ],
)
def test_texts_that_say_the_same(a: str, b: str) -> None:
    assert len(clusters([a, b])) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("fab: plus 9", "fab: plus 8"),
        ("fab: plus 9", "fab: minus 9"),
        ("Subtract x from y.", "Subtract y from x."),
        ("a + b", "a - b"),
        ("1.5", "15"),
        ("Do it.", "Do not do it."),
        (".", "!"),
    ],
)
def test_texts_that_do_not(a: str, b: str) -> None:
    everything_is_alike = [[1.0, 1.0], [1.0, 1.0]]
    assert len(clusters([a, b])) == 2
    if (a, b) != (".", "!"):
        assert len(clusters([a, b], lambda _, __: everything_is_alike)) == 2


def test_similarity_fuses_other_wordings_where_it_is_handed_in() -> None:
    texts = [
        "Check modular patterns in the powers.",
        "Check for modular patterns in powers.",
        "SamplingPass the triangle.",
    ]
    assert len(clusters(texts)) == 3
    (fused, alone) = clusters(texts, ngram_similarity, 0.8)
    assert fused.members == (0, 1) and fused.text == texts[1] and alone.text == texts[2]


def test_the_wording_is_the_most_frequent_then_the_shortest_then_the_first() -> None:
    assert clusters(["Go on!", "go on", "Go on!"])[0].text == "Go on!"
    assert clusters(["Go on!!", "go on"])[0].text == "go on"
    assert clusters(["go on", "Go on"])[0].text == "Go on"


# --- competing evolutions ---


def test_the_rewrite_of_a_majority_wins_and_a_rule_of_the_minority_is_not_mixed_in() -> None:
    assert consensus_text(["plus 9", "plus 8", "Plus 8."]) == Cluster("plus 8", (1, 2))
    assert (
        consensus_text(
            ["Check the signs. Then add.", "plus 8", "Plus 8."], base="A longer text than all of these."
        ).text
        == "plus 8"
    )


def test_without_a_majority_the_longest_stays_and_only_its_writers_support_it() -> None:
    assert consensus_text(["Add Euler.", "Add Euler and handle composites."]) == Cluster(
        "Add Euler and handle composites.", (1,)
    )
    assert consensus_text(["Reduce.", "Look at both signs.", "look at both SIGNS", "Go.", "Stop!"]).members == (1, 2)
    padded = consensus_text(["Reduce it!!!!!!!!!!!!!!!!!!!!!!!", "Reduce both sides."])
    assert padded.text == "Reduce both sides."  # words count, not characters


def test_a_sentence_that_most_wrote_is_taken_over() -> None:
    texts = ["Reduce first. Then add up.", "Reduce first. Check it.", "Check it. Stop."]
    assert consensus_text(texts) == Cluster("Reduce first. Then add up. Check it.", (0, 1, 2))
    base = "Write every term on a line of its own before you begin."
    assert consensus_text(texts, base=base) == Cluster(f"{base} Check it. Reduce first.", (0, 1, 2))
