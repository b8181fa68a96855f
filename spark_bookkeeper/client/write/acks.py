"""Which bookie stored which entry, and when: a writer's record of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_bookkeeper.bookie.messages import Int64Array
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

ACKS_KEPT = 10_000
"""The number of slots for which a writer remembers the answers."""

STORED_AT = pa.timestamp("us", tz="UTC")
ACKS_SCHEMA = pa.schema(
    [
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("stored_at", STORED_AT),
        pa.field("waited_ms", pa.float64()),
        pa.field("acknowledged", pa.bool_(), nullable=False),
    ]
)


class SlotAck(NamedTuple):
    """One bookie stored the entries ``first .. last`` that are striped to it."""

    bookie: BookieId
    position: int
    first: EntryId
    last: EntryId
    stored_at_ms: int
    """When it answered, in milliseconds since 1970; for people to read."""
    waited_ms: float
    """From the first send to any bookie until this bookie's answer."""


def acks_table(
    slots: Sequence[SlotAck], metadata: LedgerMetadata, confirmed: EntryId, pushed: EntryId
) -> pa.Table:
    """Return which bookie stored which entry, from the slots that a writer remembers.

    It is computed column by column, because a slot may hold thousands of small entries.
    """
    quorum = metadata.quorum
    width = quorum.write_quorum_size
    first = min((slot.first for slot in slots), default=EntryId(0))
    # A row for each entry and each bookie of its write set.
    ids: Int64Array = np.repeat(np.arange(first, pushed + 1), width)
    positions = (ids + np.arange(len(ids)) % width) % quorum.ensemble_size
    bookies = sorted(metadata.members())
    numbers = {bookie: number for number, bookie in enumerate(bookies)}
    holders: Int64Array = np.zeros(len(ids), dtype=np.int64)
    for fragment in metadata.fragments:
        start = max(0, fragment.first_entry_id - first) * width
        ensemble = np.array([numbers[bookie] for bookie in fragment.ensemble])
        holders[start:] = ensemble[positions[start:]]
    acks = np.full(len(ids), -1)
    for number, slot in enumerate(slots):
        entries = np.arange(slot.first, slot.last + 1)
        turns: Int64Array = (slot.position - entries) % quorum.ensemble_size
        own = ((entries - first) * width + turns)[turns < width]
        acks[own[holders[own] == numbers.get(slot.bookie, -1)]] = number
    told = pa.array(acks, mask=acks < 0)
    columns = [
        ids,
        pa.array(bookies, pa.string()).take(pa.array(holders)),
        positions.astype(np.int32),
        pa.array(["pending", "stored"]).take(pa.array((acks >= 0).astype(np.int8))),
        pa.array([slot.stored_at_ms * 1000 for slot in slots], STORED_AT).take(told),
        pa.array([slot.waited_ms for slot in slots], pa.float64()).take(told),
        ids <= confirmed,
    ]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=ACKS_SCHEMA)
