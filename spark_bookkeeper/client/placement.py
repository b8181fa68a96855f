"""Who holds what of one ledger, as tables that can be drawn: by fragments, and entry by entry.

Both are worked out from metadata and registrations alone; whether a bookie really has what it
should have, ``check_ledgers`` tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

PLACEMENT: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("fragment", pa.int32(), nullable=False),
        pa.field("first_entry_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64()),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("entries", pa.int64()),
        pa.field("is_missing", pa.bool_(), nullable=False),
    ]
)

STRIPES: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("fragment", pa.int32(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("copy", pa.int32(), nullable=False),
        pa.field("is_missing", pa.bool_(), nullable=False),
    ]
)

MOST_ENTRIES: Final = 64
"""Entries of a ledger of which the stripes are shown unless more are asked for."""


def placement_table(
    ledger_id: int, metadata: LedgerMetadata, alive: Collection[BookieId], end: EntryId | None
) -> pa.Table:
    """One row for each bookie of each fragment (``PLACEMENT``).

    Args:
        alive: where copies of it are now (``live_members``); the others are ``is_missing``.
        end: the last entry of the last fragment, as far as that is known. Without it ``entries``
            of that fragment is null.
    """
    rows: list[dict[str, Any]] = []
    for number, fragment in enumerate(metadata.fragment_ranges()):
        last = end if fragment.last_entry_id is None else fragment.last_entry_id
        for position, bookie in enumerate(fragment.ensemble):
            rows.append(
                {
                    "ledger_id": ledger_id,
                    "fragment": number,
                    "first_entry_id": fragment.first_entry_id,
                    "last_entry_id": fragment.last_entry_id,
                    "position": position,
                    "bookie_id": bookie,
                    "entries": None
                    if last is None
                    else metadata.quorum.entries_held(position, fragment.first_entry_id, last),
                    "is_missing": bookie not in alive,
                }
            )
    return pa.Table.from_pylist(rows, schema=PLACEMENT)


def stripes_table(
    ledger_id: int,
    metadata: LedgerMetadata,
    alive: Collection[BookieId],
    first: EntryId,
    last: EntryId,
) -> pa.Table:
    """One row for each entry ``first .. last`` and each bookie of its write set (``STRIPES``).

    ``copy`` counts the write set from 0, in the order in which the entry is striped to it.
    """
    rows = list(_stripes(ledger_id, metadata, alive, first, last))
    return pa.Table.from_pylist(rows, schema=STRIPES)


def _stripes(
    ledger_id: int,
    metadata: LedgerMetadata,
    alive: Collection[BookieId],
    first: EntryId,
    last: EntryId,
) -> Iterator[dict[str, Any]]:
    for number, fragment in enumerate(metadata.fragment_ranges()):
        stop = last if fragment.last_entry_id is None else min(last, fragment.last_entry_id)
        for entry_id in range(max(first, fragment.first_entry_id), stop + 1):
            for copy, position in enumerate(metadata.quorum.write_set(EntryId(entry_id))):
                bookie = fragment.ensemble[position]
                yield {
                    "ledger_id": ledger_id,
                    "entry_id": entry_id,
                    "fragment": number,
                    "position": position,
                    "bookie_id": bookie,
                    "copy": copy,
                    "is_missing": bookie not in alive,
                }
