"""The process group in which a learner (rank 0) broadcasts weights to the workers of one server.

Learner and server import this module, so it imports torch alone. The group is apart from the default one of `torch.distributed`,
which neither side touches: NCCL where both compute on a GPU, else gloo.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

CONNECT_TIMEOUT = 60.0
"""Seconds in which all members must have connected; processes that are already running take less than one."""
SEND_TIMEOUT = 120.0
"""Seconds in which a server must have taken one tensor: a large embedding of 2 GB over a network of 20 MB/s."""
RECEIVE_TIMEOUT = 600.0
"""Seconds in which the next tensor must have come: the learner waits up to `SEND_TIMEOUT` for each other server that hangs."""
POLL = 0.0002
"""Seconds between two looks at a broadcast under way."""
SIGNED_IN = "signed in"

_variables = threading.Lock()
"""Held while an environment variable is set for a group that is made."""


class GroupError(RuntimeError):
    """The members of a group did not meet, or one is gone."""


class WeightGroup:
    """A member of the group `name`, connected.

    Args:
        store: where the members find each other.
        rank: 0 sends what the others receive.
        address: of this member, as the others reach it (gloo; NCCL finds its own, see `NCCL_SOCKET_IFNAME`).
        device: where the tensors to send or to receive must lie.
        timeout: seconds for one tensor.

    Raises:
        GroupError: not all members have connected.
    """

    def __init__(
        self, name: str, store: Any, rank: int, size: int, *, address: str, device: torch.device, timeout: float
    ) -> None:
        self.name, self.device, self.error = name, device, ""
        self._store, self._timeout = store, timeout
        self._work: Any = None
        make = _nccl if device.type == "cuda" else _gloo
        try:
            self._group: Any = make(PrefixStore(name, store), rank, size, address)
            self.check()  # NCCL connects at the first broadcast
        except RuntimeError as error:
            raise GroupError(_short(error)) from error

    def check(self) -> None:
        """Broadcast one number: every member does this at the same time, and knows then that the others are there."""
        self.start(torch.zeros(1, device=self.device))
        self.finish()

    def start(self, tensor: torch.Tensor) -> None:
        """Begin to send, or to receive into, a contiguous tensor of any type."""
        if self._group is None:
            raise GroupError(self.error)
        options = BroadcastOptions()
        options.rootRank, options.timeout = 0, timedelta(seconds=self._timeout)
        self._work = self._group.broadcast([tensor.detach().view(-1).view(torch.uint8)], options)

    def finish(self) -> None:
        """Wait until the tensor is there.

        Raises:
            GroupError: it took too long, or another member is gone.
        """
        work, self._work = self._work, None
        until = time.monotonic() + self._timeout + 5  # gloo ends by itself, and before
        while not work.is_completed():
            if time.monotonic() > until:
                raise GroupError(f"no answer within {self._timeout:.0f} s")
            time.sleep(POLL)
        try:
            work.wait()
        except RuntimeError as error:
            raise GroupError(_short(error)) from error

    def close(self, error: str = "closed") -> None:
        """Leave the group, for this reason; the other members notice. For the thread that sends or receives."""
        self.abandon(error)
        self._group = None

    def abandon(self, error: str) -> None:
        """Have the thread that sends give up; what gloo has under way ends by itself."""
        group, self.error = self._group, self.error or error
        if group is not None and self.device.type == "cuda":
            group.abort()


def broadcast(groups: Sequence[WeightGroup], tensor: torch.Tensor) -> list[WeightGroup]:
    """Send a tensor to all groups at once; returns those that took it. The others are closed: their `error` says why."""
    places = {device: tensor.detach().to(device).contiguous() for device in {group.device for group in groups}}
    steps: list[Callable[[WeightGroup], None]] = [lambda group: group.start(places[group.device]), WeightGroup.finish]
    for step in steps:
        for group in groups:
            try:
                step(group)
            except RuntimeError as error:
                group.close(_short(error))
        groups = [group for group in groups if not group.error]
    return list(groups)


def listen(address: str) -> socket.socket:
    """A socket that listens at an address of this machine, and at no other; raises `OSError` where it has none such."""
    family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server(place, family=family)


def host_store(address: str) -> Any:
    """The store of a new group, at a free port of this machine."""
    listener = listen(address)
    port = listener.getsockname()[1]
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=CONNECT_TIMEOUT),
        master_listen_fd=listener.detach(),
    )


def signed_in(store: Any, name: str) -> tuple[int, str] | None:
    """(members of the group, where their tensors lie: `cpu` or `cuda`) once a worker has come to the store."""
    found = PrefixStore(name, store)
    if not found.check([SIGNED_IN]):
        return None
    size, _, device = found.get(SIGNED_IN).decode().partition(" ")
    return int(size), device


def join(name: str, address: str, port: int, sender: str, rank: int, size: int, device: torch.device) -> WeightGroup:
    """Join, as a worker that computes on `device`, the group of a learner that sends from `sender` (`cpu` or `cuda`).

    Raises:
        OSError, GroupError: the learner is not to be reached at that address.
    """
    with socket.create_connection((address, port), CONNECT_TIMEOUT) as connection:
        own = connection.getsockname()[0]
    store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_TIMEOUT))
    place = device if device.type == sender == "cuda" else torch.device("cpu")
    PrefixStore(name, store).set(SIGNED_IN, f"{size} {place.type}")
    return WeightGroup(name, store, rank, size, address=own, device=place, timeout=RECEIVE_TIMEOUT)


def _gloo(store: Any, rank: int, size: int, address: str) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=CONNECT_TIMEOUT)
    options._threads = 1
    return ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, address: str) -> Any:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=2 * RECEIVE_TIMEOUT)  # `finish` gives up before
    variable = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    with _variables:
        before = os.environ.get(variable)
        os.environ[variable] = "2"  # CleanUpOnly: by default a group that breaks ends its whole process
        try:
            return ProcessGroupNCCL(store, rank, size, options)
        finally:
            if before is None:
                del os.environ[variable]
            else:
                os.environ[variable] = before


def _short(error: BaseException) -> str:
    """The error in a line, without the place in torch's sources and the advice that it adds."""
    said = " ".join(str(error).split())
    return re.sub(r"^\[\S*\] ", "", said).partition(" This is typically")[0][:300]
