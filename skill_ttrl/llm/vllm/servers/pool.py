"""Servers that follow the learner: which of them has the present weights, and how the others get them.

A server that was started again has the weights of its start. Each answer names its process, so weights
are known to be there only for a process that was given them and compared with the learner afterwards.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skill_ttrl.errors import EndpointError
from skill_ttrl.llm.models.weights import full_weights, trained_weights, weight_shapes
from skill_ttrl.llm.vllm.checks import hands_adapters
from skill_ttrl.llm.vllm.probe import MAX_LOGPROB_DIFF, LogprobDiff, Probe, check_sync, learner_logprobs
from skill_ttrl.llm.vllm.servers.broadcast import Broadcast, Groups
from skill_ttrl.llm.vllm.servers.dispatch import POLL, unanswered
from skill_ttrl.llm.vllm.servers.http import Server, ServerLost, prompt_logprobs
from skill_ttrl.llm.vllm.servers.transfer import (
    Delivery,
    awake,
    file_delivery,
    remove,
    remove_leftovers,
    send_adapters,
    weight_transfer_dir,
    weights_file,
)
from skill_ttrl.llm.vllm.updates import adapted_layers

if TYPE_CHECKING:
    from skill_ttrl.llm.context import BackendContext

ORIGINAL = "default"
"""How vLLM calls the weights that it started with."""


class ServerPool:
    """All servers of a backend; they and the learner are compared on `probe`. With `groups` weights are broadcast."""

    def __init__(
        self, context: BackendContext, servers: Sequence[Server], probe: Probe, groups: Groups | None = None
    ) -> None:
        self._context, self._config = context, context.settings.vllm
        self.servers = list(servers)
        self.last_logprob_diff: LogprobDiff | None = None
        """Between servers and learner after the last update, the largest of all servers."""
        self.present: str | None = None
        """Version of the weights that the servers are to have; None: the learner's, not handed over yet."""
        self._probe = probe
        self._nonce = secrets.token_hex(4)
        self._folder: Path | None = None
        """Where files pass; None where none do, and before the first hand-over."""
        self._adapters: Path | None = None
        """The learner's adapters; they must stay as long as a server has them."""
        self._handed = False
        self._groups = groups

    def keep_original(self) -> None:
        """Take the weights that the servers started with for the policy's, unless one has others already."""
        with contextlib.suppress(ServerLost, EndpointError):  # one that does not say takes no weights either
            if all(server.weight_version()[0] == ORIGINAL for server in self.servers):
                self.present = ORIGINAL

    def broadcast_weights(self, policy_version: int) -> None:
        """Give every server that answers the learner's weights, at least one of them within `vllm.start_timeout`.

        Raises:
            ConfigError: adapters are to be handed over, and there are none, or on the output layer.
            WeightSyncError: a server does not take them, or differs from the learner afterwards.
            EndpointError: none answers.
        """
        model = self._context.loaded.model
        if self._folder is None and self._groups is None:
            self._folder = weight_transfer_dir(self._config.weight_transfer_dir)
            remove_leftovers(self._folder)
        self._handed, older = True, self._adapters
        self.present = f"{self._nonce}:{policy_version}"
        for server in self.servers:
            server.holds = False
        if hands_adapters(self._context):
            adapted_layers(model)  # refuses those that no engine can follow
            assert self._folder is not None  # a config that broadcasts adapters is refused
            self._adapters = self._folder / self._name()
            model.save_pretrained(self._adapters, state_dict=self._context.on_learner(trained_weights))
        with self._delivery() as delivery:
            self._update_all(delivery)
        if older is not None:
            remove(older)

    def ensure_current(self, server: Server) -> None:
        """Make sure that a server has the present weights: one that was started again has those of its start.

        Raises:
            ServerLost: it does not answer.
            WeightSyncError: as for `broadcast_weights`.
            EndpointError: somebody else has given it weights.
        """
        with server.lock:
            version, process = server.weight_version()
            if version == self.present and (version == ORIGINAL or (server.holds and process == server.process)):
                server.process = process
            else:
                self._bring_back(server, version)
            server.said.clear()

    def _bring_back(self, server: Server, version: str) -> None:
        """Bring the present weights to a server that has others."""
        if self.present == ORIGINAL or not self._handed:
            raise EndpointError(
                f"{server.address} was given weights of version {version} while it was used here: two runs share it. Start "
                "servers for each.",
                kind="refused",
            )
        self._context.notice(f"{server.address} is given the weights of version {self.present} again.")
        sequences, ours = self._probed()
        with self._delivery() as delivery:
            delivery.run(lambda server: self._update(server, delivery, sequences, ours), [server])

    def still(self, server: Server) -> bool:
        """True if the answers of a server since `ensure_current` are of the present weights: nobody gave it others meanwhile.

        Answers are taken only from the process that had the weights, so those of one that has died since are right.
        """
        try:
            version, process = server.weight_version()
        except ServerLost:
            return True
        return process != server.process or version == self.present

    def sleep(self) -> None:
        """Let the servers sleep, where the config says so and weights were handed over: then they will be again."""
        if self._config.enable_sleep_mode and self._handed:
            for server in self.servers:
                with contextlib.suppress(ServerLost):  # its memory is free
                    # 1 keeps the weights in main memory, 2 drops them.
                    server.post(f"/sleep?level={1 if hands_adapters(self._context) else 2}&mode=wait")

    def close(self) -> None:
        """Remove what was put into the folder, and leave the servers' groups; the servers go on."""
        if self._groups is not None:
            self._groups.close()
        if self._adapters is not None:
            remove(self._adapters)
            self._adapters = None

    def _name(self) -> str:
        return f"{os.getpid()}-{self._nonce}-{secrets.token_hex(4)}"

    @contextlib.contextmanager
    def _delivery(self) -> Iterator[Delivery]:
        """How the present weights are brought to servers."""
        if self._adapters is not None:
            yield Delivery(partial(send_adapters, path=self._adapters))
        elif self._groups is not None:
            shapes = self._context.on_learner(weight_shapes)
            yield Broadcast(self._groups, lambda: self._context.on_learner(full_weights), shapes)
        else:
            assert self._folder is not None
            with weights_file(self._folder, self._name(), self._context.on_learner(full_weights)) as path:
                yield file_delivery(path)

    def _probed(self) -> tuple[Sequence[Sequence[int]], list[list[float]]]:
        """The sequences of the probe, and the learner's log-probs of them."""
        sequences = self._probe.sequences
        return sequences, self._context.on_learner(learner_logprobs, sequences, self._context.autocast)

    def _update_all(self, delivery: Delivery) -> None:
        """Bring the present weights to all servers at once."""
        sequences, ours = self._probed()

        def update(server: Server) -> LogprobDiff | ServerLost:
            try:
                with server.lock:
                    return self._update(server, delivery, sequences, ours)
            except ServerLost as lost:
                return lost

        began, noticed = time.monotonic(), False
        while True:
            found = delivery.run(update, self.servers)
            gaps = [each for each in found if isinstance(each, LogprobDiff)]
            lost = [str(each) for each in found if isinstance(each, ServerLost)]
            if lost and not noticed:
                self._context.notice(f"{'; '.join(lost)}: to be given the weights later.")
                noticed = True
            if gaps:
                self.last_logprob_diff = max(gaps, key=lambda gap: gap.mean)
                return
            waited = time.monotonic() - began
            if waited > self._config.start_timeout or self._context.stopping():
                raise unanswered(self.servers[0].address, waited, lost[0])
            time.sleep(POLL)

    def _update(
        self, server: Server, delivery: Delivery, sequences: Sequence[Sequence[int]], ours: Sequence[Sequence[float]]
    ) -> LogprobDiff:
        """Bring the present weights to one server, and compare."""
        assert self.present is not None
        with awake(server, sleeps=self._config.enable_sleep_mode):
            delivery.send(server, self.present)
        dtype: str = self._config.dtype
        if dtype == "auto":
            dtype = str(self._context.autocast or self._context.loaded.model.dtype).removeprefix("torch.")
        theirs, most = prompt_logprobs(server, sequences), self._config.max_logprob_diff or MAX_LOGPROB_DIFF[dtype]
        gap = check_sync(ours, theirs, most, f"vllm.weight_sync={self._config.weight_sync} at {server.address}")
        version, server.process = server.weight_version()
        if version != self.present:
            raise ServerLost(f"{server.address} has weights of version {version} right after their update")
        server.holds = True
        return gap
