"""The life of a ledger on one bookie, on every back end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.bookie import Compacted, Compaction, LedgerRef
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry, PlacedPart
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.part import PartEncoder
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.errors import BookieError, LedgerFencedError
from spark_bookkeeper.storage.roots import open_storage
from spark_bookkeeper.storage.storage import Storage
from spark_bookkeeper.testing.ground import GroundStorage, KillAt, Killed
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.support.damage import Specimen
from tests.support.s3 import S3Server
from tests.support.slotlog import BOOKIE_ID, Log, damaged_paths, every_place, find

KEY = LedgerKey(7, "n1")
ENCODING = LedgerEncoding()


@pytest.fixture(params=["memory", "bucket", "local", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty partition."""
    if request.param == "memory":
        return MemoryStorage(MemoryDisk())
    if request.param == "bucket":
        return MemoryStorage(MemoryDisk(has_directories=False))
    if request.param == "local":
        return open_storage(str(tmp_path))
    server: S3Server = request.getfixturevalue("s3_server")
    return open_storage(f"s3://{server.make_bucket()}/bookie", server.storage_options)


def test_a_ledger_is_written_fenced_read_copied_and_gone_after_a_wipe(
    storage: Storage, token: Callable[[], str]
) -> None:
    marker = Partition(storage).format(BOOKIE_ID, "cluster", token=token)

    def client() -> Log:
        return Log(storage, LedgerRef(KEY, marker.incarnation, ENCODING))

    writer = client()
    writer.prepare()
    first = encode_add(KEY, ENCODING, "w1", 0, -1, [NewEntry(n, n + 1, b"x") for n in range(5)])
    writer.add(0, first)
    writer.add(0, first)
    sink = writer.parts.create("a-0-0.arrow")
    encoder = PartEncoder(KEY, ENCODING, sink.write)
    encoder.add(pa.record_batch([pa.array([b"y"] * 1000)], schema=ENCODING.schema))
    ref = encoder.finish("a-0-0.arrow")
    sink.finish()
    part = PlacedPart(ref, (5,), (2000,))
    writer.add(1, encode_add(KEY, ENCODING, "w1", 1, 4, parts=[part]))

    tail = client().fence()
    assert (tail.slots, tail.last_add_confirmed, list(tail.entries)) == (2, 4, [5])
    assert find(tail.entries, 6) is None
    with pytest.raises(LedgerFencedError):
        writer.add(2, encode_add(KEY, ENCODING, "w1", 2, 5, [NewEntry(6, 2001, b"z")]))
    assert client().fence().slots == tail.slots

    index = client().locate(0)
    entries = list(client().reader.entries(every_place(index)))
    assert [entry.entry_id for entry in entries] == [0, 1, 2, 3, 4, 5]
    assert entries[5].batch().num_rows == 1000
    assert client().write_copy(entries[:3]) == client().write_copy(entries[:3])
    assert damaged_paths(client()) == set()

    Partition(storage).wipe()

    with pytest.raises(BookieError):
        client().locate(0)
    with pytest.raises(BookieError):
        client().prepare()
    assert storage.list("ledgers") == []


@pytest.mark.parametrize(
    "storage",
    ["memory", "bucket", "local", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.full])],
    indirect=True,
)
def test_a_closed_ledger_is_compacted_though_killed_anywhere(
    storage: Storage, token: Callable[[], str]
) -> None:
    """Some operations of it, on each back end; all of them in ``test_compaction.py``."""
    marker = Partition(storage).format(BOOKIE_ID, "cluster", token=token)
    stride = 1000 if storage.uri.startswith("s3:") else 9
    numbers = itertools.count(1)
    number = 60 if storage.uri.startswith("s3:") else 0
    while True:
        ref = LedgerRef(LedgerKey(number, "n1"), marker.incarnation, ENCODING)
        Specimen.write(Log(storage, ref))

        def content(ref: LedgerRef = ref) -> dict[int, bytes]:
            found = FileBookie(storage).read(ref, list(range(6))).found
            return {entry.entry_id: bytes(entry.data) for entry in found}

        def compact(hook: Callable[[str, str], None], ref: LedgerRef = ref) -> Compacted:
            watched = GroundStorage(storage, hook, lambda operation, path: None)
            wanted = Compaction(ref, 5, f"{next(numbers):x}", files_least=2)
            return FileBookie(watched).compact(wanted)

        before = content()
        kill = KillAt(number)
        try:
            compact(lambda operation, path: kill("bookie", operation, path))  # noqa: B023
        except Killed:
            assert content() == before
            compact(lambda operation, path: None)
        assert content() == before
        paths = LedgerPaths(ref.key)
        assert len(storage.list(paths.slots)) == len(storage.list(paths.copies)) == 1
        with pytest.raises(LedgerFencedError):
            Log(storage, ref).add(3, encode_add(ref.key, ENCODING, "w1", 3, 5))
        if not kill.is_dead:
            break
        number += stride
    assert number > 30
