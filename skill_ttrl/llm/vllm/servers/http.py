"""HTTP requests to one vLLM server, and detection of its restarts.

A server that dies is restarted with its original weights (`skillttrl serve`). Each response therefore names the process it
comes from (`vllm/plugin/skillttrl_guard.py`); a server that was not started by `skillttrl serve` names none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from skill_ttrl.errors import ConfigError, EndpointError, WeightSyncError
from skill_ttrl.llm.server_key import KEY_VARIABLE, key_headers

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
    """Name of what is sampled from: the model, or the newest adapter."""
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

    def get(self, path: str, timeout: float = LOOK_TIMEOUT) -> dict[str, Any]:
        """Send a GET request and return the JSON response; see `post`."""
        return self._said(self._sent("GET", path, timeout=timeout), path)

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, timeout: float = CONTROL_TIMEOUT
    ) -> dict[str, Any]:
        """Send a POST request and return the JSON response; {} if the response is no JSON object.

        Raises:
            ServerLost: the server does not answer, or reports that its engine is dead.
            EndpointError: the server refuses the request.
        """
        return self._said(self._sent("POST", path, json=body, timeout=timeout), path)

    def is_well(self) -> bool:
        """True if the server reports that it is healthy."""
        try:
            self.get("/health")
        except (ServerLost, EndpointError):
            return False
        return True

    def weight_version(self) -> tuple[str, str | None]:
        """(version of the weights, process that says so)."""
        response = self._sent("GET", "/weight_info", timeout=LOOK_TIMEOUT)
        version = self._said(response, "/weight_info").get("weight_version")
        return str(version), response.headers.get(PROCESS_HEADER)

    def served(self) -> tuple[str, str, int]:
        """(name, path, longest sequence in tokens) of the model it serves."""
        models = self.get("/v1/models").get("data") or [{}]
        base = next((each for each in models if each.get("parent") is None), models[0])
        try:
            return str(base["id"]), str(base.get("root") or base["id"]), int(base["max_model_len"])
        except (KeyError, TypeError, ValueError):
            raise EndpointError(
                f"{self.address}/v1/models does not say which model it serves and how long a sequence may be: this is no "
                "vLLM server. Start one: skillttrl serve MODEL.",
                kind="malformed",
            ) from None

    def _sent(self, method: str, path: str, **how: Any) -> httpx.Response:
        headers = key_headers(self.address)
        if method == "POST":
            headers = {**headers, "Connection": "close"}  # after a 500 vLLM drops it: the next request on it would fail
        try:
            return self.client.request(method, self.address + path, headers=headers, **how)
        except httpx.TransportError as error:
            raise ServerLost(f"{self.address} does not answer ({type(error).__name__})") from error

    def _said(self, response: httpx.Response, path: str) -> dict[str, Any]:
        refuse_error(response, self.address, path)
        try:
            found = response.json()
        except ValueError:
            return {}  # some answers are a plain sentence
        return found if isinstance(found, dict) else {}


@cache
def _trust() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)  # reading the certificates takes longer than many a request


def open_client() -> httpx.Client:
    """For what is said one after the other. Servers are asked directly, whatever proxy the environment names."""
    return httpx.Client(verify=_trust(), trust_env=False, timeout=CONTROL_TIMEOUT)


def open_async_client(connections: int) -> httpx.AsyncClient:
    """For many requests at once, on at most so many connections; how long an answer may take is decided by `ask`."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=None)
    timeout = httpx.Timeout(None, connect=LOOK_TIMEOUT)
    return httpx.AsyncClient(verify=_trust(), trust_env=False, timeout=timeout, limits=limits)


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
        raise ServerLost(f"{server.address} has been started again since it was given the weights")
    refuse_error(response, server.address, path)
    try:
        found = response.json()
    except ValueError as error:
        raise ServerLost(f"{server.address} broke off its answer") from error
    if not isinstance(found, dict):
        raise EndpointError(f"{server.address}{path} answers with something that is no JSON object.", kind="malformed")
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
            raise EndpointError(
                f"{server.address} does not give the log-probs of a prompt, so its weights cannot be checked. Start it with "
                "skillttrl serve.",
                kind="malformed",
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
            f"The folder in which weights pass to the servers, {folder}, cannot be made: {error.strerror}. Set "
            "vllm.weight_transfer_dir."
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise ConfigError(
            f"Weights would pass to the servers in {folder}, but it is no folder that only this user can write to (chmod 700). "
            "Set vllm.weight_transfer_dir to one."
        )
    return folder


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that are gone have left there."""
    for path in folder.glob("*-*"):
        owner = path.name.partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists() and time.time() - path.stat().st_mtime > STALE:
            remove(path)


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
    """Have a server take all weights from a file.

    Raises:
        ServerLost: it died over it.
        WeightSyncError: it cannot take them, or keeps what it computed with the old ones.
    """
    with update_of(server):
        server.post("/pause?mode=wait")
        try:
            server.post("/init_weight_transfer_engine", {"init_info": {}})
            server.post("/update_weight_version", {"new_version": UNFINISHED})
            server.post("/start_weight_update")
            server.post("/update_weights", {"update_info": {"path": str(path)}})
            server.post("/finish_weight_update", {"weight_version": version})
            _drop_cache(server)
        except BaseException:
            with contextlib.suppress(EndpointError, ServerLost):  # what went wrong before says more
                server.post("/resume")
            raise
        server.post("/resume")


def send_adapters(server: Server, version: str, path: Path) -> None:
    """Have a server take the adapters of a folder; its requests name them from then on, and the older ones go. Raises as `send_file`."""
    name = path.name
    with update_of(server):
        older = [each["id"] for each in server.get("/v1/models")["data"] if each.get("parent") is not None]
        if name not in older:
            server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        server.model = name
        server.post("/update_weight_version", {"new_version": version})
        for each in older:
            if each != name:
                server.post("/v1/unload_lora_adapter", {"lora_name": each})
        _drop_cache(server)


@contextlib.contextmanager
def awake(server: Server, *, sleeps: bool) -> Iterator[None]:
    """A server with room for its weights; at the end of the context also for its cache, and sampling again."""
    asleep = sleeps and bool(server.get("/is_sleeping").get("is_sleeping"))
    if asleep:
        server.post("/wake_up?tags=weights")
    yield
    if asleep:
        server.post("/wake_up?tags=kv_cache")
        server.post("/resume")


def _drop_cache(server: Server) -> None:
    if server.post("/reset_prefix_cache").get("success") is not True:
        raise WeightSyncError(
            f"{server.address} did not drop its prefix cache after the update of its weights: what it holds was computed with "
            "the old ones. Does another run use the same server?"
        )


@contextlib.contextmanager
def update_of(server: Server) -> Iterator[None]:
    """Turn a refusal by a server that is well into `WeightSyncError`."""
    try:
        yield
    except (EndpointError, ServerLost) as error:
        if isinstance(error, ServerLost) and not server.is_well():
            raise
        raise WeightSyncError(
            f"The weights could not be handed to {server.address}: {error} Servers that can take them are started by `skillttrl serve` "
            "with the same model, vllm.weight_sync and vllm.weight_transfer_dir. Its log "
            "says more."
        ) from error


def remove(path: Path) -> None:
    """Remove a file or a folder, where it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
