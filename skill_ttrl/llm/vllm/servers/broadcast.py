"""Weights broadcast to servers: a process group with each server's process, opened at the first hand-over and kept.

Every tensor is gathered once and sent to all servers as it comes. A server that is lost meanwhile leaves the others alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch

from skill_ttrl.errors import ConfigError, EndpointError, WeightSyncError
from skill_ttrl.llm.vllm.plugin.skillttrl_group import (
    CONNECT_TIMEOUT,
    SEND_TIMEOUT,
    GroupError,
    WeightGroup,
    broadcast,
    host_store,
    listen,
    signed_in,
)
from skill_ttrl.llm.vllm.servers import transfer
from skill_ttrl.llm.vllm.servers.http import LOOK_TIMEOUT, Server, ServerLost
from skill_ttrl.llm.vllm.servers.transfer import Delivery, T, send_weights, update_of

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")
SIGN_IN_POLL = 0.01
"""Seconds between two looks whether a server has come to the store of its group."""
Shapes = Sequence[tuple[str, torch.dtype, list[int]]]


class Groups:
    """The groups of a learner that sends from `device`, and that its servers reach at `address`.

    Raises:
        ConfigError: `address` is none of this machine.
    """

    def __init__(self, address: str | None, device: str) -> None:
        self.address, self._device = address or LOOPBACK, torch.device(device)
        self._kept: dict[str, tuple[str | None, WeightGroup]] = {}
        try:
            if self.address in EVERYWHERE:
                raise OSError(0, "servers cannot be told that one")
            listen(self.address).close()
        except OSError as error:
            raise ConfigError(
                f"vllm.weight_transfer_address is {self.address}, where this machine cannot wait for its servers "
                f"({error.strerror}). Name one of its own addresses that they reach, or leave it out where they run here."
            ) from None

    def with_server(self, server: Server) -> WeightGroup:
        """The group with a server's process: the one that is kept, or a new one.

        Raises:
            ServerLost: the server does not answer, or does not come.
            EndpointError: it refuses.
        """
        _, process = server.weight_version()
        known, group = self._kept.pop(server.address, (None, None))
        if group is None or known != process or not self._is_whole(server, group):
            group = self._open(server)
        self._kept[server.address] = process, group
        return group

    def drop(self, server: Server, error: str) -> None:
        """Give up the group with a server, for this reason; a thread that sends in it finds out."""
        _, group = self._kept.pop(server.address, (None, None))
        if group is not None:
            group.abandon(error)

    def close(self) -> None:
        """Leave all groups."""
        while self._kept:
            self._kept.popitem()[1][1].close()

    def _is_whole(self, server: Server, group: WeightGroup) -> bool:
        if not group.error:
            try:
                self._meet(server, {"group": group.name}, lambda _: group.check())
                return True
            except (ServerLost, EndpointError):  # it broke, or another learner's took its place
                group.close()
        return False

    def _open(self, server: Server) -> WeightGroup:
        name, store = secrets.token_hex(16), host_store(self.address)

        def connect(asked: Future[Any]) -> WeightGroup:
            while (found := signed_in(store, name)) is None:
                if asked.done():
                    raise GroupError("it did not come")
                time.sleep(SIGN_IN_POLL)
            size, device = found
            place = self._device if device == "cuda" else torch.device("cpu")
            return WeightGroup(name, store, 0, size, address=self.address, device=place, timeout=SEND_TIMEOUT)

        where = {"address": self.address, "port": store.port, "sender": self._device.type}
        return self._meet(server, {"group": name, **where}, connect)

    def _meet(self, server: Server, told: dict[str, Any], here: Callable[[Future[Any]], T]) -> T:
        """Do `here` while the server, which is sent the place, does the same."""
        body, timeout = {"init_info": {**transfer.INIT, **told}}, CONNECT_TIMEOUT + LOOK_TIMEOUT
        with ThreadPoolExecutor(1) as asking:
            asked = asking.submit(server.post, "/init_weight_transfer_engine", body, timeout)
            try:
                found = here(asked)
            except RuntimeError as error:
                asked.result()  # what the server says of it is better
                raise ServerLost(f"{server.address} is not in the learner's group: {error}") from error
            asked.result()
            return found


class Broadcast(Delivery):
    """All weights, as `weights` gives them, of these `shapes`."""

    def __init__(
        self, groups: Groups, weights: Callable[[], Iterator[tuple[str, torch.Tensor]]], shapes: Shapes
    ) -> None:
        super().__init__(self._send)
        self._groups, self._weights, self._shapes = groups, weights, shapes
        names, dtypes, sizes = zip(*shapes, strict=True)
        told = [str(dtype).removeprefix("torch.") for dtype in dtypes]
        self._info = {"names": names, "dtype_names": told, "shapes": sizes}
        self._advice = (
            "Servers that can take them are started by `skillttrl serve` of the same version (an older one takes files alone: "
            f"vllm.weight_transfer=file) with the same model, and reach this machine at {groups.address} "
            "(vllm.weight_transfer_address)."
        )

    def run(self, work: Callable[[Server], T], servers: Sequence[Server]) -> list[T]:
        """See `Delivery`; the weights are sent once every server waits for them, or has failed."""
        self._arrivals: SimpleQueue[tuple[str, WeightGroup | None]] = SimpleQueue()
        self._go: Future[None] = Future()
        return super().run(work, servers)

    def _send(self, server: Server, version: str) -> None:
        group: WeightGroup | None = None

        def prepare() -> None:
            nonlocal group
            group = self._groups.with_server(server)

        def update() -> None:
            self._arrivals.put((server.address, group))
            self._go.result()
            server.post("/update_weights", {"update_info": self._info})

        try:
            with update_of(server, self._advice):
                try:
                    send_weights(server, version, prepare, update)
                except ServerLost as lost:
                    if group is not None and group.error:
                        raise ServerLost(f"{lost}; here: {group.error}") from lost
                    raise
        except BaseException as error:
            self._groups.drop(server, str(error))
            raise

    def _feed(self, servers: Sequence[Server], working: list[Future[T]]) -> list[Future[T]]:
        arrivals, there = self._arrivals, dict[str, WeightGroup | None]()

        def note_the_end(server: Server, future: Future[T]) -> None:
            future.add_done_callback(lambda _: arrivals.put((server.address, None)))

        for server, future in zip(servers, working, strict=True):
            note_the_end(server, future)
        try:
            while len(there) < len(servers):
                address, found = arrivals.get()
                there[address] = found
            self._go.set_result(None)
            groups = [group for group in there.values() if group is not None]
            if groups:
                self._stream(groups)
        except BaseException as error:
            if not self._go.done():
                self._go.set_exception(ServerLost("The hand-over was broken off"))
            for group in filter(None, there.values()):
                group.close(str(error))
            raise
        return working

    def _stream(self, groups: list[WeightGroup]) -> None:
        """Send everything; to the end also where no server is left, since all ranks of the learner gather with this one."""
        for (name, tensor), expected in zip(self._weights(), self._shapes, strict=True):
            if (name, tensor.dtype, list(tensor.shape)) != expected:
                raise WeightSyncError(f"The learner gives {name} with another type or shape than it said: {expected}.")
            groups = broadcast(groups, tensor)
