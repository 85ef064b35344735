"""The simulated loop: equal to the closed formula where there is one, and monotone where it must be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.stages.planning.simulate import PARTS, Decoding, Loop, simulate

DECODING = Decoding(fixed=0.01, read=0.02, row_read=0.001, row_compute=0.0005, row_prompt=0.0001)
LOOP = Loop(
    rollouts=12, turns=3, lengths=(5.0,), decoding=DECODING, replicas=2, slots=64, update=4.0, transfer=0.5, records=0.1
)


def test_a_round_takes_the_longer_of_reading_and_computing() -> None:
    assert DECODING.seconds(0) == pytest.approx(0.03)
    assert DECODING.seconds(10) == pytest.approx(0.01 + 0.02 + 0.01 + 0.001)
    assert replace(DECODING, row_compute=1.0).seconds(10) == pytest.approx(0.01 + 10.0 + 0.001)


@given(
    rollouts=st.integers(1, 30),
    turns=st.integers(1, 4),
    replicas=st.integers(1, 5),
    tokens=st.integers(1, 50),
    env=st.floats(0, 3),
    lockstep=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_without_staleness_and_spread_a_step_is_the_sum_of_its_parts(
    rollouts: int, turns: int, replicas: int, tokens: int, env: float, lockstep: bool
) -> None:
    rollouts *= replicas  # every replica has as many
    loop = replace(
        LOOP,
        rollouts=rollouts,
        turns=turns,
        replicas=replicas,
        lengths=(float(tokens),),
        env_seconds=env,
        env_slots=1 if lockstep else rollouts,
        lockstep=lockstep,
    )
    decoded = turns * tokens * DECODING.seconds(rollouts // replicas)
    environments = turns * env * (rollouts if lockstep else 1)
    found = simulate(loop)
    assert found.step_seconds == pytest.approx(decoded + environments + 4.0 + 0.5 + 0.1)
    assert found.staleness == 0
    assert found.utilisation["generation"] == pytest.approx(decoded / found.step_seconds)
    assert found.utilisation["update"] == pytest.approx(4.0 / found.step_seconds)


def test_rows_beyond_the_slots_of_a_replica_wait() -> None:
    few, many = (simulate(replace(LOOP, turns=1, slots=slots)).step_seconds for slots in (2, 6))
    assert few - 4.6 == pytest.approx(3 * 5 * DECODING.seconds(2))
    assert many - 4.6 == pytest.approx(5 * DECODING.seconds(6))


def test_a_replica_speeds_up_as_its_shorter_rows_end() -> None:
    loop = replace(LOOP, rollouts=2, turns=1, replicas=1, lengths=(2.0, 10.0), seed=0)
    times = {round((simulate(replace(loop, seed=seed)).step_seconds - 4.6) / 1e-3) for seed in range(8)}
    longest = 2 * DECODING.seconds(2) + 8 * DECODING.seconds(1)
    assert longest < 10 * DECODING.seconds(2)
    assert len(times) > 1 and max(times) <= round(10 * DECODING.seconds(2) / 1e-3)


def test_generation_runs_ahead_where_it_may() -> None:
    """With devices of their own and one step of staleness, the longer of generation and learner decides."""
    loop = replace(LOOP, split=True, transfer=0.0)
    generation = 15 * DECODING.seconds(6)
    serial, ahead = simulate(loop), simulate(replace(loop, max_staleness=1))
    assert serial.step_seconds == pytest.approx(generation + 4.1)
    assert ahead.step_seconds == pytest.approx(max(generation, 4.1))
    assert (serial.staleness, ahead.staleness) == (0, 1)
    assert simulate(replace(loop, split=False, max_staleness=1)).step_seconds == serial.step_seconds


def test_one_slow_environment_holds_up_a_whole_step_and_a_step_ahead_hides_it() -> None:
    loop = replace(LOOP, env_seconds=1.0, env_slots=100, slow_fraction=0.3, slow_factor=10.0, split=True)
    fast, slow = simulate(replace(loop, slow_fraction=0.0)), simulate(loop)
    assert slow.step_seconds > fast.step_seconds + 2 * 9.0
    assert simulate(replace(loop, max_staleness=2)).step_seconds < slow.step_seconds


@pytest.mark.parametrize("staleness", [1, 3])
def test_each_step_in_flight_calls_one_environment_in_lockstep(staleness: int) -> None:
    """Environments alone take time: as many steps as are in flight share it."""
    loop = replace(
        LOOP, env_seconds=1.0, lockstep=True, split=True, decoding=Decoding(fixed=1e-6), max_staleness=staleness
    )
    loop = replace(loop, update=1e-3, transfer=0.0, records=0.0)
    assert simulate(loop).step_seconds == pytest.approx(3 * 12 / (staleness + 1), rel=0.01)
    in_turn = replace(loop, in_turn=True)
    assert simulate(in_turn).step_seconds == pytest.approx(3 * 12, rel=0.01)


def test_a_batch_alone_has_the_environments_of_one_step() -> None:
    """A barrier after each step: staleness has no effect, on environments neither."""
    loop = replace(LOOP, env_seconds=1.0, lockstep=True, split=True, barriers=(1,))
    serial = simulate(replace(loop, max_staleness=0))
    assert simulate(replace(loop, max_staleness=3)).step_seconds == pytest.approx(serial.step_seconds)


def test_a_step_ahead_is_lost_at_each_barrier() -> None:
    """Two batches of 15 rounds at once, then two learners' turns: those of the first while the second decodes no more."""
    loop = replace(LOOP, split=True, transfer=0.0, max_staleness=1, barriers=(2,))
    both = 15 * DECODING.seconds(12)
    assert simulate(loop).step_seconds == pytest.approx((both + 2 * 4.1) / 2)
    free = simulate(replace(loop, barriers=()))
    assert simulate(replace(loop, barriers=(7, 500))).step_seconds > free.step_seconds
    assert simulate(replace(loop, barriers=(500,))) == free


def test_several_rollouts_in_one_take_the_same_time() -> None:
    loop = replace(LOOP, rollouts=40, turns=2, slots=100, env_seconds=0.1)
    for env_slots, lockstep in ((1, True), (40, False), (1, False)):
        one = replace(loop, env_slots=env_slots, lockstep=lockstep)
        whole, bundled = simulate(one).step_seconds, simulate(replace(one, weight=4)).step_seconds
        assert bundled == pytest.approx(whole, rel=0.1)


LOOPS = st.builds(
    Loop,
    rollouts=st.integers(1, 20),
    turns=st.integers(1, 3),
    lengths=st.just((4.0,)),
    decoding=st.just(DECODING),
    replicas=st.integers(1, 4),
    slots=st.integers(1, 16),
    env_seconds=st.floats(0, 2),
    env_slots=st.integers(1, 20),
    slow_fraction=st.floats(0, 1),
    slow_factor=st.floats(1, 5),
    lockstep=st.booleans(),
    update=st.floats(0.01, 5),
    transfer=st.floats(0, 1),
    records=st.floats(0, 1),
    split=st.booleans(),
    max_staleness=st.integers(0, 2),
)


@given(LOOPS, st.sampled_from(("update", "records", "transfer")))
@settings(deadline=None, max_examples=40)
def test_a_learner_that_takes_less_time_never_makes_a_step_longer(loop: Loop, part: str) -> None:
    loop = replace(loop, split=False)
    assert simulate(loop.faster(part)).step_seconds <= simulate(loop).step_seconds + 1e-9


@given(LOOPS)
@settings(deadline=None, max_examples=40)
def test_faster_generation_never_makes_a_step_in_lockstep_longer(loop: Loop) -> None:
    loop = replace(loop, lockstep=True, split=False)
    assert simulate(loop.faster("generation")).step_seconds <= simulate(loop).step_seconds + 1e-9


@given(LOOPS)
@settings(deadline=None, max_examples=40)
def test_more_replicas_never_make_a_step_in_lockstep_longer(loop: Loop) -> None:
    loop = replace(loop, lockstep=True, slots=100, env_slots=1)  # with several the order of calls would count
    assert simulate(replace(loop, replicas=loop.replicas + 1)).step_seconds <= simulate(loop).step_seconds + 1e-9


@given(LOOPS, st.floats(1, 3))
@settings(deadline=None, max_examples=40)
def test_slower_environments_never_make_a_step_in_lockstep_shorter(loop: Loop, factor: float) -> None:
    loop = replace(loop, lockstep=True, split=False, env_slots=1)
    slower = replace(loop, slow_factor=loop.slow_factor * factor)
    assert simulate(slower).step_seconds >= simulate(loop).step_seconds - 1e-9


@given(LOOPS)
@settings(deadline=None, max_examples=40)
def test_no_step_is_shorter_than_its_learner_and_no_share_is_above_one(loop: Loop) -> None:
    found = simulate(loop)
    assert found.step_seconds >= loop.update + loop.records + loop.transfer - 1e-9
    assert set(found.utilisation) == {*PARTS}
    assert all(-1e-9 <= share <= 1 + 1e-6 for share in found.utilisation.values())
    assert 0 <= found.staleness <= loop.max_staleness


def test_the_same_seed_gives_the_same_steps() -> None:
    loop = replace(LOOP, lengths=(2.0, 9.0, 4.0), env_seconds=0.2, slow_fraction=0.2, slow_factor=4.0, env_slots=3)
    assert simulate(loop) == simulate(loop)
    assert simulate(loop) != simulate(replace(loop, seed=1))
