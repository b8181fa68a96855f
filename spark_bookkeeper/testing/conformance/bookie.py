"""Tests that every bookie must pass, whatever its storage.

A subclass provides a fixture ``shelf``: new bookies, and a way to damage their content.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.bookie import (
    Bookie,
    Compacted,
    Compaction,
    EntriesRef,
    LedgerRef,
    NewCopies,
    NewRecord,
    RangeRef,
    Span,
    Swept,
    Verification,
)
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PartRef, PlacedPart
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.messages import NOTHING, encode_columns
from spark_bookkeeper.bookie.new_record import new_record
from spark_bookkeeper.bookie.part import PartEncoder
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.bookie.verdict import RefusalKind
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CookieMismatchError,
    CorruptEntryError,
    LedgerFencedError,
    NoSuchLedgerError,
    SlotTakenError,
)
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.runtime.answer import value_of

T = TypeVar("T")

INCARNATION = "incarnation"
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("more", pa.list_(pa.int8()))])
PAYLOADS = LedgerRef(LedgerKey(7, "n1"), INCARNATION, LedgerEncoding())
TABLE = LedgerRef(LedgerKey(8, "n1"), INCARNATION, LedgerEncoding(SCHEMA, compression="zstd"))


class Shelf(Protocol):
    """The source of a test's bookies."""

    def bookie(self, name: str = "10.0.0.1:3181") -> Bookie:
        """Return a session with the bookie of that name. The first call formats it as
        ``INCARNATION``.
        """

    def spoil(self, found: bytes, name: str = "10.0.0.1:3181") -> int:
        """Damage these bytes wherever the bookie holds them; return the number of places."""


def payload(entry_id: int) -> bytes:
    """Return the payload of an entry of the tests."""
    return b"entry %d" % entry_id


def record(
    slot: int,
    entry_ids: Sequence[int],
    lac: int = -1,
    ledger: LedgerRef = PAYLOADS,
    token: str = "w",
) -> NewRecord:
    """Return a record with payloads."""
    lengths = [10 * (entry_id + 1) for entry_id in entry_ids]
    payloads = [payload(entry_id) for entry_id in entry_ids]
    encoded = encode_columns(ledger.encoding, entry_ids, lengths, payloads)
    held = entry_ids[0], entry_ids[-1]
    return new_record(ledger.key, ledger.encoding, token, slot, lac, held, encoded)


def rows(entry_id: int, count: int = 3) -> pa.RecordBatch:
    """Return the rows of an entry of ``TABLE``."""
    numbers = range(100 * entry_id, 100 * entry_id + count)
    columns = [list(numbers), [f"row {n}" for n in numbers], [[n % 7] for n in numbers]]
    return pa.record_batch(columns, schema=SCHEMA)


def write_part(replica: Replica, name: str, first: int, count: int) -> PlacedPart:
    """Write a part of ``TABLE`` with ``count`` entries."""
    sink = replica.begin_part(name)
    encoder = PartEncoder(replica.ledger.key, replica.ledger.encoding, sink.write)
    for entry_id in range(first, first + count):
        encoder.add(rows(entry_id))
    ref: PartRef = encoder.finish(name)
    sink.finish()
    ids = tuple(range(first, first + count))
    return PlacedPart(ref, ids, tuple(1000 * (entry_id + 1) for entry_id in ids))


def add_part(replica: Replica, slot: int, part: PlacedPart) -> None:
    """Add the record that lists a part."""
    ids, ref = part.entry_ids, replica.ledger
    held = ids[0], ids[-1]
    listed = new_record(ref.key, ref.encoding, "w", slot, -1, held, NOTHING, [part], [held])
    replica.add(listed)


def travelled(value: T) -> T:
    """Return a value after a trip through pickle."""
    found: T = pickle.loads(pickle.dumps(value))
    return found


class BookieConformance:
    """Inherit it, and provide ``shelf``."""

    def replica(
        self, shelf: Shelf, ledger: LedgerRef = PAYLOADS, name: str = "10.0.0.1:3181"
    ) -> Replica:
        return Replica(shelf.bookie(name), ledger)

    def written(self, shelf: Shelf, ledger: LedgerRef = PAYLOADS) -> Replica:
        """Write entries 0 to 5 into three slots; return the writer."""
        writer = self.replica(shelf, ledger)
        writer.prepare()
        writer.add(record(0, [0, 1], -1, ledger))
        writer.add(record(1, [2, 3], 1, ledger))
        writer.add(record(2, [4, 5], 3, ledger))
        return writer

    def table(self, shelf: Shelf) -> Replica:
        """Write entries 0 to 3 as two parts; return the writer."""
        writer = self.replica(shelf, TABLE)
        writer.prepare()
        add_part(writer, 0, write_part(writer, "a-0-0.arrow", 0, 2))
        add_part(writer, 1, write_part(writer, "a-1-0.arrow", 2, 2))
        return writer

    # Writing

    def test_what_was_added_is_there_for_whoever_comes_later(self, shelf: Shelf) -> None:
        self.written(shelf)
        reader = self.replica(shelf)

        holdings = reader.holdings(1, 4)

        assert holdings.entry_ids.tolist() == [1, 2, 3, 4]
        assert holdings.lengths_after.tolist() == [20, 30, 40, 50]
        assert holdings.sizes.tolist() == [len(payload(1))] * 4
        assert len(set(holdings.messages.tolist())) == 3
        assert holdings.doubts == ()
        assert holdings.lacking([0, 1, 4, 5]) == [0, 5]
        delivery = reader.read([0, 3, 5, 9])
        found = sorted(delivery.found, key=lambda entry: entry.entry_id)
        assert [(e.entry_id, e.payload) for e in found] == [(e, payload(e)) for e in (0, 3, 5)]
        assert [e.last_add_confirmed for e in found] == [-1, 1, 3]
        assert list(delivery.refused) == [9]

    def test_the_same_record_again_changes_nothing(self, shelf: Shelf) -> None:
        writer = self.replica(shelf)
        writer.prepare()
        new = record(0, [0, 1])
        writer.add(new)
        writer.add(travelled(new))
        self.replica(shelf).add(new)

        assert self.replica(shelf).holdings(0).entry_ids.tolist() == [0, 1]

    def test_a_slot_of_another_writer_is_refused(self, shelf: Shelf) -> None:
        self.written(shelf)
        with pytest.raises(SlotTakenError) as caught:
            self.replica(shelf).add(record(0, [0, 1], token="other"))
        assert caught.value.bookie_id == "10.0.0.1:3181"

    # Fencing

    def test_a_fence_stops_the_writer_and_tells_what_is_at_the_end(self, shelf: Shelf) -> None:
        writer = self.written(shelf)

        tail = travelled(self.replica(shelf).fence())

        assert (tail.is_fenced, tail.last_add_confirmed) == (True, 3)
        assert tail.entries.entry_ids.tolist() == [4, 5]
        assert tail.entries.length_after(5) == 60
        assert tail.entries.length_after(6) is None
        with pytest.raises(LedgerFencedError):
            writer.add(record(3, [6]))
        assert self.replica(shelf).fence().entries.entry_ids.tolist() == [4, 5]

    def test_a_tail_tells_the_same_and_stops_nobody(self, shelf: Shelf) -> None:
        writer = self.written(shelf)

        tail = self.replica(shelf).tail()

        assert (tail.is_fenced, tail.last_add_confirmed) == (False, 3)
        assert tail.entries.entry_ids.tolist() == [4, 5]
        writer.add(record(3, [6]))

    def test_a_ledger_that_was_never_here_is_fenced_too(self, shelf: Shelf) -> None:
        tail = self.replica(shelf).fence()

        assert (tail.last_add_confirmed, len(tail.entries)) == (-1, 0)
        writer = self.replica(shelf)
        writer.prepare()
        with pytest.raises(LedgerFencedError):
            writer.add(record(0, [0]))

    def test_many_ledgers_are_answered_for_each_by_itself(self, shelf: Shelf) -> None:
        self.written(shelf)
        strange = replace(PAYLOADS, incarnation="another")
        other = replace(PAYLOADS, key=LedgerKey(9, "n1"))
        asked = travelled([PAYLOADS, strange, other])

        for answers in (
            shelf.bookie().tail(asked),
            shelf.bookie().fence(asked),
            shelf.bookie().holdings([RangeRef(ledger, 4, 5) for ledger in asked]),
            shelf.bookie().verify([Verification(ledger, [4, 5]) for ledger in asked]),
        ):
            good, refused, empty = answers
            assert isinstance(refused, CookieMismatchError)
            assert not isinstance(good, BookKeeperError)
            assert not isinstance(empty, BookKeeperError)
        confirmed = [value_of(newest).last_add_confirmed for newest in shelf.bookie().newest(asked)]
        assert confirmed == [3, 3, -1], "for people, of whatever is there"

    # Reading

    def test_rows_are_scanned_a_message_at_a_time(self, shelf: Shelf) -> None:
        self.table(shelf)

        delivery = travelled(self.replica(shelf, TABLE).scan([0, 2, 3]))

        found = sorted(delivery.found, key=lambda piece: piece.entries)
        assert [piece.entries for piece in found] == [(0,), (2,), (3,)]
        for piece, entry_id in zip(found, (0, 2, 3), strict=True):
            assert piece.batch.equals(rows(entry_id))
            assert piece.entry_ids.tolist() == [entry_id] * 3
            assert piece.positions.tolist() == [0, 1, 2]
        assert delivery.refused == {}

    def test_payloads_of_one_message_are_scanned_together(self, shelf: Shelf) -> None:
        self.written(shelf)

        delivery = self.replica(shelf).scan([1, 2, 3])

        found = sorted(delivery.found, key=lambda piece: piece.entries)
        assert [piece.entries for piece in found] == [(1,), (2, 3)]
        assert [p.batch.column(0).to_pylist() for p in found] == [
            [payload(1)],
            [payload(2), payload(3)],
        ]

    @pytest.mark.parametrize("columns", [["text"], ["more", "n"], ["n", "text", "more"]])
    @pytest.mark.parametrize("compression", [None, "zstd"])
    def test_only_the_columns_asked_for_are_delivered(
        self, shelf: Shelf, columns: list[str], compression: str | None
    ) -> None:
        ledger = replace(TABLE, encoding=LedgerEncoding(SCHEMA, compression=compression))
        writer = self.replica(shelf, ledger)
        writer.prepare()
        add_part(writer, 0, write_part(writer, "a-0-0.arrow", 0, 2))

        delivery = self.replica(shelf, ledger).scan([1], columns=columns)

        (piece,) = delivery.found
        assert piece.batch.equals(rows(1).select(columns))

    def test_work_is_split_as_it_was_written(self, shelf: Shelf) -> None:
        writer = self.table(shelf)

        spans = travelled(writer.split(1, 9))

        assert [(span.first, span.last) for span in spans] == [(1, 1), (2, 3)]
        assert all(isinstance(span, Span) and span.size_bytes > 0 for span in spans)

    # Verifying

    @pytest.mark.parametrize("digest_type", list(DigestType))
    def test_what_is_good_is_verified(self, shelf: Shelf, digest_type: DigestType) -> None:
        encoding = LedgerEncoding(digest_type=digest_type, password=b"secret")
        ledger = replace(PAYLOADS, encoding=encoding)
        self.written(shelf, ledger)
        replica = self.replica(shelf, ledger)

        verdict = travelled(replica.verify([0, 3, 8], with_files=True))

        assert verdict.good.keys() == {0, 3}
        assert verdict.good[3].size_bytes == len(payload(3))
        assert verdict.refused[8].kind is RefusalKind.ABSENT
        assert verdict.spoilt == {}

    def test_what_was_damaged_is_refused_and_no_other(self, shelf: Shelf) -> None:
        self.written(shelf)
        assert shelf.spoil(payload(2)) == 1

        verdict = self.replica(shelf).verify(range(6))

        assert verdict.good.keys() == {0, 1, 4, 5}
        assert {why.kind for why in verdict.refused.values()} == {RefusalKind.DAMAGED}
        read = self.replica(shelf).read(range(6))
        assert sorted(entry.entry_id for entry in read.found) == [0, 1, 4, 5]
        assert read.refused.keys() == {2, 3}

    def test_what_it_told_before_need_not_be_looked_for_again(self, shelf: Shelf) -> None:
        replica = self.written(shelf)
        known = travelled(replica.fence().entries)

        assert replica.verify([4, 5], known).good.keys() == {4, 5}
        assert [e.payload for e in replica.read([5], known).found] == [payload(5)]

    # Copies

    def test_copies_are_as_good_and_made_once(self, shelf: Shelf) -> None:
        entries = travelled(self.written(shelf).read([1, 2, 4]).found)
        target = self.replica(shelf, PAYLOADS, "10.0.0.2:3181")
        target.check()
        copies = NewCopies(PAYLOADS, entries)

        assert list(target.bookie.write_copies([copies, copies])) == [None, None]

        assert target.holdings(0).entry_ids.tolist() == [1, 2, 4]
        assert target.verify([1, 2, 4]).good.keys() == {1, 2, 4}
        sizes = sorted(target.bookie.sizes_of(PAYLOADS.key))
        assert sum(sizes) > 0
        target.write_copies(entries)
        assert sorted(target.bookie.sizes_of(PAYLOADS.key)) == sizes

    def test_to_be_copied_is_what_cannot_be_read_there(self, shelf: Shelf) -> None:
        entries = self.written(shelf).read([1, 2, 4]).found
        target = self.replica(shelf, PAYLOADS, "10.0.0.2:3181")
        other = replace(PAYLOADS, key=LedgerKey(9, "n1"))
        strange = replace(other, incarnation="another")
        retired = replace(PAYLOADS, key=LedgerKey(10, "n1"))
        target.bookie.retire(retired.key)
        wanted = [EntriesRef(each, range(6)) for each in (PAYLOADS, other, strange, retired)]

        empty = [list(value_of(one)) for one in target.bookie.lacking(wanted[:2])]
        target.write_copies(entries)
        some, nothing, refused, gone = travelled(target.bookie.session().lacking(wanted))

        assert empty == [[0, 1, 2, 3, 4, 5]] * 2
        assert list(value_of(some)) == [0, 3, 5]
        assert list(value_of(nothing)) == [0, 1, 2, 3, 4, 5]
        assert isinstance(refused, CookieMismatchError)
        assert isinstance(gone, NoSuchLedgerError)

    def test_small_ledgers_are_read_together_and_no_others(self, shelf: Shelf) -> None:
        known = self.written(shelf).read(range(6)).found
        self.table(shelf)
        bookie = shelf.bookie()
        none = replace(PAYLOADS, key=LedgerKey(9, "n1"))
        asked = (PAYLOADS, none, TABLE, replace(PAYLOADS, incarnation="another"))
        wanted = [EntriesRef(each, range(6)) for each in asked]

        good, nothing, parts, refused = travelled(bookie.read_small(wanted, 1 << 20))
        (large,) = bookie.session().read_small(wanted[:1], 1)

        assert {e.entry_id: bytes(e.data) for e in value_of(good)} == {
            e.entry_id: bytes(e.data) for e in known
        }
        assert not value_of(nothing)
        assert isinstance(parts, BookieUnavailableError)
        assert isinstance(refused, BookKeeperError)
        assert isinstance(large, BookieUnavailableError)

    def test_a_part_is_copied_whole(self, shelf: Shelf) -> None:
        source = self.table(shelf)
        target = self.replica(shelf, TABLE, "10.0.0.2:3181")
        told: list[int] = []
        (part,) = (p for p in source.holdings(0, 1).parts if 0 in p.entry_ids)

        ref = target.copy_part(source, part.ref, told.append)
        placed = replace(part, ref=ref)

        assert sum(told) == part.ref.size_bytes
        assert target.check_part(placed)
        assert target.holdings(0).entry_ids.tolist() == [], "nothing lists it yet"
        target.write_copies(parts=[placed])
        assert target.verify([0, 1]).good.keys() == {0, 1}
        assert target.copy_part(source, part.ref) == ref, "it is there already"

    def test_a_part_that_was_damaged_is_not_copied(self, shelf: Shelf) -> None:
        plain = replace(TABLE, encoding=LedgerEncoding(SCHEMA))
        source = self.replica(shelf, plain)
        source.prepare()
        part = write_part(source, "a-0-0.arrow", 0, 2)
        assert shelf.spoil(b"row 100") == 1
        target = self.replica(shelf, plain, "10.0.0.2:3181")

        with pytest.raises(CorruptEntryError) as caught:
            target.copy_part(source, part.ref)

        assert caught.value.bookie_id == "10.0.0.1:3181"
        with pytest.raises(BookieUnavailableError):
            target.check_part(part)

    def test_what_one_tells_of_is_read_from_anothers_files(self, shelf: Shelf) -> None:
        teller = self.table(shelf)
        other = self.replica(shelf, TABLE, "10.0.0.2:3181")
        other.prepare()
        for part in teller.holdings(0).parts:
            other.copy_part(teller, part.ref)
        assert len(other.holdings(0)) == 0, "no record there lists them"

        delivery = other.read([0, 3], travelled(teller.holdings(0)))

        assert sorted(entry.entry_id for entry in delivery.found) == [0, 3]

    # Views for people, and upkeep

    def test_people_see_what_is_in_the_slots(self, shelf: Shelf) -> None:
        self.written(shelf)
        self.replica(shelf).fence()

        slots = travelled(self.replica(shelf).slots())

        assert [(s.slot, s.kind, s.first, s.last) for s in slots] == [
            (0, "ADD", 0, 1),
            (1, "ADD", 2, 3),
            (2, "ADD", 4, 5),
            (3, "FENCE", None, None),
        ]
        assert [s.writer for s in slots] == ["w", "w", "w", None]
        assert [s.last_add_confirmed for s in slots] == [-1, 1, 3, -1]
        assert self.replica(shelf).newest().last_add_confirmed == 3

    def test_a_closed_ledger_is_compacted_and_reads_the_same(self, shelf: Shelf) -> None:
        writer = self.written(shelf)
        before = writer.read(range(6)).found
        keeper = shelf.bookie()
        wanted = Compaction(PAYLOADS, 5, "1", files_least=2, dry_run=True)
        planned = keeper.compact(travelled(wanted))
        done = keeper.compact(replace(wanted, dry_run=False))

        assert planned.removed == done.removed > 1
        assert (done.written, done.entries, done.reason) == (1, 6, None)
        after = self.replica(shelf).read(range(6)).found
        told = [(e.entry_id, bytes(e.data), e.digest) for e in before]
        assert sorted((e.entry_id, bytes(e.data), e.digest) for e in after) == sorted(told)
        assert self.replica(shelf).verify(range(6)).refused == {}
        assert keeper.compact(replace(wanted, token="2", dry_run=False)) == Compacted()
        with pytest.raises(LedgerFencedError):
            writer.add(record(3, [6]))

    def test_what_nothing_names_is_cleared_and_stays_fenced(self, shelf: Shelf) -> None:
        writer = self.written(shelf)
        keeper = shelf.bookie()

        keeper.clear(PAYLOADS)
        keeper.clear(PAYLOADS)

        assert len(self.replica(shelf).holdings(0)) == 0
        with pytest.raises(LedgerFencedError):
            writer.add(record(3, [6]))
        assert keeper.sweep(PAYLOADS, 1 << 60, (), dry_run=True) == Swept()

    def test_a_deleted_ledger_takes_nothing_and_goes(self, shelf: Shelf) -> None:
        writer = self.written(shelf)
        self.table(shelf)
        keeper = shelf.bookie()
        assert set(keeper.ledgers()) == {PAYLOADS.key, TABLE.key}

        keeper.retire(PAYLOADS.key)
        keeper.retire(PAYLOADS.key)

        for use in (writer.check, self.replica(shelf).prepare):
            with pytest.raises(NoSuchLedgerError):
                use()
        sizes = keeper.sizes_of(PAYLOADS.key)
        assert sum(sizes) > 0
        assert keeper.files_of(PAYLOADS.key) == len(sizes)
        keeper.delete(PAYLOADS.key)
        keeper.delete(PAYLOADS.key)
        assert set(keeper.ledgers()) == {TABLE.key}
        assert (keeper.sizes_of(PAYLOADS.key), keeper.files_of(PAYLOADS.key)) == ([], 0)
        (answer,) = keeper.fence([PAYLOADS])
        assert isinstance(answer, NoSuchLedgerError)

    def test_every_error_names_the_bookie(self, shelf: Shelf) -> None:
        strange = self.replica(shelf, replace(PAYLOADS, incarnation="another"))
        for use in (strange.prepare, strange.check, strange.fence, strange.tail):
            with pytest.raises(CookieMismatchError) as met:
                use()
            assert met.value.bookie_id == "10.0.0.1:3181"

    def test_holdings_answer_alike_for_one_entry_and_for_many(self, shelf: Shelf) -> None:
        holdings = self.written(shelf).holdings(0)
        wanted = [0, 2, 3, 5, 7, 11]

        assert [e for e in wanted if e not in holdings] == holdings.lacking(wanted) == [7, 11]
        numbers, sizes = holdings.pieces(wanted)
        assert numbers[1] == numbers[2]
        assert (numbers[-2:] == -1).all()
        assert sizes.tolist() == [len(payload(0))] * 4 + [0, 0]
        none = value_of(shelf.bookie("10.0.0.2:3181").holdings([RangeRef(PAYLOADS, 0)])[0])
        assert np.array_equal(none.pieces(wanted)[0], [-1] * 6)
