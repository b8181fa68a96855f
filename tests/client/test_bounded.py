"""Storage with a bound on silence keeps the promises of the storage that it passes on to."""

from __future__ import annotations

import pytest

from spark_bookkeeper.bookie.memory import MemoryDisk, MemoryStorage, Moment
from spark_bookkeeper.bookie.storage import Storage
from spark_bookkeeper.client.asking import Door, Patience
from spark_bookkeeper.client.bounded import BoundedStorage
from spark_bookkeeper.client.runtime import ThreadRuntime
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.testing.conformance.storage import StorageConformance, Storages, ThreadRace


class BoundedStorages(ThreadRace):
    """Handles on one disk, each behind a door of its own."""

    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self._is_down = False

    def open(self) -> Storage:
        door = Door("b:1", "memory://b", ThreadRuntime(), Patience(60.0, 1.0, 1.0))
        return BoundedStorage(MemoryStorage(self._disk, self._faults), door)

    def vanish(self) -> None:
        self._is_down = True

    def _faults(self, operation: str, path: str, moment: Moment) -> None:
        if self._is_down:
            raise BookieUnavailableError("down")


class TestBoundedStorage(StorageConformance):
    @pytest.fixture
    def storages(self) -> Storages:
        return BoundedStorages()
