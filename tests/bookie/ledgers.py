"""Several ledgers on one bookie in memory, with the same records in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.testing.conformance.bookie import INCARNATION, record
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage

BOOKIE: Final = "10.0.0.1:3181"


def partition(name: str = BOOKIE, *, has_directories: bool = True) -> MemoryDisk:
    """Of a bookie that holds nothing yet."""
    disk = MemoryDisk(name, has_directories=has_directories)
    marker = Marker(name, INCARNATION, "cluster", has_witness=not has_directories)
    Partition(MemoryStorage(disk)).furnish(marker)
    return disk


def ledgers(count: int) -> list[LedgerRef]:
    """By their numbers."""
    keys = (LedgerKey(number, "n") for number in range(count))
    return [LedgerRef(key, INCARNATION, LedgerEncoding()) for key in keys]


def fill(disk: MemoryDisk, among: Sequence[LedgerRef], *, slots: int = 2) -> None:
    """Records with two entries each, in every ledger."""
    bookie = FileBookie(MemoryStorage(disk))
    for each in among:
        bookie.prepare(each)
        for slot in range(slots):
            bookie.add(each, record(slot, [2 * slot, 2 * slot + 1], ledger=each))
