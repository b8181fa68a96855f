"""Files written by an older version are still read: the golden partition of format version 1."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.marker import read_marker
from spark_bookkeeper.bookie.record import RecordKind
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.storage.local import LocalStorage
from tests.support.slotlog import damaged_paths, every_place

ROOT = Path(__file__).parent.parent / "golden" / "bookie"
WITH_TIMES = ROOT.with_name("bookie-with-times")
ROWS_SCHEMA = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])


def golden(key: LedgerKey, encoding: LedgerEncoding) -> LedgerLog:
    return LedgerLog(LocalStorage(ROOT), LedgerRef(key, "0123456789abcdef", encoding))


def test_the_marker() -> None:
    marker = read_marker(LocalStorage(ROOT))

    assert marker is not None
    assert (marker.bookie_id, marker.incarnation) == ("10.0.0.1:3181", "0123456789abcdef")


def test_payloads_in_slots_a_copy_and_a_fence() -> None:
    log = golden(LedgerKey(7, "n1"), LedgerEncoding())

    assert [record.kind for record in log.records()] == [
        RecordKind.ADD,
        RecordKind.ADD,
        RecordKind.FENCE,
    ]
    tail = log.tail()
    assert (tail.slots, tail.is_fenced, tail.last_add_confirmed) == (3, True, 2)
    index = log.locate(0)
    entries = list(log.reader.entries(every_place(index)))
    assert [e.payload for e in entries] == [b"hello", b"", b"world", b"42"]
    assert [e.length_after for e in entries] == [5, 5, 10, 12]
    assert [len(index.places(n)) for n in range(4)] == [1, 1, 2, 2]
    assert damaged_paths(log) == set()


def test_rows_in_a_record_and_in_a_part() -> None:
    encoding = LedgerEncoding(ROWS_SCHEMA, DigestType.MAC, b"golden password", "lz4")
    log = golden(LedgerKey(8, "n2"), encoding)

    entries = list(log.reader.entries(every_place(log.locate(0))))

    numbers = [n for entry in entries for n in entry.batch().column("n").to_pylist()]
    assert numbers == list(range(14))
    assert [entry.batch().num_rows for entry in entries] == [4, 10, 0]
    assert entries[1].batch().column("tags").to_pylist()[:3] == [["4"], ["5"], None]
    assert [record.spans for record in log.records()] == [(), ((1, 2),)]
    assert damaged_paths(log) == set()


def test_what_an_earlier_version_wrote_has_no_time() -> None:
    log = golden(LedgerKey(7, "n1"), LedgerEncoding())

    places = [place for n in range(4) for place in log.locate(0).places(n)]
    assert [place.appended_at_ms for place in places] == [None] * 6


def test_times_an_explicit_lac_and_a_copy_of_both() -> None:
    storage = LocalStorage(WITH_TIMES)
    key = LedgerKey(9, "n3")
    log = LedgerLog(storage, LedgerRef(key, "0123456789abcdef", LedgerEncoding()))

    assert [(r.first, r.last, r.last_add_confirmed) for r in log.records()] == [
        (0, 1, -1), (2, 1, 1), (2, 2, 1), (3, 3, 2),
    ]  # fmt: skip
    index = log.locate(0)
    first, second = 1_700_000_000_000, 1_700_000_003_000
    times = [first, first, None, second]
    assert [e.appended_at_ms for e in log.reader.entries(every_place(index))] == times
    assert [[p.appended_at_ms for p in index.places(n)] for n in range(4)] == [
        [time, time] for time in times
    ]
    tail = log.tail()
    assert tail.last_add_confirmed == 2
    assert damaged_paths(log) == set()


@pytest.mark.parametrize(
    "path",
    sorted([*ROOT.rglob("*.arrow"), *WITH_TIMES.rglob("*.arrow")]),
    ids=lambda path: path.name,
)
def test_plain_pyarrow_opens_every_file(path: Path) -> None:
    table = pa.ipc.open_file(path).read_all()

    table.validate(full=True)
    assert any(key.startswith(b"spark-bookkeeper.") for key in table.schema.metadata)
