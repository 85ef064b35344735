"""Which demonstrations a supervised step learns from."""

from __future__ import annotations

from itertools import count, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import SFTConfig
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rl.optim import learning_rate
from skill_ttrl.rl.sft_learner import batch_selector, batches_of_epoch, rate_fraction

Lengths = st.lists(st.integers(2, 40), min_size=1, max_size=60)


def demonstrations(lengths: list[int]) -> list[EncodedDemonstration]:
    return [EncodedDemonstration([number], [0] * (length - 1)) for number, length in enumerate(lengths)]


@given(Lengths, st.integers(1, 90), st.integers(0, 5), st.booleans())
def test_an_epoch_has_each_demonstration_once_and_no_batch_passes_its_budget(
    lengths: list[int], budget: int, seed: int, shuffle: bool
) -> None:
    config = SFTConfig.model_validate({"batch_tokens": budget, "shuffle": shuffle})
    per_epoch = [len(batches_of_epoch(lengths, config, seed, epoch)) for epoch in range(3)]
    batch_of = batch_selector(demonstrations(lengths), config, seed)
    batches = [[int(each.prompt_ids[0]) for each in batch_of(step)] for step in range(sum(per_epoch))]
    first = 0
    for steps in per_epoch:
        seen = [place for batch in batches[first : first + steps] for place in batch]
        assert sorted(seen) == list(range(len(lengths)))
        assert shuffle or seen == sorted(seen)
        first += steps
    assert all(len(batch) == 1 or sum(lengths[place] for place in batch) <= budget for batch in batches)
    # A run that begins at any step sees what the others saw there.
    late = batch_selector(demonstrations(lengths), config, seed)
    assert [[int(each.prompt_ids[0]) for each in late(step)] for step in reversed(range(len(batches)))] == batches[::-1]


@given(Lengths, st.integers(1, 9), st.integers(0, 5))
def test_batches_of_a_fixed_size_cover_each_epoch_too(lengths: list[int], size: int, seed: int) -> None:
    batch_of = batch_selector(demonstrations(lengths), SFTConfig(batch_size=size), seed)
    stream = [int(each.prompt_ids[0]) for step in range(-(-2 * len(lengths) // size)) for each in batch_of(step)]
    for epoch in range(2):
        assert sorted(stream[epoch * len(lengths) : (epoch + 1) * len(lengths)]) == list(range(len(lengths)))


def test_a_linear_schedule_stays_at_the_peak_until_it_decays() -> None:
    config = SFTConfig(steps=100, warmup_steps=10, lr_scheduler="linear", decay_from=0.5, min_lr_ratio=0.02)
    rates = [rate_fraction(step, config) for step in range(101)]
    assert rates[0] == 0.1 and len(list(takewhile(lambda step: rates[step] < 1, count()))) == 9
    assert rates[9:51] == [1.0] * 42
    assert rates[50:100] == pytest.approx([1 - 0.98 * past / 49 for past in range(50)])
    assert rates[99] == rates[100] == pytest.approx(0.02)
    # Without a floor as transformers' linear schedule: 0 would come one step after the last.
    assert [learning_rate(step, 4, 1.0, 0, "linear") for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
