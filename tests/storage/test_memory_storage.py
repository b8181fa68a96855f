"""The in-memory twin: the conformance suite, and the faults it can play."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.storage.storage import Storage
from spark_bookkeeper.testing.conformance.storage import StorageConformance, Storages, ThreadRace
from spark_bookkeeper.testing.memory_storage import (
    LateEffect,
    MemoryDisk,
    MemoryStorage,
    Moment,
    PendingPut,
)


class MemoryStorages(ThreadRace):
    """Handles on one disk."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.is_down = False

    def open(self) -> Storage:
        """A handle that stops answering when the disk is down."""
        return MemoryStorage(self.disk, self._faults)

    def vanish(self) -> None:
        """The disk is down."""
        self.is_down = True

    def _faults(self, operation: str, path: str, moment: Moment) -> None:
        if self.is_down:
            raise BookieUnavailableError("down", bookie_id="b:1")


class TestMemoryStorage(StorageConformance):
    """The twin promises what the others do."""

    @pytest.fixture
    def storages(self) -> Storages:
        return MemoryStorages()


LOST = BookieUnavailableError("lost", bookie_id="b:1")


def at(operation: str, when: Moment, error: Exception) -> Callable[[str, str, Moment], None]:
    """A hook that raises at one moment of one operation."""

    def faults(op: str, path: str, moment: Moment) -> None:
        if (op, moment) == (operation, when):
            raise error

    return faults


def test_a_request_that_was_lost_had_no_effect() -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk, at("put", "before", LOST))

    with pytest.raises(BookieUnavailableError):
        storage.put_if_absent("a", b"x")

    assert disk.files == {}


def test_an_answer_that_was_lost_had_its_effect() -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk, at("put", "after", LOST))

    with pytest.raises(BookieUnavailableError):
        storage.put_if_absent("a", b"x")

    assert disk.files == {"a": b"x"}


def test_a_put_lands_after_its_caller_gave_up_unless_the_name_is_taken() -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk, at("put", "before", LateEffect("late", bookie_id="b:1")))
    for _ in range(2):
        with pytest.raises(BookieUnavailableError):
            storage.put_if_absent("a", b"x")
    first, second = disk.pending

    assert disk.files == {}
    assert disk.land(second)
    assert not disk.land(first)
    assert disk.files == {"a": b"x"}


def test_a_name_that_is_visible_and_not_synced_is_lost_in_a_power_cut() -> None:
    disk = MemoryDisk()

    def cut(op: str, path: str, moment: Moment) -> None:
        if moment == "visible" and path == "b":
            raise BookieUnavailableError("the client dies between link and sync", bookie_id="b:1")

    storage = MemoryStorage(disk, cut)
    storage.put_if_absent("a", b"x")
    with pytest.raises(BookieUnavailableError):
        storage.put_if_absent("b", b"x")
    assert storage.read("b") == b"x"

    disk.power_cut()

    assert disk.files == {"a": b"x"}


def test_what_was_synced_after_it_was_found_survives_a_power_cut() -> None:
    disk = MemoryDisk()
    disk.files["a"] = b"x"

    MemoryStorage(disk).sync("a")
    disk.power_cut()

    assert disk.files == {"a": b"x"}


def test_a_wipe_takes_directories_too() -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk)
    storage.make_directory("d")

    disk.wipe()

    with pytest.raises(BookieUnavailableError, match="no such directory"):
        storage.put_if_absent("d/a", b"x")


def test_a_put_whose_file_a_power_cut_takes_away_is_not_answered() -> None:
    disk = MemoryDisk()

    def cut(operation: str, path: str, moment: Moment) -> None:
        if moment == "visible":
            disk.power_cut()

    storage = MemoryStorage(disk, cut)
    with pytest.raises(BookieUnavailableError, match="gone before it was durable"):
        storage.put_if_absent("a", b"x")
    sink = storage.create("b")
    with pytest.raises(BookieUnavailableError, match="gone before it was durable"):
        sink.finish()

    assert disk.files == {}
    assert disk.durable == set()


def test_a_bucket_takes_files_without_directories_also_late_and_after_a_wipe() -> None:
    disk = MemoryDisk(has_directories=False)
    storage = MemoryStorage(disk)
    late = PendingPut("d/late", b"1")
    disk.pending.append(late)

    disk.wipe()

    assert storage.put_if_absent("d/a", b"x")
    assert disk.land(late)
    disk.power_cut()
    assert disk.files == {"d/a": b"x", "d/late": b"1"}
