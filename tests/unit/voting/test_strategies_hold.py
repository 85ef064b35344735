"""What holds for every strategy, whatever the answers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.answers import canonical
from skill_ttrl.types import VoteResult
from skill_ttrl.voting import STRATEGIES, Ballot, vote

WORDS = [None, "", " ", "1", "1.0", "2", "4/2", "x", "X.", "3"]


@st.composite
def ballots(draw: st.DrawFn) -> Ballot:
    size = draw(st.integers(0, 12))
    answers = draw(st.lists(st.sampled_from(WORDS), min_size=size, max_size=size))
    sums = st.floats(-60, 0, allow_nan=False)
    return Ballot(
        answers=tuple(answers),
        prompt="p",
        logprobs=tuple(draw(st.lists(sums, min_size=size, max_size=size))),
        lengths=tuple(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))),
        base_answers=tuple(draw(st.lists(st.sampled_from(WORDS), max_size=6))),
    )


def test_the_answers_that_are_drawn_are_what_they_seem() -> None:
    keys = [canonical(word) for word in WORDS]
    assert keys[:3] == [None] * 3 and keys[3] == keys[4] != keys[5] == keys[6] and keys[7] == keys[8]


@pytest.mark.parametrize("name", list(STRATEGIES))
@given(ballot=ballots())
def test_silence_never_wins_and_nothing_is_counted_twice(name: str, ballot: Ballot) -> None:
    found = vote(name, ballot)
    keys = [canonical(answer) for answer in ballot.answers]
    assert canonical(found.answer) is not None or found.answer is None
    for key, match, earned in zip(keys, found.matches, found.sample_rewards, strict=True):
        assert match == (key is not None and key == canonical(found.answer))
        assert earned >= 0 and (key is not None or earned == 0)
    counts = Counter(key for key in keys if key is not None)
    assert [votes for _, votes in found.classes] == sorted(counts.values(), reverse=True)
    assert sum(votes for _, votes in found.classes) + found.abstained == len(keys)
    assert 0 <= found.majority_ratio <= 1
    assert not found.scores or (len(found.scores) == len(found.classes) and min(found.scores) >= 0)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "sequential"])  # which goes by the order
@given(ballot=ballots(), randomness=st.randoms(use_true_random=False))
def test_the_order_of_the_samples_decides_nothing_but_ties(
    name: str, ballot: Ballot, randomness: random.Random
) -> None:
    order = list(range(len(ballot.answers)))
    randomness.shuffle(order)
    assert ballot.logprobs is not None and ballot.lengths is not None
    other = replace(
        ballot,
        answers=tuple(ballot.answers[place] for place in order),
        logprobs=tuple(ballot.logprobs[place] for place in order),
        lengths=tuple(ballot.lengths[place] for place in order),
    )
    found, shuffled = vote(name, ballot), vote(name, other)
    assert shuffled.tie == found.tie and shuffled.abstained == found.abstained
    assert by_class(shuffled) == by_class(found)
    if found.tie:
        return
    assert canonical(shuffled.answer) == canonical(found.answer)
    assert shuffled.majority_ratio == found.majority_ratio
    assert shuffled.matches == tuple(found.matches[place] for place in order)


def by_class(found: VoteResult) -> dict[str | None, tuple[int, float | None]]:
    """Votes and score of each class, to the last bit."""
    scores = found.scores or (None,) * len(found.classes)
    return {canonical(words): (votes, score) for (words, votes), score in zip(found.classes, scores, strict=True)}
