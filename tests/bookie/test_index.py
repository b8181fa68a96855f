"""Looking up many entries at once finds what looking up one by one finds."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.index import EntryIndex, Holding
from spark_bookkeeper.bookie.record import Record, decode, encode_add
from spark_bookkeeper.bookie.schema import LedgerKey

KEY = LedgerKey(7, "a1")
ENCODING = LedgerEncoding()


def record_of(entry_ids: Sequence[int]) -> Record:
    entries = [NewEntry(entry_id, entry_id + 1, b"x") for entry_id in sorted(entry_ids)]
    data = encode_add(KEY, ENCODING, token="t", slot=0, last_add_confirmed=-1, entries=entries)
    return decode(data, KEY, ENCODING, bookie_id="127.0.0.1:3181")


@given(
    st.lists(st.sets(st.integers(0, 30), min_size=1), max_size=4),
    st.lists(st.integers(0, 40), max_size=40),
)
def test_many_entries_are_found_where_each_of_them_is(
    records: list[set[int]], wanted: list[int]
) -> None:
    holdings = tuple(
        Holding(f"slots/{number}", record_of(sorted(ids))) for number, ids in enumerate(records)
    )
    index = EntryIndex("127.0.0.1:3181", KEY, 0, 40, holdings)

    found = index.first_places(wanted)

    assert found == [index.find(entry_id) for entry_id in wanted]
