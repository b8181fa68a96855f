"""Where an entry lies in the files of one bookie; known below the face of a bookie only."""

from __future__ import annotations

from typing import NamedTuple

NO_ROW = -1
"""Where a row number stands for an entry that is a batch of its own."""


class Location(NamedTuple):
    """Where one entry's bytes are on one bookie, and what verifies them."""

    entry_id: int
    path: str
    offset: int
    """Start of the message that holds the entry."""

    extent: int
    """Bytes of that message."""

    extent_crc32c: int
    """Of that message; used for the payload form, where entries share the message."""

    row: int
    """Row within the message's batch, or ``NO_ROW`` when the message is the entry."""

    size: int
    """Bytes of the entry itself."""

    length_after: int
    last_add_confirmed: int
    digest: bytes
    appended_at_ms: int | None = None
