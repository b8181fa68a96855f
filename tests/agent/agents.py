"""Agents of bookies in memory, which a test moves step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from typing_extensions import override

from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.local_cluster import embedded_zookeeper as zookeeper
from spark_bookkeeper.runtime.runtime import Task, ThreadRuntime
from spark_bookkeeper.testing.memory_storage import MemoryDisk

TOTAL: Final = 1_000
STEPPED: Final = BookieConfig(60_000, 100, 200)
"""Read-only below a tenth of a disk, writable again above two; the test takes the steps."""


class Ended:
    """A task that does nothing any more."""

    is_alive = False

    def join(self, timeout: float | None = None) -> None:
        pass


class NoLoop(ThreadRuntime):
    """Never runs an agent's loop: the test calls ``step`` instead."""

    @override
    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        return Ended() if name.startswith("agent-") else super().spawn(name, run)


def half_full(name: str = "disk") -> MemoryDisk:
    """A disk of which a half is free."""
    disk = MemoryDisk(name)
    disk.free_bytes, disk.total_bytes = TOTAL // 2, TOTAL
    return disk


def free_port() -> int:
    """A port that nobody has, and that no outgoing connection of another process can be given."""
    return zookeeper._free_port()
