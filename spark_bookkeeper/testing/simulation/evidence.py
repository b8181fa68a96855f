"""What really lies on the disks and in the metadata, read without the library's reading code.

Files are opened with plain pyarrow and their headers taken apart by hand, so that a mistake in
the library's reader cannot hide itself from the checkers. Only synced files count: what a
power cut would take away proves nothing.

Source: ``bookie/FORMAT.md`` (the header keys), SLOT-LOG "Objects" (what counts as what).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.testing.simulation.history import History

RECORD_KEY: Final = b"spark-bookkeeper.record"
ENTRIES_KEY: Final = b"spark-bookkeeper.entries"


@dataclass(frozen=True, slots=True)
class RawEntry:
    """One entry as a file holds it."""

    length_after: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One slot or copy, taken apart."""

    kind: str
    """ADD, FENCE or COPY."""
    token: str
    last_add_confirmed: int
    entries: Mapping[int, RawEntry]


def take_apart(data: bytes) -> RawRecord | None:
    """The record in a file of one-row ``payload binary`` entries; ``None`` if it is damaged."""
    try:
        reader = pa.ipc.open_file(data)
        metadata = reader.schema.metadata
        header = json.loads(metadata[RECORD_KEY])
        packed = metadata.get(ENTRIES_KEY, b"")
        numbers = struct.unpack(f"<{len(packed) // 8}q", packed)
        count = len(numbers) // 3
        payloads = reader.read_all().column("payload").to_pylist() if count else []
        return RawRecord(
            kind=header["kind"],
            token=header.get("token") or "",
            last_add_confirmed=header.get("last_add_confirmed", -1),
            entries={
                entry_id: RawEntry(length_after, payload)
                for entry_id, length_after, payload in zip(
                    numbers[:count], numbers[count : 2 * count], payloads, strict=True
                )
            },
        )
    except (pa.ArrowInvalid, KeyError, ValueError, OSError):
        return None


class RawLog:
    """What one bookie durably holds of the ledger now."""

    def __init__(self) -> None:
        self.slots: dict[int, RawRecord | None] = {}
        self.held: set[int] = set()
        """Every entry in any record here, also in one behind a fence (rule R6b)."""

    def put(self, path: str, record: RawRecord | None) -> None:
        """Take in one file; ``None`` for one that is damaged."""
        if path.split("/")[2] == "slots":
            self.slots[int(path.rsplit("/", 1)[1].removesuffix(".arrow"))] = record
        if record is not None:
            self.held.update(record.entries)

    def adds_unfenced(self, entry_id: int) -> bool:
        """Whether an ADD holds the entry above nothing but ADDs, densely."""
        for slot in range(len(self.slots)):
            record = self.slots.get(slot)
            if record is None or record.kind != "ADD":
                return False
            if entry_id in record.entries:
                return True
        return False


class Evidence:
    """Everything the checkers judge: history, metadata versions, disks.

    Args:
        history: what clients were told.
        durable_files: path -> content of what is synced on a bookie's disk now.
        take_apart: reads one file.
    """

    def __init__(
        self,
        history: History,
        durable_files: Callable[[BookieId], Mapping[str, bytes]],
        take_apart: Callable[[bytes], RawRecord | None] = take_apart,
    ) -> None:
        self.history = history
        self.versions: list[LedgerMetadata] = []
        """Every metadata value that was ever written, in order."""
        self.content: dict[int, RawEntry] = {}
        """The first copy ever seen of each entry; later ones must equal it, wiped or not."""
        self.wiped: set[BookieId] = set()
        """Bookies whose storage was destroyed, so that what they held proves nothing."""
        self.unlike: list[str] = []
        """Copies that differ from the first one seen."""
        self.highest_lac = -1
        """The highest LAC in any record that ever landed."""
        self.lac_checked = -1
        """The highest LAC that was found to be confirmed when its record landed."""
        self._durable_files = durable_files
        self._take_apart = take_apart
        self._logs: dict[BookieId, RawLog] = {}
        self._parsed: dict[bytes, RawRecord | None] = {}

    @property
    def metadata(self) -> LedgerMetadata:
        """The latest version."""
        return self.versions[-1]

    @property
    def closed(self) -> LedgerMetadata | None:
        """The first CLOSED version, if there is one."""
        return next((v for v in self.versions if v.state is LedgerState.CLOSED), None)

    def log(self, bookie: BookieId) -> RawLog:
        """What a bookie durably holds of the ledger now."""
        if bookie not in self._logs:
            log = self._logs[bookie] = RawLog()
            for path, data in self._durable_files(bookie).items():
                if _is_record(path):
                    log.put(path, self._parse(bookie, data))
        return self._logs[bookie]

    def landed(self, bookie: BookieId, path: str, data: bytes) -> None:
        """A file became durable."""
        if _is_record(path):
            self.log(bookie).put(path, self._parse(bookie, data))

    def changed(self, bookie: BookieId) -> None:
        """Files of a bookie went away: look at all of them again."""
        self._logs.pop(bookie, None)

    @property
    def written_under(self) -> LedgerMetadata:
        """The latest version under which the writer could still count acks."""
        return next(v for v in reversed(self.versions) if v.state is LedgerState.OPEN)

    def copies_owed(self, write_set: list[BookieId]) -> int:
        """How many copies of a confirmed entry must exist: Qa, less those destroyed since."""
        lost = sum(bookie in self.wiped for bookie in write_set)
        return max(self.metadata.quorum.ack_quorum_size - lost, 0)

    def _parse(self, bookie: BookieId, data: bytes) -> RawRecord | None:
        if data not in self._parsed:
            record = self._parsed[data] = self._take_apart(data)
            if record is not None:
                self.highest_lac = max(self.highest_lac, record.last_add_confirmed)
                for entry_id, entry in record.entries.items():
                    first = self.content.setdefault(entry_id, entry)
                    if first != entry:
                        self.unlike.append(f"entry {entry_id} on {bookie}: {entry} is not {first}")
        return self._parsed[data]


def write_set(metadata: LedgerMetadata, entry_id: int) -> list[BookieId]:
    """The bookies that should hold an entry, by a metadata value. Own arithmetic."""
    fragment = next(f for f in reversed(metadata.fragments) if f.first_entry_id <= entry_id)
    size = metadata.quorum.ensemble_size
    return [
        fragment.ensemble[(entry_id + i) % size] for i in range(metadata.quorum.write_quorum_size)
    ]


def _is_record(path: str) -> bool:
    parts = path.split("/")
    return (
        len(parts) == 4
        and parts[0] == "ledgers"
        and parts[2] in ("slots", "copies")
        and parts[3].endswith(".arrow")
    )
