"""The key that servers of `skillttrl serve` ask for: whoever gets in can change the weights, and other users share the machine.

It is in the environment (`SKILLTTRL_SERVER_KEY`), or is drawn when the servers start and passes through a file in this user's
state folder, one for each port, which nobody else can read. A key of such a file is sent to this machine alone.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from skill_ttrl.errors import ConfigError

KEY_VARIABLE = "SKILLTTRL_SERVER_KEY"


def given_key() -> str:
    """The key in the environment; empty where there is none."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def key_file(port: int) -> Path:
    """Where the key of the server on a port is."""
    return platformdirs.user_state_path("skill-ttrl") / "server-keys" / str(port)


def found_key(address: str) -> str:
    """The key that this user's server at an address of this machine was started with; empty where none was drawn."""
    parts = urlsplit(address)
    if parts.port is None or not is_localhost(parts.hostname or ""):
        return ""
    file = key_file(parts.port)
    return file.read_text(encoding="ascii").strip() if file.is_file() else ""


def key_headers(address: str) -> dict[str, str]:
    """The header with the key for a server; none where there is no key."""
    key = given_key() or found_key(address)
    return {"Authorization": f"Bearer {key}"} if key else {}


@contextmanager
def drawn_key(port: int) -> Iterator[str]:
    """A new key, in the port's file while the block runs.

    Raises:
        ConfigError: the file cannot be written.
    """
    key, file = secrets.token_urlsafe(32), key_file(port)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as stream:
            stream.write(key)
    except OSError as error:
        raise ConfigError(
            f"Cannot write the server key to {file}: {error.strerror or error}. Set the environment variable {KEY_VARIABLE}, here "
            "and where training runs."
        ) from None
    try:
        yield key
    finally:
        file.unlink(missing_ok=True)


def is_localhost(name: str) -> bool:
    """True if a host name means this machine: it reaches no other machine, and no proxy reaches the host it names."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
