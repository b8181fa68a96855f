"""Exact costs (P6, P9 and P10 of the benchmarks), counted at the storage."""

from __future__ import annotations

from spark_bookkeeper.testing.counting import Call, CountingStorage
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from tests.support.slotlog import Bookie


def test_an_append_is_one_put_and_one_look_at_the_marker(bookie: Bookie) -> None:
    bookie.writer()
    storage = CountingStorage(MemoryStorage(bookie.disk))

    bookie.log_on(storage).add(0, bookie.record(0, 0))

    assert storage.calls == [Call("put_if_absent", bookie.slot_path(0)), Call("read", "BOOKIE")]


def test_the_hundredth_append_costs_what_the_first_did(bookie: Bookie) -> None:
    bookie.writer()
    storage = CountingStorage(MemoryStorage(bookie.disk))
    log = bookie.log_on(storage)
    for slot in range(100):
        log.add(slot, bookie.record(slot, slot))

    assert storage.count() == {"put_if_absent": 100, "read": 100}


def test_fencing_an_empty_ledger_lists_once_and_puts_once(bookie: Bookie) -> None:
    bookie.writer()
    storage = CountingStorage(MemoryStorage(bookie.disk))

    bookie.log_on(storage).fence()

    counted = storage.count()
    assert counted.pop("size") == 1, "is the ledger deleted?"
    assert counted.pop("make_directory") == 1
    assert counted == {"list": 1, "put_if_absent": 1, "read": 1}


def test_fencing_a_long_ledger_reads_only_its_end(bookie: Bookie) -> None:
    writer = bookie.writer()
    for slot in range(500):
        writer.add(slot, bookie.record(slot, slot, lac=slot - 1))
    storage = CountingStorage(MemoryStorage(bookie.disk))

    bookie.log_on(storage).fence()

    counted = storage.count()
    assert (counted["list"], counted["put_if_absent"]) == (2, 1)
    assert counted["read_range"] <= 3


def test_preparing_a_ledger_makes_one_directory(bookie: Bookie) -> None:
    storage = CountingStorage(MemoryStorage(bookie.disk))

    bookie.log_on(storage).prepare()

    assert storage.count() == {"read": 1, "size": 1, "make_directory": 1}
