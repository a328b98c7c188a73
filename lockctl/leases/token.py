"""The lease token: one opaque, shell-safe word that stands for table, key, holder and TTL.

`lease1_` and base64url of a checksum and JSON. The number is the version of this form; the checksum tells a damaged
token from a good one (it is no signature: who can read a token can release the lease).
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import NamedTuple

from lockctl.errors import UsageError

_PREFIX = "lease1_"


class Lease(NamedTuple):
    """A lease that somebody acquired: `ttl_ms` is what it was acquired for, the default of its next extend."""

    table: str
    key: tuple[str, ...]
    holder: str
    ttl_ms: int


def write(lease: Lease) -> str:
    """The token of `lease`."""
    body = json.dumps([lease.table, list(lease.key), lease.holder, lease.ttl_ms], separators=(",", ":")).encode()
    return _PREFIX + base64.urlsafe_b64encode(_checksum(body) + body).decode().rstrip("=")


def read(token: str) -> Lease:
    """The lease of `token`. Raises UsageError for a damaged one and for a version that this lockctl can't read."""
    word = token.strip()
    if not word.startswith(_PREFIX):
        raise UsageError(
            "that is no lease token of this lockctl", hint="a token is one word, lease1_…, as `acquire` prints it"
        )
    encoded = word[len(_PREFIX) :]
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        checksum, body = raw[:4], raw[4:]
        if checksum != _checksum(body):
            raise ValueError
        table, key, holder, ttl_ms = json.loads(body)
        lease = Lease(str(table), tuple(str(part) for part in key), str(holder), int(ttl_ms))
        if write(lease) != word:  # base64 has spellings that differ in bits nobody reads
            raise ValueError
        return lease
    except (ValueError, TypeError):
        raise UsageError("the lease token is damaged", hint="copy the whole word that `acquire` printed") from None


def _checksum(body: bytes) -> bytes:
    return binascii.crc32(body).to_bytes(4, "big")
