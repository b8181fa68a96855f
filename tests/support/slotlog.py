"""A bookie in memory with as many clients as a test asks for, and records to put on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from typing_extensions import override

from spark_bookkeeper.bookie.bookie import LedgerRef, Rows
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry, StoredEntry
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.location import Location
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.reading import Wanted
from spark_bookkeeper.bookie.record import decode, encode_add
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.storage.storage import Storage
from spark_bookkeeper.testing.memory_storage import Faults, MemoryDisk, MemoryStorage

BOOKIE_ID: Final = "10.0.0.1:3181"


class Log(LedgerLog):
    """A slot log for tests, which knows what a record holds from its bytes."""

    @override
    def add(self, slot: int, data: bytes, held: tuple[int, int] | None = None) -> None:
        record = decode(data, self.key, self.encoding, bookie_id=self.bookie_id)
        assert record.slot == slot
        super().add(slot, data, held or (record.first, record.last))


@dataclass
class Bookie:
    """One bookie in memory, with as many clients as asked for."""

    disk: MemoryDisk
    marker: Marker
    key: LedgerKey = field(default_factory=lambda: LedgerKey(7, "n1"))
    encoding: LedgerEncoding = field(default_factory=LedgerEncoding)

    @property
    def ref(self) -> LedgerRef:
        """The ledger, as the bookie is asked for it."""
        return LedgerRef(self.key, self.marker.incarnation, self.encoding)

    @property
    def paths(self) -> LedgerPaths:
        """Where its files are."""
        return LedgerPaths(self.key)

    def face(self, faults: Faults | None = None) -> FileBookie:
        """A client of its own, at the face of the bookie."""
        return FileBookie(self.log(faults).storage)

    def log(self, faults: Faults | None = None) -> Log:
        """A client of its own; ``prepare`` has not been called."""
        storage = MemoryStorage(self.disk) if faults is None else MemoryStorage(self.disk, faults)
        return self.log_on(storage)

    def log_on(self, storage: Storage) -> Log:
        """A client that uses another handle."""
        return Log(storage, self.ref)

    def writer(self) -> Log:
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
        return self.paths.slot(slot)


def log_of(context: ClientContext, bookie: BookieId, ledger: Ledger) -> Log:
    """The slot log behind a bookie's face, over the storage that a client reaches it by."""
    replica = context.bookies.replica(bookie, ledger)
    assert isinstance(replica.bookie, FileBookie)
    return Log(replica.bookie.storage, replica.ledger)


def every_place(index: EntryIndex) -> list[Location]:
    """The first place of each entry that is there, ascending."""
    return [index.places(entry_id)[0] for entry_id in index]


def find(index: EntryIndex, entry_id: int) -> Location | None:
    """Where an entry is; ``None`` if it is certainly not there. Raises what doubt raises."""
    places = index.places(entry_id)
    if not places:
        index.check_absent(entry_id)
    return places[0] if places else None


def read_one(log: LedgerLog, place: Location) -> StoredEntry:
    """One entry; raises why not."""
    return next(log.reader.entries([place]))


def scan(log: LedgerLog, places: Iterable[Location]) -> Iterator[Rows]:
    """Rows, a message at a time; raises why not."""
    for message in log.reader.messages(places, Wanted.ROWS):
        if message.refused:
            raise message.refused[0][1]
        yield message.rows()


def damaged_paths(log: LedgerLog) -> set[str]:
    """The files of a ledger on a bookie in which something is not as it was written."""
    index = log.locate(0)
    found = {doubt.path for doubt in index.doubts} | set(log.spoilt_files(index))
    for holding in index.holdings:
        record = holding.record
        places = record.locations(np.arange(len(record.ids)), log.paths, holding.path)
        for message in log.reader.messages(places, Wanted.ENTRIES):
            found |= {place.path for place, _ in message.refused}
    return found
