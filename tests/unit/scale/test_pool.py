"""The ordered map over workers that die: every item once, in order, whatever happens to whom."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.errors import EnvError, WorkerError
from skill_ttrl.workers import Event, Pool, ProcessCrew


class Scripted:
    """Workers that double numbers in any order, die and come back as a seed says."""

    advice = ""

    def __init__(self, workers: int, seed: int = 0, deaths: int = 0, deadly: Sequence[int] = ()) -> None:
        self.rng, self.deaths, self.deadly = random.Random(seed), deaths, deadly
        self.started = 0
        self.starting = [self.name() for _ in range(workers)]
        self.idle: set[str] = set()
        self.at: dict[str, int] = {}
        self.begun: Counter[int] = Counter()
        self.most = 0
        self.closed = False

    def name(self) -> str:
        self.started += 1
        return f"w{self.started}"

    def give(self, worker: str, item: Any) -> None:
        self.idle.remove(worker)
        self.at[worker] = item
        self.begun[item] += 1
        self.most = max(self.most, item)

    def wait(self, seconds: float) -> Sequence[Event]:
        choices = [*self.starting, *self.at]
        assert choices, "nothing is under way, and nothing would ever happen"
        worker = self.rng.choice(choices)
        if worker in self.starting:
            self.starting.remove(worker)
            self.idle.add(worker)
            return [Event("ready", worker, "facts")]
        item = self.at.pop(worker)
        dies = item in self.deadly or (self.deaths > 0 and self.rng.random() < 0.3)
        if dies:
            self.deaths -= 1
            self.starting.append(self.name())
            return [Event("lost", worker, why="its node has died")]
        self.idle.add(worker)
        return (
            [Event("done", worker, error=EnvError("13 is not played"))]
            if item == 13
            else [Event("done", worker, 2 * item)]
        )

    def close(self) -> None:
        self.closed = True


def doubled(crew: Scripted, items: Sequence[int], retries: int = 100) -> list[int]:
    return list(Pool(crew, lambda text: None, retries).map(items))


@given(st.integers(0, 12), st.integers(1, 5), st.integers(0, 10**6), st.integers(0, 20))
def test_every_item_has_one_result_in_order_whoever_dies(items: int, workers: int, seed: int, deaths: int) -> None:
    crew = Scripted(workers, seed, deaths)
    assert doubled(crew, range(items)) == [2 * number for number in range(items)]
    lost = deaths - crew.deaths
    assert crew.begun.total() == items + lost and set(crew.begun) == set(range(items))


@given(st.integers(1, 4), st.integers(0, 10**6))
def test_what_an_item_raises_comes_in_its_place_and_is_not_retried(workers: int, seed: int) -> None:
    crew = Scripted(workers, seed)
    results = Pool(crew, lambda text: None).map(range(20))
    assert [next(results) for _ in range(13)] == [2 * number for number in range(13)]
    with pytest.raises(EnvError, match="13 is not played"):
        next(results)
    assert crew.begun[13] == 1


def test_an_item_that_kills_its_workers_is_given_up_after_so_many() -> None:
    crew, notices = Scripted(2, deadly=[3]), list[str]()
    with pytest.raises(
        WorkerError, match=r"Part 4 of 6 ended its worker 3 times in a row, .* because its node has died"
    ):
        list(Pool(crew, notices.append, 2).map(range(6)))
    assert crew.begun[3] == 3 and len(notices) == 2 and "Part 4 of 6 is repeated" in notices[0]


def test_facts_are_those_of_the_first_worker_that_is_ready_and_a_pool_maps_again() -> None:
    pool = Pool(crew := Scripted(2), lambda text: None)
    assert pool.facts() == "facts" and not crew.begun
    assert list(pool.map([1, 2])) == [2, 4] and list(pool.map([5])) == [10]
    pool.close()
    assert crew.closed


def test_a_setup_that_raises_is_raised_and_one_that_dies_is_tried_again() -> None:
    class Unready(Scripted):
        events: Sequence[Event] = [Event("refused", "w1", error=EnvError("no games here"))]

        def wait(self, seconds: float) -> Sequence[Event]:
            return self.events

    with pytest.raises(EnvError, match="no games here"):
        Pool(Unready(1), lambda text: None).facts()
    crew = Unready(1)
    crew.events = [Event("lost", "w1", why="memory ran out")]
    with pytest.raises(WorkerError, match=r"No worker starts: 4 in a row .* because memory ran out"):
        next(Pool(crew, lambda text: None).map([1]))


def test_maps_of_several_threads_share_the_workers_and_each_has_its_own_results() -> None:
    crew, found = Scripted(3, seed=2, deaths=6), dict[int, list[int]]()
    pool = Pool(crew, lambda text: None, 9)

    def collect(first: int) -> None:
        found[first] = list(pool.map(range(first, first + 30, 2)))

    threads = [threading.Thread(target=collect, args=(first,)) for first in (14, 1014, 2015)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {first: [2 * item for item in range(first, first + 30, 2)] for first in (14, 1014, 2015)}
    assert set(crew.begun.values()) <= {1, 2, 3, 4, 5, 6, 7} and crew.begun.total() == 45 + 6 - crew.deaths


def test_a_map_that_is_left_gives_its_workers_to_the_others() -> None:
    left: list[int] = []

    def leave() -> None:
        left.append(1)
        if len(left) == 4:
            raise KeyboardInterrupt

    pool = Pool(Scripted(2), lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        list(pool.map(range(50), stop=leave))
    assert list(pool.map(range(100, 103))) == [200, 202, 204]
    pool.close()
    with pytest.raises(WorkerError, match="were stopped"):
        list(pool.map([1]))


def twice(marks: Path) -> tuple[Callable[[int], int], None]:
    """Doubles numbers; its process dies at 5 for the first time, and at 7 always."""

    def double(number: int) -> int:
        mark = marks / str(number)
        if number == 7 or (number == 5 and not mark.exists()):
            mark.touch()
            os._exit(3)
        return 2 * number

    return double, None


def test_processes_of_this_machine_that_die_are_replaced(tmp_path: Path) -> None:
    pool = Pool(ProcessCrew(partial(twice, tmp_path), 2), lambda text: None)
    assert list(pool.map(range(7))) == [0, 2, 4, 6, 8, 10, 12]
    results = pool.map([6, 7])
    assert next(results) == 12
    with pytest.raises(WorkerError, match=r"Part 2 of 2 ended its worker 4 times .* its process ended with code 3"):
        next(results)
    pool.close()
