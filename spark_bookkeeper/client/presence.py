"""Whether the writers of ledgers live. For people and patient callers: no data depends on it.

The ledger's custom metadata says which process is its writer. An ephemeral node of the writer's
session says that it lives (``metadata/zookeeper/presence.py``). A writer that is frozen, or cut off
from ZooKeeper for longer than a session lasts, seems gone and may come back. The fence of a
recovery stops it, never this (SLOT-LOG rule R17).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Final, Literal

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import STAGER, WRITER
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

WriterState = Literal["lives", "gone", "unknown"]
"""``unknown``: the ledger was made by another client, or by a version that left no such node."""

GONE: Final = "its process ended, was frozen for long, or lost ZooKeeper"
"""The possible reasons why a writer is gone."""

ENDED_FIRST: Final = (
    "first make sure that the process of each writer has ended, as recovery ends a writer that "
    "still lives"
)
"""Said before any way to close a ledger whose writer is gone: nothing here tells a writer that
ended from one that was cut off, and which appends, or is idle and goes on in an hour."""

_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))

_HEXADECIMAL = re.compile(rb"[0-9a-f]+")


def writer_of(metadata: LedgerMetadata) -> WriterInfo | None:
    """Return the creator of the ledger; ``None`` if it is not recorded or not readable."""
    told = metadata.custom_metadata.get(WRITER) or metadata.custom_metadata.get(STAGER)
    return None if told is None else WriterInfo.decode(told)


def writer_state(context: ClientContext, ledger_id: LedgerId, known: LedgerMetadata) -> WriterState:
    """Read now whether the writer of a ledger lives. Raises ``MetadataUnavailableError``."""
    token = _token(known)
    if token is None:
        return "unknown"
    return "lives" if context.store.has_writer(ledger_id, token) else "gone"


def ledgers_with_writers(
    context: ClientContext,
) -> Iterator[tuple[LedgerId, LedgerMetadata | MetadataFormatError, WriterState | None]]:
    """Yield every ledger in order, and whether its writer lives; ``None`` for one that is closed.

    One more request reads the writers of all ledgers. The ledgers whose writers seem gone are read
    once more, because they may have been closed meanwhile. So a ledger that is reported as open
    without a writer really was.
    """
    store = context.store
    found = {i: m for i, m in store.read_ledgers(store.ledger_ids()) if m is not None}
    living = store.writers()
    unsure = [i for i, m in found.items() if _state(i, m, living) == "gone"]
    for ledger_id, again in store.read_ledgers(unsure):
        if again is None:
            del found[ledger_id]
        else:
            found[ledger_id] = again
    for ledger_id, metadata in found.items():
        value = metadata.value if isinstance(metadata, Versioned) else metadata
        yield ledger_id, value, _state(ledger_id, metadata, living)


def _state(
    ledger_id: LedgerId,
    found: Versioned[LedgerMetadata] | MetadataFormatError,
    living: Set[tuple[LedgerId, str]],
) -> WriterState | None:
    if not isinstance(found, Versioned) or found.value.is_closed:
        return None
    token = _token(found.value)
    if token is None:
        return "unknown"
    return "lives" if (ledger_id, token) in living else "gone"


def age(since_ms: int, now_ms: int) -> str:
    """Return how long ago a time was: ``3 hours ago``. Clocks differ, so it is never negative."""
    seconds = max(0, (now_ms - since_ms) // 1000)
    for unit, size in _UNITS:
        if seconds >= size:
            count = seconds // size
            return f"{count:,} {unit}{'' if count == 1 else 's'} ago"
    return "now"


def _token(metadata: LedgerMetadata) -> str | None:
    """Return the name of the writer's node; ``None`` when there never was one."""
    nonce = metadata.nonce or b""
    has_note = WRITER in metadata.custom_metadata and _HEXADECIMAL.fullmatch(nonce)
    return nonce.decode() if has_note else None
