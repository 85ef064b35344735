"""The group in which weights are broadcast: two processes on loopback, without vLLM."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import pytest
import torch

from skill_ttrl.llm.vllm.plugin import skillttrl_group
from skill_ttrl.llm.vllm.plugin.skillttrl_group import GroupError, WeightGroup, broadcast, host_store, join, signed_in

LOOPBACK = "127.0.0.1"
CPU = torch.device("cpu")
TENSORS = [
    torch.arange(6, dtype=torch.float32).view(2, 3),
    torch.tensor(7, dtype=torch.int64),
    torch.full((3, 5), 0.1, dtype=torch.bfloat16),
    torch.tensor([True, False]),
    torch.empty(0, 4),
    torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0)).t(),
]
LARGE = torch.zeros(4_000_000)
"""More than a socket's buffers hold."""


def take_all(group: WeightGroup, said: Any) -> None:
    for tensor in TENSORS:
        found = torch.empty(tensor.shape, dtype=tensor.dtype)
        group.start(found)
        group.finish()
        said.send(torch.equal(found, tensor))
    said.recv()


def die(group: WeightGroup, said: Any) -> None:
    group.start(torch.empty_like(LARGE))
    group.finish()
    os.kill(os.getpid(), signal.SIGKILL)


def hang(group: WeightGroup, said: Any) -> None:
    said.recv()


def leave(group: WeightGroup, said: Any) -> None:
    group.close()
    said.recv()


def check_again(group: WeightGroup, said: Any) -> None:
    try:
        group.check()
    except GroupError as error:
        said.send(str(error))
    else:
        said.send("all are there")


def member(port: int, rank: int, size: int, work: Callable[[WeightGroup, Any], None], said: Any) -> None:
    work(join("name", LOOPBACK, port, "cpu", rank, size, CPU), said)


@contextmanager
def group_with(
    *works: Callable[[WeightGroup, Any], None], timeout: float = 20
) -> Iterator[tuple[WeightGroup, list[Any]]]:
    """The learner's side of a group with processes that do these works."""
    store, ends, processes = host_store(LOOPBACK), [], []
    size = 1 + len(works)
    for rank, work in enumerate(works, start=1):
        mine, theirs = get_context("spawn").Pipe()
        args = (store.port, rank, size, work, theirs)
        processes.append(get_context("spawn").Process(target=member, args=args, daemon=True))
        processes[-1].start()
        ends.append(mine)
    try:
        while (found := signed_in(store, "name")) is None:
            assert all(process.is_alive() for process in processes)
            time.sleep(0.01)
        assert found == (size, "cpu")
        yield WeightGroup("name", store, 0, size, address=LOOPBACK, device=CPU, timeout=timeout), ends
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_tensors_of_all_types_and_layouts_come_to_every_member_as_they_are() -> None:
    before = torch.distributed.is_initialized()
    with group_with(take_all, take_all) as (group, members):
        for tensor in TENSORS:
            assert broadcast([group], tensor) == [group]
            assert all(each.recv() for each in members)
    assert torch.distributed.is_initialized() == before, "the default group is untouched"


def test_a_check_finds_that_all_are_there() -> None:
    with group_with(check_again) as (group, (other,)):
        group.check()
        assert other.recv() == "all are there"


@pytest.mark.parametrize(("work", "seconds"), [(die, 5), (leave, 5), (hang, 12)])
def test_a_member_that_is_lost_ends_in_an_error_within_the_time_out(
    work: Callable[[WeightGroup, Any], None], seconds: float
) -> None:
    with group_with(work, timeout=3) as (group, _):
        began = time.monotonic()
        while broadcast([group], LARGE):
            assert time.monotonic() - began < seconds
        assert time.monotonic() - began < seconds
        assert group.error
        with pytest.raises(GroupError):
            group.check()


def test_a_server_that_hangs_or_dies_leaves_the_others_alone() -> None:
    with (
        group_with(take_all) as (well, (other,)),
        group_with(hang, timeout=3) as (hung, _),
        group_with(die, timeout=3) as (dead, _),
    ):
        broadcast([hung], LARGE)  # fills the buffers, where there is room
        broadcast([dead], LARGE)
        left = [well, hung, dead]
        for tensor in TENSORS:
            left = broadcast(left, tensor)
            assert other.recv()
        assert left[0] is well and not well.error and hung.error


def test_a_learner_that_goes_away_ends_what_a_member_waits_for() -> None:
    with group_with(check_again) as (group, (other,)):
        group.close()
        assert other.poll(10) and "by peer" in other.recv()  # closed or reset


def test_nobody_there_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skillttrl_group, "CONNECT_TIMEOUT", 1.0)
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        join("name", LOOPBACK, port, "cpu", 1, 2, CPU)
    store = host_store(LOOPBACK)
    assert signed_in(store, "name") is None
    began = time.monotonic()
    with pytest.raises(GroupError):
        WeightGroup("name", store, 0, 2, address=LOOPBACK, device=CPU, timeout=1)
    assert time.monotonic() - began < 10


def test_a_store_listens_at_its_address_alone() -> None:
    store = host_store(LOOPBACK)
    others = [str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    socket.create_connection((LOOPBACK, store.port), 5).close()
    for other in {*others, "127.0.0.2"} - {LOOPBACK}:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((other, store.port), 5)
    with pytest.raises(OSError, match="assign"):
        host_store("192.0.2.1")
