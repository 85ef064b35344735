"""Servers that follow the learner: which of them has the present weights, and how the others get them.

A server that was started again has the weights of its start. Each answer names its process, so weights
are known to be there only for a process that was given them and compared with the learner afterwards.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from skill_ttrl.errors import EndpointError
from skill_ttrl.llm.models.weights import full_weights, trained_weights
from skill_ttrl.llm.vllm.checks import hands_adapters
from skill_ttrl.llm.vllm.probe import MAX_LOGPROB_DIFF, LogprobDiff, Probe, check_sync, learner_logprobs
from skill_ttrl.llm.vllm.servers.dispatch import POLL, unanswered
from skill_ttrl.llm.vllm.servers.http import Server, ServerLost, prompt_logprobs
from skill_ttrl.llm.vllm.servers.transfer import (
    awake,
    remove,
    remove_leftovers,
    send_adapters,
    send_weights,
    weight_transfer_dir,
    weights_file,
)
from skill_ttrl.llm.vllm.updates import adapted_layers

if TYPE_CHECKING:
    from skill_ttrl.llm.context import BackendContext

ORIGINAL = "default"
"""How vLLM calls the weights that it started with."""


class ServerPool:
    """All servers of a backend; they and the learner are compared on `probe`."""

    def __init__(self, context: BackendContext, servers: Sequence[Server], probe: Probe) -> None:
        self._context, self._config = context, context.settings.vllm
        self.servers = list(servers)
        self.last_logprob_diff: LogprobDiff | None = None
        """Between servers and learner after the last update, the largest of all servers."""
        self.present: str | None = None
        """Version of the weights that the servers are to have; None: the learner's, not handed over yet."""
        self._probe = probe
        self._nonce = secrets.token_hex(4)
        self._folder: Path | None = None
        self._adapters: Path | None = None
        """The learner's adapters; they must stay as long as a server has them."""

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
        if self._folder is None:
            self._folder = weight_transfer_dir(self._config.weight_transfer_dir)
            remove_leftovers(self._folder)
        self.present, older = f"{self._nonce}:{policy_version}", self._adapters
        for server in self.servers:
            server.holds = False
        if hands_adapters(self._context):
            adapted_layers(model)  # refuses those that no engine can follow
            self._adapters = self._folder / self._name()
            model.save_pretrained(self._adapters, state_dict=self._context.on_learner(trained_weights))
            self._update_all(self._adapters)
            if older is not None:
                remove(older)
        else:
            with weights_file(self._folder, self._name(), self._context.on_learner(full_weights)) as path:
                self._update_all(path)

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
        if self.present == ORIGINAL or self._folder is None:
            raise EndpointError(
                f"{server.address} was given weights of version {version} while it was used here: two runs share it. Start "
                "servers for each.",
                kind="refused",
            )
        self._context.notice(f"{server.address} is given the weights of version {self.present} again.")
        sequences = self._probe.sequences
        ours = self._context.on_learner(learner_logprobs, sequences, self._context.autocast)
        if self._adapters is not None:
            self._update(server, self._adapters, sequences, ours)
            return
        with weights_file(self._folder, self._name(), self._context.on_learner(full_weights)) as path:
            self._update(server, path, sequences, ours)

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
        if self._config.enable_sleep_mode and self._folder is not None:
            for server in self.servers:
                with contextlib.suppress(ServerLost):  # its memory is free
                    # 1 keeps the weights in main memory, 2 drops them.
                    server.post(f"/sleep?level={1 if hands_adapters(self._context) else 2}&mode=wait")

    def close(self) -> None:
        """Remove what was put into the folder; the servers go on."""
        if self._adapters is not None:
            remove(self._adapters)
            self._adapters = None

    def _name(self) -> str:
        return f"{os.getpid()}-{self._nonce}-{secrets.token_hex(4)}"

    def _update_all(self, path: Path) -> None:
        """Bring what is at `path` to all servers at once."""
        sequences = self._probe.sequences
        ours = self._context.on_learner(learner_logprobs, sequences, self._context.autocast)

        def update(server: Server) -> LogprobDiff | ServerLost:
            try:
                with server.lock:
                    return self._update(server, path, sequences, ours)
            except ServerLost as lost:
                return lost

        began, noticed = time.monotonic(), False
        while True:
            with ThreadPoolExecutor(len(self.servers)) as pool:
                found = list(pool.map(update, self.servers))
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
        self, server: Server, path: Path, sequences: Sequence[Sequence[int]], ours: Sequence[Sequence[float]]
    ) -> LogprobDiff:
        """Bring what is at `path` to one server, and compare."""
        assert self.present is not None
        with awake(server, sleeps=self._config.enable_sleep_mode):
            if hands_adapters(self._context):
                send_adapters(server, path, self.present)
            else:
                send_weights(server, path, self.present)
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
