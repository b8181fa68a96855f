"""What a writer sends to bookies: a record, encoded once for all that get the same."""

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
    """The record in a slot.

    Args:
        key: the ledger's life.
        encoding: the ledger's.
        token: the writer session's, never used before (rule R16).
        slot: its number on the bookies that it is for.
        last_add_confirmed: confirmed already (rule R10).
        held: a range with all its entries, those in parts too.
        entries: entries within the record; encode them once for all bookies of a write set.
        parts: parts that are on those bookies, and count from now on (rule R15).
        spans: entry ranges, first and last, that were written by one task.
        appended_at_ms: the time of the writer's clock, of all its entries, for people.
    """
    data = encode_add(
        key, encoding, token, slot, last_add_confirmed, entries, parts, spans, appended_at_ms
    )
    return NewRecord(slot, *held, data)
