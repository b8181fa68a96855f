"""Both implementations of the face of a bookie, under one suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typing_extensions import override

from spark_bookkeeper.bookie.bookie import Bookie
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.retry_policy import Patience
from spark_bookkeeper.testing.conformance.bookie import INCARNATION, BookieConformance, Shelf
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from spark_bookkeeper.testing.queue_bookie import BookieServer, QueueBookie


class Files(Shelf):
    """Bookies in memory."""

    def __init__(self, *, has_directories: bool = True) -> None:
        self.disks: dict[str, MemoryDisk] = {}
        self._has_directories = has_directories

    @override
    def bookie(self, name: str = "10.0.0.1:3181") -> Bookie:
        if name not in self.disks:
            disk = self.disks[name] = MemoryDisk(name, has_directories=self._has_directories)
            Partition(MemoryStorage(disk)).furnish(Marker(name, INCARNATION, "cluster"))
        return FileBookie(MemoryStorage(self.disks[name]))

    @override
    def spoil(self, found: bytes, name: str = "10.0.0.1:3181") -> int:
        count = 0
        for path, data in self.disks[name].files.items():
            count += data.count(found)
            self.disks[name].files[path] = data.replace(found, found[:-1] + b"?")
        return count


class Queues(Files):
    """The same, each served behind a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: dict[str, BookieServer] = {}

    @override
    def bookie(self, name: str = "10.0.0.1:3181") -> Bookie:
        if name not in self.servers:
            self.servers[name] = BookieServer(super().bookie(name))
        patience = Patience.of(ClientConfig())
        return QueueBookie(
            self.servers[name], BookieClient(name, "queue", ThreadRuntime(), patience)
        )


class TestFileBookie(BookieConformance):
    @pytest.fixture(params=[True, False], ids=["directories", "bucket"])
    def shelf(self, request: pytest.FixtureRequest) -> Shelf:
        return Files(has_directories=request.param)


class TestQueueBookie(BookieConformance):
    @pytest.fixture
    def shelf(self) -> Iterator[Shelf]:
        queues = Queues()
        yield queues
        for server in queues.servers.values():
            server.close()
