"""A bookie in memory with as many clients as a test asks for, and records to put on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.schema import LedgerKey
from spark_bookkeeper.bookie.storage.memory import Faults, MemoryDisk, MemoryStorage
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.errors import BookieError

BOOKIE_ID: Final = "10.0.0.1:3181"


@dataclass
class Bookie:
    """One bookie in memory, with as many clients as asked for."""

    disk: MemoryDisk
    marker: Marker
    key: LedgerKey = field(default_factory=lambda: LedgerKey(7, "n1"))
    encoding: LedgerEncoding = field(default_factory=LedgerEncoding)

    def log(self, faults: Faults | None = None) -> LedgerLog:
        """A client of its own; ``prepare`` has not been called."""
        storage = MemoryStorage(self.disk) if faults is None else MemoryStorage(self.disk, faults)
        return self.log_on(storage)

    def log_on(self, storage: Storage) -> LedgerLog:
        """A client that uses another handle."""
        return LedgerLog(storage, BOOKIE_ID, self.marker.incarnation, self.key, self.encoding)

    def writer(self) -> LedgerLog:
        """A client that has prepared the ledger's directory."""
        log = self.log()
        log.prepare()
        return log

    def record(
        self, slot: int, first: int, last: int | None = None, lac: int = -1, token: str = "w1"
    ) -> bytes:
        """An ADD whose entries' payloads are their ids."""
        entries = [
            NewEntry(entry_id, entry_id + 1, str(entry_id).encode())
            for entry_id in range(first, (first if last is None else last) + 1)
        ]
        return encode_add(self.key, self.encoding, token, slot, lac, entries)

    def slot_path(self, slot: int) -> str:
        """Path of a slot."""
        return self.key.slot(slot)


def damaged_paths(log: LedgerLog) -> set[str]:
    """The files of a ledger on a bookie in which something is not as it was written."""
    index = log.locate(0)
    found = {doubt.path for doubt in index.doubts} | set(log.spoilt_files(index))
    for holding in index.holdings:
        record = holding.record
        for place in record.locations(np.arange(len(record.ids)), log.key, holding.path):
            try:
                log.read(place)
            except BookieError:
                found.add(place.path)
    return found
