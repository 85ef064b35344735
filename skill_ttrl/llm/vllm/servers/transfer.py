"""The folder in which weights pass from the learner to its servers, and the steps of an update.

Shared memory where there is some: the weights are written once and read by every server. The folder is its owner's alone, and a
server reads from no other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from skill_ttrl.errors import ConfigError, EndpointError, WeightSyncError
from skill_ttrl.llm.vllm.servers.http import Server, ServerLost

SHARED_MEMORY = Path("/dev/shm")
STALE = 3600.0
"""Seconds after which what a learner that is gone has left there is removed."""

INIT: dict[str, bool] = {}
"""`init_info` sent to a server before an update; a test patches it to make the later check fail."""


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
            server.post("/init_weight_transfer_engine", {"init_info": INIT})
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
            "with the same model (and --max-lora-rank for vllm.weight_sync=lora), and see the same vllm.weight_transfer_dir. Its log "
            "says more."
        ) from error


def remove(path: Path) -> None:
    """Remove a file or a folder, where it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
