"""One line of a bank's log: an update as JSON, closed by a checksum over all bytes of the log up to it.

    {"version":12,"changes":[...],"reason":"merge",...,"check":"0f3c9a7be1d24c55"}

A changed, lost or moved byte anywhere before a checksum makes it wrong. Logs of earlier versions have lines without one.
"""

from __future__ import annotations

import hashlib
import re

from skill_ttrl.types import BankUpdate, from_json, to_json

DIGITS = 16
"""Hexadecimal digits of a checksum."""
_CHECK = re.compile(rb',"check":"([0-9a-f]{%d})"\}\n\Z' % DIGITS)


def sealed(update: BankUpdate, before: hashlib.blake2b) -> bytes:
    """The line of an update, with its end.

    Args:
        update: the update.
        before: digest of everything in front of the line; left as it is.
    """
    body = to_json(update).encode()
    return b'%s,"check":"%s"}\n' % (body[:-1], _checksum(body, before))


def is_sealed(text: bytes) -> bool:
    """True if a text ends with a line that has a checksum, right or wrong."""
    return _CHECK.search(text) is not None


def opened(line: bytes, before: hashlib.blake2b, *, must: bool = False) -> BankUpdate:
    """The update of a line.

    Args:
        line: the line, with its end.
        before: digest of everything in front of it; left as it is.
        must: the line in front of it has a checksum, so this one has one too.

    Raises:
        ValueError: it is damaged, or has no end.
    """
    if not line.endswith(b"\n"):
        raise ValueError("it does not end")
    found = _CHECK.search(line)
    if found is None:
        if must:
            raise ValueError("its checksum is gone")
        return from_json(BankUpdate, line)
    body = line[: found.start()] + b"}"
    if _checksum(body, before) != found[1]:
        raise ValueError("its checksum is wrong: it was changed, or the log before it was")
    return from_json(BankUpdate, body)


def lost_only_its_end(line: bytes, before: hashlib.blake2b) -> bool:
    """True if only the line end was replaced by another byte. The line was whole then, and is damaged, not torn."""
    found = _CHECK.search(line[:-1] + b"\n")
    return found is not None and _checksum(line[: found.start()] + b"}", before) == found[1]


def _checksum(body: bytes, before: hashlib.blake2b) -> bytes:
    digest = before.copy()
    digest.update(body)
    return digest.hexdigest()[:DIGITS].encode()
