"""The `vllm` backend with servers: tokens go out and come back over HTTP, weights pass through a folder.

The servers live in processes, and if need be in an environment, of their own (`skillttrl serve`). Every process of a server that
is asked was given the learner's weights and compared with the learner on a probe. A server that dies is restarted with its original
weights, so each response names the process it comes from (`vllm/plugin/skillttrl_guard.py`), and one that was started again is given
the weights again before it is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import shutil
import ssl
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from skill_ttrl.errors import ConfigError, EndpointError, WeightSyncError, on_error
from skill_ttrl.llm.backend import BackgroundEventLoop, Generation, Request, Sampling
from skill_ttrl.llm.chat import TokenizerMixin, open_thoughts
from skill_ttrl.llm.models.weights import full_weights
from skill_ttrl.llm.server_key import KEY_VARIABLE, key_headers
from skill_ttrl.llm.vllm.checks import (
    MAX_LOGPROB_DIFF,
    LogprobDiff,
    Probe,
    check_learnable,
    check_prompt,
    check_sync,
    completions,
    learner_logprobs,
    read_policy,
    request_seed,
    sampling_fields,
)
from skill_ttrl.types import Completion

if TYPE_CHECKING:
    from skill_ttrl.llm.backend import BackendContext

PROCESS_HEADER = "x-skillttrl-process"
LOOK_EVERY, LOOK_TIMEOUT = 20.0, 20.0
"""Seconds after which a server that has not answered yet is looked after, and in which it must say that it is well."""
CONTROL_TIMEOUT = 600.0
"""Seconds for anything but an answer: loading weights, waiting for running requests."""


class ServerLost(Exception):
    """A server does not answer, or answers as another process than the one that was asked."""


@dataclass
class Server:
    """One server, as far as it is known."""

    address: str
    client: httpx.Client = field(repr=False)
    model: str = "policy"
    """Name of the model in requests."""
    process: str | None = None
    """Of the process that has the present weights."""
    holds: bool = False
    """True if a process with the present weights was seen there."""
    load: int = 0
    """Number of sequences requested and not yet returned, over all callers."""
    asked: int = 0
    """Number of requests so far."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held while weights are brought there."""

    def get(self, path: str) -> dict[str, Any]:
        """Send a GET request and return the JSON response; see `post`."""
        return self._ask("GET", path, timeout=LOOK_TIMEOUT)[0]

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a POST request and return the JSON response; {} if the response is no JSON object.

        Raises:
            ServerLost: the server does not answer, or reports that its engine is dead.
            EndpointError: the server refuses the request.
        """
        return self._ask("POST", path, json=body, timeout=CONTROL_TIMEOUT)[0]

    def weight_version(self) -> tuple[str, str | None]:
        """(version of the weights, process that says so)."""
        found, process = self._ask("GET", "/weight_info", timeout=LOOK_TIMEOUT)
        return str(found.get("weight_version")), process

    def served(self) -> tuple[str, int]:
        """(path, longest sequence in tokens) of the model it serves, whose name requests have from now on."""
        self.get("/health")
        models = self.get("/v1/models").get("data") or [{}]
        try:
            base = next((each for each in models if each.get("parent") is None), models[0])
            self.model = str(base["id"])
            return str(base.get("root") or base["id"]), int(base["max_model_len"])
        except (AttributeError, LookupError, TypeError, ValueError):
            raise _malformed(
                f"{self.address}/v1/models", "does not say which model it serves and how long a sequence may be"
            ) from None

    def _ask(self, method: str, path: str, **how: Any) -> tuple[dict[str, Any], str | None]:
        """The response, and the process that it comes from."""
        try:
            # After a 500 vLLM drops the connection: the next request on it would fail.
            headers = key_headers(self.address) | ({"Connection": "close"} if method == "POST" else {})
            response = self.client.request(method, self.address + path, headers=headers, **how)
        except httpx.TransportError as error:
            raise ServerLost(f"{self.address} does not answer ({type(error).__name__})") from error
        if response.status_code == 404 and path in ("/health", "/weight_info") and self.process is not None:
            raise ServerLost(f"{self.address}{path} is not there any more")  # a proxy whose server is away says so
        refuse_error(response, self.address, path)
        try:
            found = response.json()
        except ValueError:  # some answers are a plain sentence
            found = {}
        return found if isinstance(found, dict) else {}, response.headers.get(PROCESS_HEADER)


@cache
def _trust() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)  # reading the certificates takes longer than many a request


def refuse_error(response: httpx.Response, address: str, path: str) -> None:
    """Raise for an answer that is no success.

    Raises:
        ServerLost: a 5xx: the engine failed; the server ends or was about to.
        EndpointError: the request or its key is refused.
    """
    if response.is_success:
        return
    said = " ".join(response.text.split())[:400]
    if response.status_code >= 500 or response.status_code == 429:
        raise ServerLost(f"{address}{path} answers {response.status_code}: {said}")
    if response.status_code == 401:
        raise EndpointError(
            f"{address} requires a key and rejected this one. Set the environment variable {KEY_VARIABLE} to the "
            "same text for the server and for this command.",
            kind="refused",
        )
    raise EndpointError(f"{address}{path} refuses ({response.status_code}): {said}", kind="refused")


def _malformed(who: str, what: str) -> EndpointError:
    return EndpointError(f"{who} {what}: it cannot be used. Start servers with `skillttrl serve MODEL`.", "malformed")


async def ask(client: httpx.AsyncClient, server: Server, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request for completions, by the process that has the present weights.

    However long it takes: a server that is alive says so when it is looked after.

    Raises:
        ServerLost: the server has died, hangs, or is another process by now.
        EndpointError: it refuses the request.
    """
    path = "/v1/completions"
    asked = asyncio.ensure_future(client.post(server.address + path, json=body, headers=key_headers(server.address)))
    try:
        while not (await asyncio.wait({asked}, timeout=LOOK_EVERY))[0]:
            (await client.get(server.address + "/health", timeout=LOOK_TIMEOUT)).raise_for_status()
        response = asked.result()
    except (httpx.TransportError, httpx.HTTPStatusError) as error:
        raise ServerLost(f"{server.address} does not answer ({type(error).__name__})") from error
    finally:
        asked.cancel()
    if response.headers.get(PROCESS_HEADER) != server.process:
        raise ServerLost(f"{server.address} was restarted after it received the weights")
    refuse_error(response, server.address, path)
    try:
        found = response.json()
    except ValueError as error:
        raise ServerLost(f"{server.address} aborted its answer") from error
    if not isinstance(found, dict):
        raise _malformed(server.address + path, "returned something that is not a JSON object")
    return found


def prompt_logprobs(server: Server, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """The server's log-probs (nats, temperature 1) of each token but the first, sequence by sequence."""
    found = []
    for ids in sequences:
        body = {"model": server.model, "prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        answer = server.post("/v1/completions", body)
        try:
            places = answer["choices"][0]["prompt_logprobs"]
            found.append([float(places[at][str(ids[at])]["logprob"]) for at in range(1, len(ids))])
        except (KeyError, IndexError, TypeError, ValueError):
            raise _malformed(
                server.address, "does not give the log-probs of a prompt, so its weights cannot be checked"
            ) from None
    return found


SHARED_MEMORY = Path("/dev/shm")
STALE = 3600.0
"""Seconds after which what a learner that is gone has left there is removed."""

UNFINISHED = "unfinished"
"""Version of a server's weights during an update: where it breaks off they are of nobody."""


def weight_transfer_dir(asked: str | None) -> Path:
    """The folder, made where it is not there: learner and servers of one user find the same by default.

    Raises:
        ConfigError: it cannot be made, or is not this user's own.
    """
    shared = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    parent = SHARED_MEMORY if shared else Path(tempfile.gettempdir())
    folder = Path(asked).expanduser().absolute() if asked else parent / f"skillttrl-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=asked is not None, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(
            f"Cannot create the folder for handing weights to the servers, {folder}: {error.strerror}. Set "
            "vllm.weight_transfer_dir."
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise ConfigError(
            f"Weights would pass to the servers in {folder}, which is not a folder that only this user can write to (chmod 700). "
            "Set vllm.weight_transfer_dir to one."
        )
    return folder


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that are gone have left there."""
    for path in folder.glob("*-*"):
        owner = path.name.partition("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another run removes it too
            if owner.isdigit() and not Path("/proc", owner).exists() and time.time() - path.stat().st_mtime > STALE:
                path.unlink()


@contextlib.contextmanager
def weights_file(folder: Path, name: str, found: Iterable[tuple[str, Any]]) -> Iterator[Path]:
    """Weights as a file (`full_weights`), which is there as long as the context is.

    Raises:
        WeightSyncError: the folder has no room for them.
    """
    from safetensors.torch import save_file

    path = folder / f"{name}.safetensors"
    weights = {key: tensor.detach().cpu().contiguous() for key, tensor in found}
    needed = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    free = shutil.disk_usage(folder).free
    if needed >= free:
        raise WeightSyncError(
            f"The learner's weights take {needed / 1e9:.2f} GB and {folder} has {free / 1e9:.2f} GB left. Set "
            "vllm.weight_transfer_dir, for the servers as well, to a folder with more room."
        )
    try:
        save_file(weights, path)
        yield path
    finally:
        path.unlink(missing_ok=True)


def send_file(server: Server, version: str, path: Path) -> None:
    """Have a server take all weights from a file, and drop what it computed with the old ones.

    Raises:
        ServerLost: it died over it.
        WeightSyncError: it is well and refuses them, or keeps what it computed.
    """
    try:
        server.post("/pause?mode=wait")
        try:
            server.post("/init_weight_transfer_engine", {"init_info": {}})
            server.post("/update_weight_version", {"new_version": UNFINISHED})
            server.post("/start_weight_update")
            server.post("/update_weights", {"update_info": {"path": str(path)}})
            server.post("/finish_weight_update", {"weight_version": version})
            if server.post("/reset_prefix_cache").get("success") is not True:
                raise WeightSyncError(
                    f"{server.address} did not drop its prefix cache after the weight update, so the cache is from old weights. Does "
                    "another run use the same server?"
                )
        except BaseException:
            with contextlib.suppress(EndpointError, ServerLost):  # what went wrong before says more
                server.post("/resume")
            raise
        server.post("/resume")
    except (EndpointError, ServerLost) as error:
        if isinstance(error, ServerLost):
            server.get("/health")  # one that is not well is lost too
        raise WeightSyncError(
            f"The weights could not be handed to {server.address}: {error} Servers that can take them are started by `skillttrl serve` "
            "with the same model and vllm.weight_transfer_dir. See its log."
        ) from error


ORIGINAL = "default"
"""How vLLM calls the weights that it started with."""
START_TIMEOUT = 600.0
"""Seconds to wait for a server to be ready, at the start and after it has been restarted."""
POLL = 1.0
"""Seconds between two looks at a server that does not answer."""
T = TypeVar("T")
MOST_ATTEMPTS = 3
"""Times that a request is sent; one that ends every server that takes it must not go round for ever."""


MOST_CONNECTIONS = 256
"""Requests to one server at the same time; it puts further ones into its own queue."""


class VLLMServerBackend(TokenizerMixin):
    """Samples from running vLLM servers. Log-probs with `top_p` below 1 or `top_k` are as those of `VLLMBackend`.

    Raises:
        ConfigError: the config names no server, or asks for what they cannot do.
        EndpointError: a server does not answer within `START_TIMEOUT`, or is no vLLM server.
    """

    is_learner, trainable, blocking, supports_structured_outputs = False, True, False, False

    def __init__(self, context: BackendContext) -> None:
        self._context, self._config = context, context.settings.vllm
        if not self._config.servers:
            raise ConfigError(
                "vllm.mode=server, but vllm.servers names none. Start one (skillttrl serve MODEL) and set "
                "vllm.servers=[http://127.0.0.1:8000]."
            )
        check_learnable(context)
        self.policy_version = 0
        self.last_logprob_diff: LogprobDiff | None = None
        """Between servers and learner after the last update, the largest of all servers."""
        self._present: str | None = None
        """Version of the weights that the servers are to have; None: the learner's, not handed over yet."""
        self._nonce = secrets.token_hex(4)
        self._names = (f"{os.getpid()}-{self._nonce}-{number}" for number in itertools.count())
        self._folder: Path | None = None
        """Folder of the files with weights; None before the first hand-over."""
        # Servers are asked directly, whatever proxy the environment names.
        self._client = httpx.Client(verify=_trust(), trust_env=False, timeout=CONTROL_TIMEOUT)
        self._servers = [Server(address, self._client) for address in self._config.servers]
        self._first = threading.Lock()
        self._asking = BackgroundEventLoop("The sampler of the vLLM servers")
        with on_error(self._client.close):
            self._handshake()

    def _handshake(self) -> None:
        """Find out what the servers serve."""
        found = [self._wait_for(server, server.served) for server in self._servers]
        self.max_model_len = min(length for _, length in found)
        asked = self._config.max_model_len
        if asked is not None and asked > self.max_model_len:
            raise ConfigError(
                f"vllm.max_model_len is {asked}, but a server takes {self.max_model_len} tokens. Start it with --set "
                f"vllm.max_model_len={asked}, or lower the setting."
            )
        self.tokenizer, _, self.eos_ids = read_policy(self._context)
        self._probe = Probe(len(self.tokenizer), self.max_model_len - 1)
        policy = self._context.weights or self._context.settings.model.path
        same = (root == str(policy) or Path(root).resolve() == Path(policy).resolve() for root, _ in found)
        if not self._context.trains and all(same):  # the policy's are those that they started with
            with contextlib.suppress(ServerLost, EndpointError):  # one that does not say takes no weights either
                if all(server.weight_version()[0] == ORIGINAL for server in self._servers):
                    self._present = ORIGINAL

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request; see `Backend.generate`.

        Where a server dies, its requests wait for it to come back, up to `START_TIMEOUT`.

        Raises:
            ModelError: a prompt is empty or too long.
            EndpointError: a server did not come back, or refuses a request; the message names it.
            WeightSyncError: a server that came back does not take the weights.
        """
        if self._present is None or self._first.locked():
            await asyncio.to_thread(self.start)
        prompts = self.prompts(requests)
        bodies = [
            self._body(prompt, request, sampling, request_seed(seed, number))
            for number, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
        ]
        version = self.policy_version
        answers = await self._asking.run(self._answers(bodies))
        found = [
            Generation(tuple(prompt), self._completions(answer, request.n, int(body["n"]), version))
            for prompt, request, body, answer in zip(prompts, requests, bodies, answers, strict=True)
        ]
        self._probe.take(found)
        return open_thoughts(self.tokenizer, requests, found)

    def update_weights(self, policy_version: int) -> None:
        """Hand the learner's weights to every server and compare; see `Backend.update_weights`.

        Nothing is done where nothing trains and the servers have the policy's weights.

        Raises:
            WeightSyncError: a server does not take them, or differs from the learner afterwards.
            EndpointError: a server does not answer within `START_TIMEOUT`.
        """
        if self._context.trains or self._present is None:
            if self._folder is None:
                self._folder = weight_transfer_dir(self._config.weight_transfer_dir)
                remove_leftovers(self._folder)
            self._present = f"{self._nonce}:{policy_version}"
            for server in self._servers:
                server.holds = False
            with self._hand_over() as update, ThreadPoolExecutor(len(self._servers)) as threads:
                gaps = list(threads.map(lambda server: self._wait_for(server, partial(update, server)), self._servers))
            self.last_logprob_diff = max(gaps, key=lambda gap: gap.mean)
        self.policy_version = policy_version

    def start(self) -> None:
        """Give the servers the policy's weights where they have others and were given none yet; whoever comes meanwhile waits.

        Raises as `update_weights`.
        """
        with self._first:
            if self._present is None:
                self.update_weights(self.policy_version)

    def sleep(self) -> None:
        """Let the servers sleep where `vllm.enable_sleep_mode` says so and weights were handed over: the next update hands them over again.

        On a CPU vLLM gives nothing back.
        """
        if self._config.enable_sleep_mode and self._folder is not None:
            for server in self._servers:
                with contextlib.suppress(ServerLost):  # its memory is free
                    server.post("/sleep?level=2&mode=wait")  # which drops the weights: they will be sent again

    def close(self) -> None:
        """End the connections; the servers keep running."""
        self._asking.close()
        self._client.close()

    def _wait_for(self, server: Server, work: Callable[[], T]) -> T:
        """Do `work` with a server as soon as it answers.

        Raises:
            EndpointError: it does not answer within `START_TIMEOUT`; the message names it.
        """
        began, noticed = time.monotonic(), False
        while True:
            try:
                with server.lock:
                    return work()
            except ServerLost as lost:
                waited = time.monotonic() - began
                if waited > START_TIMEOUT or self._context.stopping():
                    raise EndpointError(
                        f"The vLLM server {server.address} did not answer for {waited:.0f} s ({lost}). See its log; start it again "
                        "(skillttrl serve, or the supervisor that runs it) and resume, or set vllm.servers.",
                        kind="unreachable",
                    ) from None
                if not noticed:
                    self._context.notice(f"{lost}. Waiting up to {START_TIMEOUT:.0f} s.")
                    noticed = True
                time.sleep(POLL)

    def _ensure_current(self, server: Server) -> None:
        """Give a server the present weights where it has others: one that was started again has those of its start.

        Raises:
            WeightSyncError: as for `update_weights`.
            ServerLost: it does not answer.
            EndpointError: somebody else has given it weights.
        """
        version, process = server.weight_version()
        if version == self._present and (version == ORIGINAL or (server.holds and process == server.process)):
            server.process = process
            return
        if self._present == ORIGINAL or self._folder is None:
            raise EndpointError(
                f"{server.address} received weights of version {version} from another run. Give each run its own servers.",
                kind="refused",
            )
        self._context.notice(f"{server.address} receives the weights of version {self._present} again.")
        with self._hand_over() as update:
            update(server)

    @contextlib.contextmanager
    def _hand_over(self) -> Iterator[Callable[[Server], LogprobDiff]]:
        """A function that brings a server the present weights, and compares; while the block runs they are there as a file."""
        assert self._folder is not None and self._present is not None
        version, sequences = self._present, self._probe.sequences
        ours = self._context.on_learner(learner_logprobs, sequences, self._context.autocast)
        dtype = str(self._context.autocast or self._context.loaded.model.dtype).removeprefix("torch.")

        with weights_file(self._folder, next(self._names), self._context.on_learner(full_weights)) as path:

            def update(server: Server) -> LogprobDiff:
                asleep = self._config.enable_sleep_mode and bool(server.get("/is_sleeping").get("is_sleeping"))
                if asleep:
                    server.post("/wake_up?tags=weights")
                send_file(server, version, path)
                if asleep:
                    server.post("/wake_up?tags=kv_cache")
                    server.post("/resume")
                theirs = prompt_logprobs(server, sequences)
                gap = check_sync(ours, theirs, MAX_LOGPROB_DIFF[dtype], f"at {server.address}")
                now, server.process = server.weight_version()
                if now != version:
                    raise ServerLost(f"{server.address} has weights of version {now} right after their update")
                server.holds = True
                return gap

            yield update

    async def _answers(self, bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The answers, in the order of the requests. What was lost with a server is sent again once all have the weights.

        Raises:
            EndpointError: a request is refused, a server did not come back in time, or requests were lost too often.
            WeightSyncError: a server came back and cannot take the weights.
        """
        answers: dict[int, dict[str, Any]] = {}
        lost = ""
        # A client of its own for each batch: a long-lived one looks through all of its open connections at every request.
        limits = httpx.Limits(max_connections=MOST_CONNECTIONS * len(self._servers), max_keepalive_connections=None)
        timeout = httpx.Timeout(None, connect=LOOK_TIMEOUT)  # how long an answer may take is decided by `ask`
        async with httpx.AsyncClient(verify=_trust(), trust_env=False, timeout=timeout, limits=limits) as client:

            async def answer(place: int) -> str:
                server, size = min(self._servers, key=lambda each: (each.load, each.asked)), int(bodies[place]["n"])
                server.load, server.asked = server.load + size, server.asked + 1
                try:
                    answers[place] = await ask(client, server, {**bodies[place], "model": server.model})
                    return ""
                except ServerLost as error:
                    return str(error)
                finally:
                    server.load -= size

            for _ in range(MOST_ATTEMPTS):
                await asyncio.gather(
                    *(
                        asyncio.to_thread(self._wait_for, each, partial(self._ensure_current, each))
                        for each in self._servers
                    )
                )
                waiting = [place for place in range(len(bodies)) if place not in answers]
                lost = next(filter(None, await asyncio.gather(*map(answer, waiting))), lost)
                if len(answers) == len(bodies):
                    return [answers[place] for place in range(len(bodies))]
                self._context.notice(f"{lost}; its requests are sent again.")
        raise EndpointError(
            f"Requests were lost {MOST_ATTEMPTS} times, the last time because {lost}. See the server's log.", "lost"
        )

    def _body(self, prompt: Sequence[int], request: Request, sampling: Sampling, seed: int) -> dict[str, Any]:
        check_prompt(prompt, self.max_model_len, "the server's {} (vllm.max_model_len)")
        return {
            "prompt": list(prompt),
            "return_token_ids": True,
            **sampling_fields(request, sampling, seed, eos_ids=self.eos_ids, room=self.max_model_len - len(prompt)),
        }

    def _completions(self, answer: dict[str, Any], n: int, asked: int, version: int) -> tuple[Completion, ...]:
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            ids = [tuple(int(token) for token in choice["token_ids"]) for choice in choices]
            logprobs = [tuple(float(value) for value in choice["logprobs"]["token_logprobs"]) for choice in choices]
            samples = list(zip(ids, logprobs, [choice["finish_reason"] for choice in choices], strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed("A server's answer", f"has no token ids or log-probs ({error!r})") from None
        if len(choices) != asked or any(len(a) != len(b) for a, b in zip(ids, logprobs, strict=True)):
            what = f"holds {len(choices)} samples of {asked}, or not one log-prob for each token"
            raise _malformed("A server's answer", what)
        return completions(self.tokenizer, samples, n, version)
