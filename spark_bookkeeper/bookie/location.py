"""The location of an entry in a bookie's files, used only below the ``Bookie`` interface."""

from __future__ import annotations

from typing import NamedTuple

NO_ROW = -1
"""The row number of an entry that is a batch."""


class Location(NamedTuple):
    """The location of one entry's bytes on one bookie, and the values that verify them."""

    entry_id: int
    path: str
    offset: int
    """The start of the message that holds the entry."""

    extent: int
    """The bytes of that message."""

    extent_crc32c: int
    """The checksum of that message, used for payloads, which share a message."""

    row: int
    """The row in the message's batch, or ``NO_ROW`` if the message is the entry."""

    size: int
    """The bytes of the entry itself."""

    length_after: int
    last_add_confirmed: int
    digest: bytes
    appended_at_ms: int | None = None
