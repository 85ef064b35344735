"""The `vllm` backend with servers: tokens go out and come back over HTTP, weights pass through a folder.

The servers live in processes, and if need be in an environment, of their own (`skillttrl serve`). Every process of a server that
is asked was given the learner's weights and compared with the learner on a probe; one that was started again is given them again
before it is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.chat import TokenizerMixin
from skill_ttrl.llm.event_loop import BackgroundEventLoop
from skill_ttrl.llm.models.weights import full_weights, trained_weights
from skill_ttrl.llm.vllm.checks import (
    check_learnable,
    check_prompt,
    completions,
    hands_adapters,
    read_policy,
    request_seed,
    sampling_fields,
)
from skill_ttrl.llm.vllm.engine import adapted_layers
from skill_ttrl.llm.vllm.probe import MAX_LOGPROB_DIFF, LogprobDiff, Probe, check_sync, learner_logprobs
from skill_ttrl.llm.vllm.servers.http import (
    Server,
    ServerLost,
    ask,
    awake,
    open_async_client,
    open_client,
    prompt_logprobs,
    remove,
    remove_leftovers,
    send_adapters,
    send_file,
    weight_transfer_dir,
    weights_file,
)
from skill_ttrl.types import Completion

if TYPE_CHECKING:
    from skill_ttrl.llm.context import BackendContext

ORIGINAL = "default"
"""How vLLM calls the weights that it started with."""
POLL = 1.0
"""Seconds between two looks at a server that does not answer."""
T = TypeVar("T")
MOST_ATTEMPTS = 3
"""Times that a request is sent; one that ends every server that takes it must not go round for ever."""
Scores = list[list[float]]


class ServerPool:
    """All servers of a backend; they and the learner are compared on `probe`."""

    def __init__(self, context: BackendContext, servers: Sequence[Server], probe: Probe) -> None:
        self._context, self._config = context, context.settings.vllm
        self.servers, self.notice = list(servers), context.notice
        self.last_logprob_diff: LogprobDiff | None = None
        """Between servers and learner after the last update, the largest of all servers."""
        self.present: str | None = None
        """Version of the weights that the servers are to have; None: the learner's, not handed over yet."""
        self._probe = probe
        self._nonce = secrets.token_hex(4)
        self._folder: Path | None = None
        """Where files pass; None before the first hand-over."""
        self._adapters: Path | None = None
        """The learner's adapters; they must stay as long as a server has them."""

    def keep_original(self) -> None:
        """Take the weights that the servers started with for the policy's, unless one has others already."""
        with contextlib.suppress(ServerLost, EndpointError):  # one that does not say takes no weights either
            if all(server.weight_version()[0] == ORIGINAL for server in self.servers):
                self.present = ORIGINAL

    def broadcast_weights(self, policy_version: int) -> None:
        """Give every server the learner's weights.

        Raises:
            ConfigError: adapters are to be handed over, and there are none, or on the output layer.
            WeightSyncError: a server does not take them, or differs from the learner afterwards.
            EndpointError: a server does not answer within `vllm.start_timeout`.
        """
        model = self._context.loaded.model
        if self._folder is None:
            self._folder = weight_transfer_dir(self._config.weight_transfer_dir)
            remove_leftovers(self._folder)
        older = self._adapters
        self.present = f"{self._nonce}:{policy_version}"
        for server in self.servers:
            server.holds = False
        if hands_adapters(self._context):
            adapted_layers(model)  # refuses those that no engine can follow
            self._adapters = self._folder / self._name()
            model.save_pretrained(self._adapters, state_dict=self._context.on_learner(trained_weights))
        with self._hand_over() as update, ThreadPoolExecutor(len(self.servers)) as threads:
            gaps = list(threads.map(lambda server: self.wait_for(server, partial(update, server)), self.servers))
        self.last_logprob_diff = max(gaps, key=lambda gap: gap.mean)
        if older is not None:
            remove(older)

    def wait_for(self, server: Server, work: Callable[[], T]) -> T:
        """Do `work` with a server as soon as it answers.

        Raises:
            EndpointError: it does not answer within `vllm.start_timeout`; the message names it.
        """
        began, noticed = time.monotonic(), False
        while True:
            try:
                with server.lock:
                    return work()
            except ServerLost as lost:
                waited = time.monotonic() - began
                if waited > self._config.start_timeout or self._context.stopping():
                    raise EndpointError(
                        f"The vLLM server {server.address} did not answer for {waited:.0f} s ({lost}). See its log; start it again "
                        "(skillttrl serve, or the supervisor that runs it) and resume, or set vllm.servers and vllm.start_timeout.",
                        kind="unreachable",
                    ) from None
                if not noticed:
                    self.notice(f"{lost}. Waiting up to {self._config.start_timeout:.0f} s (vllm.start_timeout).")
                    noticed = True
                time.sleep(POLL)

    def ensure_current(self, server: Server) -> None:
        """Wait until a server is there and has the present weights: one that was started again has those of its start.

        Raises:
            WeightSyncError: as for `broadcast_weights`.
            EndpointError: it does not answer in time, or somebody else has given it weights.
        """
        self.wait_for(server, partial(self._ensure_current, server))

    def _ensure_current(self, server: Server) -> None:
        version, process = server.weight_version()
        if version == self.present and (version == ORIGINAL or (server.holds and process == server.process)):
            server.process = process
            return
        if self.present == ORIGINAL or self._folder is None:
            raise EndpointError(
                f"{server.address} was given weights of version {version} while it was used here: two runs share it. Start "
                "servers for each.",
                kind="refused",
            )
        self.notice(f"{server.address} is given the weights of version {self.present} again.")
        with self._hand_over() as update:
            update(server)

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

    @contextlib.contextmanager
    def _hand_over(self) -> Iterator[Callable[[Server], LogprobDiff]]:
        """A function that brings a server the present weights, and compares; while the block runs they are there as a file."""
        assert self._folder is not None
        sequences = self._probe.sequences
        ours = self._context.on_learner(learner_logprobs, sequences, self._context.autocast)
        with contextlib.ExitStack() as stack:
            if self._adapters is not None:
                send = partial(send_adapters, path=self._adapters)
            else:
                weights = weights_file(self._folder, self._name(), self._context.on_learner(full_weights))
                send = partial(send_file, path=stack.enter_context(weights))
            yield lambda server: self._update(server, send, sequences, ours)

    def _update(
        self, server: Server, send: Callable[[Server, str], None], sequences: Sequence[Sequence[int]], ours: Scores
    ) -> LogprobDiff:
        assert self.present is not None
        with awake(server, sleeps=self._config.enable_sleep_mode):
            send(server, self.present)
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


async def answer_all(pool: ServerPool, bodies: Sequence[Mapping[str, Any]], connections: int) -> list[dict[str, Any]]:
    """The answers, in the order of the requests. What was lost with a server is sent again once all have the weights.

    Args:
        pool: the servers.
        bodies: the requests; the name of the model is filled in for each server.
        connections: most requests that run at the same time.

    Raises:
        EndpointError: a request is refused, a server did not come back in time, or requests were lost too often.
        WeightSyncError: a server came back and cannot take the weights.
    """
    answers: dict[int, tuple[Server, dict[str, Any]]] = {}
    lost = ""
    # A client of its own for each batch: a long-lived one looks through all of its open connections at every request.
    async with open_async_client(connections) as client:

        async def answer(place: int) -> str:
            server, size = min(pool.servers, key=lambda each: (each.load, each.asked)), int(bodies[place]["n"])
            server.load, server.asked = server.load + size, server.asked + 1
            try:
                answers[place] = server, await ask(client, server, {**bodies[place], "model": server.model})
                return ""
            except ServerLost as error:
                return str(error)
            finally:
                server.load -= size

        for _ in range(MOST_ATTEMPTS):
            await asyncio.gather(*(asyncio.to_thread(pool.ensure_current, server) for server in pool.servers))
            waiting = [place for place in range(len(bodies)) if place not in answers]
            lost = next(filter(None, await asyncio.gather(*map(answer, waiting))), lost)
            used = list({server.address: server for server, _ in answers.values()}.values())
            right = await asyncio.gather(*(asyncio.to_thread(pool.still, server) for server in used))
            for server in (each for each, is_right in zip(used, right, strict=True) if not is_right):
                lost = f"{server.address} was given other weights meanwhile"
                answers = {place: found for place, found in answers.items() if found[0] is not server}
            if len(answers) == len(bodies):
                return [answers[place][1] for place in range(len(bodies))]
            pool.notice(f"{lost}; its requests are sent again.")
    raise EndpointError(
        f"Requests were lost {MOST_ATTEMPTS} times, the last time because {lost}. See the server's log.", "lost"
    )


MOST_CONNECTIONS = 256
"""Requests to one server at the same time; it puts further ones into its own queue."""


class VLLMServerBackend(TokenizerMixin):
    """Samples from running vLLM servers. Log-probs with `top_p` below 1 or `top_k` are as those of `VLLMBackend`.

    Raises:
        ConfigError: the config names no server, or asks for what they cannot do.
        EndpointError: a server does not answer within `vllm.start_timeout`, or is no vLLM server.
    """

    is_learner, trainable, blocking = False, True, False

    def __init__(self, context: BackendContext) -> None:
        self._context, self._config = context, context.settings.vllm
        if not self._config.servers:
            raise ConfigError(
                "vllm.mode=server, but vllm.servers names none. Start one (skillttrl serve MODEL) and set "
                "vllm.servers=[http://127.0.0.1:8000]."
            )
        check_learnable(context.settings, context.model)
        self.supports_structured_outputs = True
        self.policy_version = 0
        self._client = open_client()
        self._first = threading.Lock()
        self._asking = BackgroundEventLoop("The sampler of the vLLM servers")
        try:
            self._handshake([Server(address, self._client) for address in self._config.servers])
        except BaseException:
            self._client.close()
            raise

    def _handshake(self, servers: list[Server]) -> None:
        """Find out what the servers serve."""
        waiting = ServerPool(self._context, servers, Probe(2))  # for how many tokens it must be is not known yet
        found = [waiting.wait_for(server, partial(self._served, server)) for server in servers]
        self.max_model_len: int | None = min(length for _, _, length in found)
        asked = self._config.max_model_len
        if asked is not None and asked > self.max_model_len:
            raise ConfigError(
                f"vllm.max_model_len is {asked}, but a server takes {self.max_model_len} tokens. Start it with --set "
                f"vllm.max_model_len={asked}, or lower the setting."
            )
        self.tokenizer, _, self.eos_ids = read_policy(self._context)
        self._probe = Probe(len(self.tokenizer), self.max_model_len - 1)
        self._pool = ServerPool(self._context, servers, self._probe)
        policy = self._context.model.weights or self._context.model.config.path
        same = (root == str(policy) or Path(root).resolve() == Path(policy).resolve() for _, root, _ in found)
        if not self._context.model.trains and all(same):
            self._pool.keep_original()

    @property
    def last_logprob_diff(self) -> LogprobDiff | None:
        """Between servers and learner after the last update, the largest of all servers."""
        return self._pool.last_logprob_diff

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request; see `Backend.generate`.

        Where a server dies, its requests wait for it to come back, up to `vllm.start_timeout`.

        Raises:
            ModelError: a prompt is empty or too long.
            EndpointError: a server did not come back, or refuses a request; the message names it.
            WeightSyncError: a server that came back does not take the weights.
        """
        if self._pool.present is None or self._first.locked():
            await asyncio.to_thread(self.start)
        prompts = self.prompts(requests)
        bodies = [
            self._body(prompt, request, sampling, request_seed(seed, number))
            for number, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
        ]
        version, connections = self.policy_version, MOST_CONNECTIONS * len(self._pool.servers)
        answers = await self._asking.run(answer_all(self._pool, bodies, connections))
        found = [
            Generation(tuple(prompt), self._completions(answer, request.n, int(body["n"]), version))
            for prompt, request, body, answer in zip(prompts, requests, bodies, answers, strict=True)
        ]
        self._probe.take(found)
        return found

    def update_weights(self, policy_version: int) -> None:
        """Hand the learner's weights to every server and compare; see `Backend.update_weights`.

        Nothing is done where nothing trains and the servers have the policy's weights.
        """
        if self._context.model.trains or self._pool.present is None:
            self._pool.broadcast_weights(policy_version)
        self.policy_version = policy_version

    def start(self) -> None:
        """Give the servers the policy's weights where they have others and were given none yet; whoever comes meanwhile waits.

        Raises as `update_weights`.
        """
        with self._first:
            if self._pool.present is None:
                self.update_weights(self.policy_version)

    def sleep(self) -> None:
        """Let the servers sleep where `vllm.enable_sleep_mode` says so; the next update of weights wakes them. On a CPU vLLM gives nothing back."""
        self._pool.sleep()

    def close(self) -> None:
        """Remove what was put into the folder; the servers go on."""
        self._asking.close()
        self._pool.close()
        self._client.close()

    def _served(self, server: Server) -> tuple[str, str, int]:
        server.get("/health")
        found = server.served()
        server.model = found[0]
        return found

    def _body(self, prompt: Sequence[int], request: Request, sampling: Sampling, seed: int) -> dict[str, Any]:
        assert self.max_model_len is not None
        check_prompt(prompt, self.max_model_len, "the server's {} (vllm.max_model_len)")
        body = {
            "prompt": list(prompt),
            "return_token_ids": True,
            **sampling_fields(request, sampling, seed, eos_ids=self.eos_ids, room=self.max_model_len - len(prompt)),
        }
        return body | ({"structured_outputs": {"choice": list(request.choice)}} if request.choice else {})

    def _completions(self, answer: dict[str, Any], n: int, asked: int, version: int) -> tuple[Completion, ...]:
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            ids = [tuple(int(token) for token in choice["token_ids"]) for choice in choices]
            logprobs = [tuple(float(value) for value in choice["logprobs"]["token_logprobs"]) for choice in choices]
            samples = list(zip(ids, logprobs, [choice["finish_reason"] for choice in choices], strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(f"it lacks token ids or log-probs ({error!r})") from None
        if len(choices) != asked or any(len(a) != len(b) for a, b in zip(ids, logprobs, strict=True)):
            raise _malformed(f"it holds {len(choices)} samples of {asked}, or not one log-prob for each token")
        return completions(self.tokenizer, samples, n, version)


def _malformed(what: str) -> EndpointError:
    return EndpointError(
        f"A vLLM server's answer cannot be used: {what}. Start servers with `skillttrl serve`.", kind="malformed"
    )
