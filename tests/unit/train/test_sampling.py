"""Tasks of further rounds, and which groups have something to learn from."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.llm.backend import Sampling
from skill_ttrl.rollout.rollout import RolloutSettings
from skill_ttrl.train.rl import rewards_differ, unseen_tasks
from skill_ttrl.train.run import batches_of
from skill_ttrl.types import ActionStatus, Group, Step, Task, Trajectory

TASK = Task("t", "env")


def rollout(reward: float, *verdicts: ActionStatus) -> Trajectory:
    steps = tuple(Step("", "go", 0.0, False, False, action_status=verdict) for verdict in verdicts)
    return Trajectory(TASK, steps, None, "terminated", reward)


@given(count=st.integers(1, 4), extra=st.integers(0, 7), batch=st.integers(0, 9), seed=st.integers(0, 3))
def test_rounds_of_a_step_sample_each_task_once_and_end(count: int, extra: int, batch: int, seed: int) -> None:
    tasks = [Task(f"t{number}", "env") for number in range(count + extra)]
    seen: set[str] = set()
    while True:
        found, after = unseen_tasks(tasks, count, batch, seed, seen)
        again, _ = unseen_tasks(tasks, count, batch, seed, seen)
        assert [task.id for task in again] == [task.id for task in found], "the same from the same place"
        if not found:
            assert after == batch
            break
        assert after > batch and len(found) <= count and not seen & {task.id for task in found}
        seen |= {task.id for task in found}
        batch = after
    assert len(seen) >= len(tasks) // count * count


def test_groups_that_differ() -> None:
    def differ(*trajectories: Trajectory, penalty: float = 0.0) -> bool:
        return rewards_differ(Group(TASK, trajectories), penalty)

    assert differ(rollout(1.0), rollout(0.0))
    assert not differ(rollout(1.0), rollout(1.0)) and not differ()
    assert not differ(rollout(0.3), rollout(0.1 + 0.2)) and differ(rollout(0.3), rollout(0.3 + 1e-6))
    # Steps with an invalid action earn less, where that is penalised.
    mixed = rollout(1.0, "valid", "invalid"), rollout(1.0, "valid")
    assert differ(*mixed, penalty=0.1) and not differ(*mixed)
    # A length penalty alone makes no difference; another part of the reward does, whatever the sum.
    long = replace(rollout(0.5), rewards={"majority": 1.0, "overlong": -0.5})
    short = replace(rollout(1.0), rewards={"majority": 1.0, "overlong": 0.0})
    assert not differ(long, short)
    assert differ(long, replace(short, rewards={"majority": 0.0, "overlong": 0.0}))
    traded = replace(rollout(1.0), rewards={"majority": 1.0, "format": 0.0})
    assert differ(traded, replace(traded, rewards={"majority": 0.0, "format": 1.0}))
    rounded = replace(traded, rewards={"majority": 0.1 + 0.2, "format": 0.0})
    assert not differ(replace(traded, rewards={"majority": 0.3, "format": 0.0}), rounded)


# A step's prompts in batches (`rollout.prompts_per_batch`): divided in order, each with a seed of its own that follows from the step's.


@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 3))
def test_every_prompt_is_in_one_batch_in_order_and_no_two_batches_have_a_seed(count: int, size: int, seed: int) -> None:
    tasks = [Task(str(number), "Guess-v0") for number in range(count)]
    batches = batches_of(tasks, 4, RolloutSettings(Sampling(), seed), size)
    assert [task for batch in batches for task in batch.tasks] == tasks
    assert all(len(batch.tasks) == size for batch in batches[:-1]) and all(batch.n == 4 for batch in batches)
    seeds = [batch.settings.seed for batch in batches]
    assert len({*seeds, seed}) == len(seeds) + 1
    assert seeds == [each.settings.seed for each in batches_of(tasks, 4, RolloutSettings(Sampling(), seed), size)]
