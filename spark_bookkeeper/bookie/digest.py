"""Digests of entries and of record headers.

Source: BookKeeper ``proto/checksum/DigestManager`` (the four types). Our digests cover the
entry's own bytes. The header that binds them to entry ids has a digest, too.
"""

from __future__ import annotations

import hmac
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import crc32c
from typing_extensions import Buffer, assert_never

from spark_bookkeeper.protocol.metadata import DigestType

_WIDTHS = {DigestType.CRC32: 4, DigestType.CRC32C: 4, DigestType.MAC: 32, DigestType.DUMMY: 0}


def crc(data: Buffer, value: int = 0) -> int:
    """Return the CRC32C of bytes, continued from ``value``."""
    return crc32c.crc32c(data, value)


@dataclass(frozen=True, slots=True)
class Digester:
    """The digests of one ledger. ``MAC`` is HMAC-SHA256 keyed by the ledger's password."""

    digest_type: DigestType
    password: bytes

    @property
    def width(self) -> int:
        """The number of bytes of one digest."""
        return _WIDTHS[self.digest_type]

    def digest(self, data: Buffer) -> bytes:
        """Return the digest of one entry's bytes; empty for ``DUMMY``."""
        if self.digest_type is DigestType.CRC32C:
            return crc32c.crc32c(data).to_bytes(4, "little")
        if self.digest_type is DigestType.MAC:
            return hmac.new(self.password, memoryview(data), sha256).digest()
        if self.digest_type is DigestType.CRC32:
            return zlib.crc32(data).to_bytes(4, "little")
        if self.digest_type is DigestType.DUMMY:
            return b""
        assert_never(self.digest_type)

    def digests(self, entries: Sequence[Buffer]) -> bytes:
        """Return the digests of entries, concatenated."""
        if self.digest_type is DigestType.CRC32C:
            return struct.pack(f"<{len(entries)}I", *map(crc32c.crc32c, entries))
        return b"".join(map(self.digest, entries))

    def header_digest(self, values: tuple[bytes, ...]) -> bytes:
        """Return the digest of a record's header.

        It is never empty, not even for ``DUMMY``: headers prove which entries are absent from a
        bookie, so a damaged header must not look good (SLOT-LOG rule R5).
        """
        framed = b"".join([len(value).to_bytes(8, "little") + value for value in values])
        if self.digest_type is DigestType.MAC:
            return hmac.new(self.password, framed, sha256).digest()
        return crc(framed).to_bytes(4, "little")
