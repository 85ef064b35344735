"""A connection to a Ray cluster, or a cluster of this machine alone for as long as a command runs."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from skill_ttrl.config import ScaleConfig
from skill_ttrl.config.scale import AUTO, LOCAL
from skill_ttrl.cores import cores
from skill_ttrl.errors import MissingDependencyError, ScaleError

CLIENT = "ray://"
CONNECT_S = 5.0
"""Seconds in which a cluster's head must accept a connection."""
START = (
    "Start one with `ray start --head` on one machine and `ray start --address=HEAD:6379` on the others, or use this machine alone: "
    "--set scale.address=local. A cluster that was started with RAY_AUTH_MODE=token needs it here too, and its token (~/.ray/auth_token)."
)


@contextmanager
def connected(settings: ScaleConfig) -> Iterator[None]:
    """Be connected to the cluster at `scale.address`; a connection that the caller has already is used, and stays.

    Raises:
        MissingDependencyError: Ray is not installed.
        ScaleError: there is no cluster, or it was started with other versions of Ray or Python.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray
    except ImportError:
        raise MissingDependencyError.for_extra("scale.engine=ray", "ray") from None
    if ray.is_initialized():
        yield
        return
    with _own_token(settings.address):
        try:
            with _own_sigterm():
                _connect(settings.address)
            yield
        finally:
            ray.shutdown()  # what it has begun too, where it could not connect


def _connect(address: str) -> None:
    import ray

    if address != LOCAL:
        _reach(address)
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    own = {"num_cpus": cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == LOCAL else {}
    try:
        ray.init(address=address, **quiet, **own)
    except ConnectionError as error:
        raise ScaleError(
            f"There is no Ray cluster at scale.address={address} ({_first_line(error)}). {START}"
        ) from None
    except Exception as error:  # Ray raises the bare type where a node does not start in time
        if "ersion mismatch" in str(error):
            raise ScaleError(
                f"The Ray cluster at scale.address={address} was started with other versions than this process has: "
                f"{' '.join(str(error).split())} Install the same Ray and Python on every node and here."
            ) from None
        raise ScaleError(
            f"Cannot use the Ray cluster at scale.address={address}: {_first_line(error)}. {START}"
        ) from None


def _reach(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself goes on for minutes."""
    from ray._private.services import canonicalize_bootstrap_address

    name, left = "scale.address", ""
    if address == AUTO and os.environ.get("RAY_ADDRESS", AUTO) != AUTO:
        name, address = "RAY_ADDRESS", os.environ["RAY_ADDRESS"]
    elif address == AUTO:
        try:
            address = canonicalize_bootstrap_address(AUTO) or LOCAL
        except ConnectionError:  # there is none: Ray says so at once
            return
        left = " A cluster that was started here has left this address and is gone; `ray stop` forgets it."
    if address == LOCAL:
        return
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError, ValueError) as error:
        raise ScaleError(f"Nothing answers at {name}={address} ({error}).{left} {START}") from None


@contextmanager
def _own_token(address: str) -> Iterator[None]:
    """Have a cluster of `local` a token of its own: else Ray writes one into the home, and every later cluster of the user asks for it."""
    if address != LOCAL or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        yield
        return
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        yield
    finally:
        del os.environ["RAY_AUTH_TOKEN"]


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which `ray.init` replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _first_line(error: Exception) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
