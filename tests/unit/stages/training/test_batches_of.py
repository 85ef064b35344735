"""A step's prompts in batches (`rollout.prompts_per_batch`): divided in order, each with a seed of its own that follows from the step's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.llm.backend import Sampling
from skill_ttrl.rollout.rollout import RolloutSettings
from skill_ttrl.stages.training.run import batches_of
from skill_ttrl.types import Task


@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 3))
def test_every_prompt_is_in_one_batch_in_order_and_no_two_batches_have_a_seed(count: int, size: int, seed: int) -> None:
    tasks = [Task(str(number), "Guess-v0") for number in range(count)]
    batches = batches_of(tasks, 4, RolloutSettings(Sampling(), seed), size)
    assert [task for batch in batches for task in batch.tasks] == tasks
    assert all(len(batch.tasks) == size for batch in batches[:-1]) and all(batch.n == 4 for batch in batches)
    seeds = [batch.settings.seed for batch in batches]
    assert len({*seeds, seed}) == len(seeds) + 1
    assert seeds == [each.settings.seed for each in batches_of(tasks, 4, RolloutSettings(Sampling(), seed), size)]
