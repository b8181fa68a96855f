"""Who stored what, worked out from the slots that a writer remembers."""

from __future__ import annotations

from spark_bookkeeper.client.write.acks import SlotAck, acks_table
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum

A, B, C, D = (BookieId(f"10.0.0.{n}:3181") for n in range(4))
BEFORE = Fragment(EntryId(0), (A, B, C))
AFTER = Fragment(EntryId(2), (A, D, C))
STRIPED = LedgerMetadata(Quorum(3, 2, 2), LedgerState.OPEN, fragments=(BEFORE, AFTER))


def ack(bookie: BookieId, position: int, first: int, last: int) -> SlotAck:
    return SlotAck(bookie, position, EntryId(first), EntryId(last), 1_000 * last, float(last))


def test_an_ack_counts_for_the_entries_of_its_stripe_in_the_ensemble_that_has_the_bookie() -> None:
    slots = [ack(A, 0, 0, 1), ack(B, 1, 0, 3), ack(C, 2, 0, 1), ack(D, 1, 2, 3)]

    table = acks_table(slots, STRIPED, EntryId(1), EntryId(3))

    assert [tuple(row.values()) for row in table.drop_columns(["stored_at"]).to_pylist()] == [
        (0, A, 0, "stored", 1.0, True),
        (0, B, 1, "stored", 3.0, True),
        (1, B, 1, "stored", 3.0, True),
        (1, C, 2, "stored", 1.0, True),
        (2, C, 2, "pending", None, False),
        (2, A, 0, "pending", None, False),
        (3, A, 0, "pending", None, False),
        (3, D, 1, "stored", 3.0, False),
    ]
    times = [time and time.timestamp() for time in table["stored_at"].to_pylist()]
    assert times == [1.0, 3.0, 3.0, 1.0, None, None, None, 3.0]


def test_what_was_appended_and_stored_nowhere_is_pending_everywhere() -> None:
    table = acks_table([], STRIPED, EntryId(NO_ENTRY), EntryId(0))

    assert table["status"].to_pylist() == ["pending", "pending"]
    assert acks_table([], STRIPED, EntryId(NO_ENTRY), EntryId(NO_ENTRY)).num_rows == 0
