"""Looking up many entries at once finds what looking up one by one finds."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.index import EntryIndex, Holding
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.record import Record, decode, encode_add
from tests.support.slotlog import find

KEY = LedgerKey(7, "a1")
ENCODING = LedgerEncoding()


def record_of(entry_ids: Sequence[int]) -> Record:
    entries = [NewEntry(entry_id, entry_id + 1, b"x") for entry_id in sorted(entry_ids)]
    data = encode_add(KEY, ENCODING, token="t", slot=0, last_add_confirmed=-1, entries=entries)
    return decode(data, KEY, ENCODING, bookie_id="127.0.0.1:3181")


records_of_ids = st.lists(st.sets(st.integers(0, 30), min_size=1), max_size=4)


def index_of(records: list[set[int]]) -> EntryIndex:
    holdings = tuple(
        Holding(f"slots/{number}", record_of(sorted(ids))) for number, ids in enumerate(records)
    )
    return EntryIndex("127.0.0.1:3181", KEY, 0, 40, holdings)


@given(records_of_ids, st.lists(st.integers(0, 40), max_size=40))
def test_many_entries_are_found_where_each_of_them_is(
    records: list[set[int]], wanted: list[int]
) -> None:
    index = index_of(records)

    found = index.first_places(wanted)

    assert found == [find(index, entry_id) for entry_id in wanted]
    told = index.told()
    assert told.lacking(wanted) == [entry_id for entry_id in wanted if entry_id not in index]
    assert told.entry_ids.tolist() == list(index)
    for entry_id in index:
        assert told.length_after(entry_id) == index.places(entry_id)[0].length_after


@given(records_of_ids, st.lists(st.integers(0, 40), max_size=40))
def test_entries_have_the_same_number_when_they_share_a_message(
    records: list[set[int]], wanted: list[int]
) -> None:
    index = index_of(records)
    places = index.first_places(wanted)

    numbers, sizes = (column.tolist() for column in index.told().pieces(wanted))

    assert sizes == [0 if place is None else place.size for place in places]
    assert [number == -1 for number in numbers] == [place is None for place in places]
    at = {
        number: (place.path, place.offset)
        for number, place in zip(numbers, places, strict=True)
        if place is not None
    }
    assert len(set(at.values())) == len(at)
    for number, place in zip(numbers, places, strict=True):
        assert place is None or at[number] == (place.path, place.offset)


def test_a_record_that_several_files_hold_is_found_in_each_of_them() -> None:
    record = record_of(range(3))
    indexes = [
        EntryIndex("127.0.0.1:3181", KEY, 0, 40, (Holding(path, record),))
        for path in ("slots/0", "copies/a", "slots/0")
    ]

    paths = [{place.path for place in each.first_places([0, 1, 2]) if place} for each in indexes]

    assert paths == [{"slots/0"}, {"copies/a"}, {"slots/0"}]


def test_what_was_worked_out_does_not_travel() -> None:
    index = EntryIndex("127.0.0.1:3181", KEY, 0, 90, (Holding("slots/0", record_of(range(60))),))
    before = len(pickle.dumps(index))
    told, places = index.told(), index.first_places(range(60))

    data = pickle.dumps(index)

    assert len(data) == before
    there = pickle.loads(data)
    assert there.told().messages.tolist() == told.messages.tolist()
    assert there.first_places(range(60)) == places


def test_rows_share_their_record_s_message_and_batches_do_not() -> None:
    batch = pa.record_batch({"payload": pa.array([b"xyz"], pa.binary())})
    entries = [NewEntry(n, n, payload) for n, payload in enumerate([b"", b"xy", batch, batch])]
    data = encode_add(KEY, ENCODING, token="t", slot=0, last_add_confirmed=-1, entries=entries)
    record = decode(data, KEY, ENCODING, bookie_id="127.0.0.1:3181")
    index = EntryIndex("127.0.0.1:3181", KEY, 0, 9, (Holding("slots/0", record),))

    numbers, sizes = index.told().pieces(range(5))

    assert numbers[0] == numbers[1]
    assert len({*numbers.tolist()}) == 4
    assert numbers[4] == -1
    assert sizes.tolist() == [0, 2, batch.serialize().size, batch.serialize().size, 0]
