"""The record that a writer sends to bookies, encoded once for all bookies that get the same."""

from __future__ import annotations

from collections.abc import Sequence

from spark_bookkeeper.bookie.bookie import NewRecord
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PlacedPart
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.messages import EncodedEntries
from spark_bookkeeper.bookie.record import encode_add


def new_record(
    key: LedgerKey,
    encoding: LedgerEncoding,
    token: str,
    slot: int,
    last_add_confirmed: int,
    held: tuple[int, int],
    entries: EncodedEntries,
    parts: Sequence[PlacedPart] = (),
    spans: Sequence[tuple[int, int]] = (),
    appended_at_ms: int | None = None,
) -> NewRecord:
    """Make the record for a slot.

    Args:
        key: the ledger's key.
        encoding: the ledger's encoding.
        token: the token of the writer's session, never used before (rule R16).
        slot: its slot number on the bookies that get it.
        last_add_confirmed: an entry that is confirmed already (rule R10).
        held: a range that contains all its entries, also those in parts.
        entries: entries within the record; encode them once for all bookies of a write set.
        parts: parts on these bookies; the record makes them count (rule R15).
        spans: entry ranges, first and last, each written by one task.
        appended_at_ms: the append time of all its entries by the writer's clock, for display.
    """
    data = encode_add(
        key, encoding, token, slot, last_add_confirmed, entries, parts, spans, appended_at_ms
    )
    return NewRecord(slot, *held, data)
