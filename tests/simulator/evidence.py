"""What really lies on the disks and in the metadata, read without the library's reading code.

Files are opened with plain pyarrow and their headers taken apart by hand, so that a mistake in
the library's reader cannot hide itself from the checkers. Only synced files count: what a
power cut would take away proves nothing.

Source: ``bookie/FORMAT.md`` (the header keys), SLOT-LOG "Objects" (what counts as what).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Final

import crc32c
import pyarrow as pa

from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from tests.simulator.history import History

RECORD_KEY: Final = b"spark-bookkeeper.record"
ENTRIES_KEY: Final = b"spark-bookkeeper.entries"
INCARNATIONS_KEY: Final = "spark-bookkeeper.incarnations"


@dataclass(frozen=True, slots=True)
class RawEntry:
    """One entry as a file holds it."""

    length_after: int
    size: int
    rows: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RawPart:
    """A part as a record lists it: its entries lie in a file of their own."""

    name: str
    size_bytes: int
    crc32c: int
    entries: tuple[tuple[int, int, int], ...]
    """(entry id, length after, size) of each batch in the file, in order."""


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One slot or copy, taken apart."""

    kind: str
    """ADD, FENCE or COPY."""
    token: str
    last_add_confirmed: int
    entries: Mapping[int, RawEntry]
    """Those within the file itself."""
    parts: tuple[RawPart, ...] = ()


def take_apart(data: bytes) -> RawRecord | None:
    """The record in a file of entries of ``payload binary`` rows; ``None`` if it is damaged."""
    try:
        reader = pa.ipc.open_file(pa.BufferReader(data))
        metadata = reader.schema.metadata
        header = json.loads(metadata[RECORD_KEY])
        packed = metadata.get(ENTRIES_KEY, b"")
        numbers = struct.unpack(f"<{len(packed) // 8}q", packed)
        count = len(numbers) // 3
        columns = list(zip(*(numbers[i * count : (i + 1) * count] for i in range(3)), strict=True))
        payloads = (header.get("rows") or [0])[0]
        contents: list[tuple[bytes, ...]] = []
        for index in range(reader.num_record_batches):
            rows = _rows(reader.get_batch(index))
            contents += [(row,) for row in rows] if index == 0 and payloads else [rows]
        inline = {
            entry_id: RawEntry(length_after, size, rows)
            for (entry_id, length_after, size), rows in zip(
                columns[: header.get("inline", 0)], contents, strict=True
            )
        }
        start = len(inline)
        parts = []
        for part in header.get("parts", ()):
            own = tuple(columns[start : start + part["entries"]])
            parts.append(RawPart(part["name"], part["bytes"], part["crc32c"], own))
            start += part["entries"]
        return RawRecord(
            kind=header["kind"],
            token=header.get("token") or "",
            last_add_confirmed=header.get("last_add_confirmed", -1),
            entries=inline,
            parts=tuple(parts),
        )
    except (pa.ArrowInvalid, KeyError, ValueError, OSError):
        return None


def take_part_apart(data: bytes) -> list[tuple[bytes, ...]]:
    """The rows of each batch in a part."""
    reader = pa.ipc.open_file(pa.BufferReader(data))
    return [_rows(reader.get_batch(index)) for index in range(reader.num_record_batches)]


def _rows(batch: pa.RecordBatch) -> tuple[bytes, ...]:
    return tuple(batch.column("payload").to_pylist())


class RawLog:
    """What one bookie durably holds of the ledger now."""

    def __init__(self) -> None:
        self.slots: dict[int, tuple[str, Set[int]]] = {}
        """Kind and entries; a damaged one has the kind ""."""
        self.held: set[int] = set()
        """Every entry in any record here, also in one behind a fence (rule R6b)."""

    def put(self, path: str, kind: str, entries: Set[int]) -> None:
        """Take in one record."""
        _, _, directory, name = path.split("/")
        if directory == "slots":
            self.slots[int(name.removesuffix(".arrow"))] = (kind, entries)
        self.held.update(entries)

    def adds_unfenced(self, entry_id: int) -> bool:
        """Whether an ADD holds the entry above nothing but ADDs, densely."""
        for slot in range(len(self.slots)):
            kind, entries = self.slots.get(slot, ("", ()))
            if kind != "ADD":
                return False
            if entry_id in entries:
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
        self.lost: set[tuple[BookieId, str]] = set()
        """Bookies in incarnations whose storage was destroyed or damaged: what the metadata says
        they hold proves nothing."""
        self.vanished: dict[tuple[BookieId, str], frozenset[int]] = {}
        """What a bookie held in an incarnation when it was destroyed."""
        self.damaged: set[tuple[BookieId, str]] = set()
        """Files whose bytes were changed; they count as nothing."""
        self.is_rereplicated = False
        """Whether somebody may replace bookies in fragments that nobody writes any more."""
        self.is_compacted = False
        """Whether somebody may move entries from slots into copies when the ledger is closed."""
        self.is_collected = False
        """Whether what bookies have of it goes, since it was deleted."""
        self.is_deleted = False
        """Whether the ledger was deleted; it must not come back."""
        self.unlike: list[str] = []
        """Copies that differ from the first one seen."""
        self.highest_lac = -1
        """The highest LAC in any record that ever landed."""
        self.lac_checked = -1
        """The highest LAC that was found to be confirmed when its record landed."""
        self.versions_checked = 0
        """How many of the versions were found to follow from the one before."""
        self.acked_checked = 0
        """How many acknowledgements were found to speak of the rows that are there."""
        self._durable_files = durable_files
        self._take_apart = take_apart
        self._logs: dict[BookieId, RawLog] = {}
        self._parsed: dict[bytes, RawRecord | None] = {}
        self._parts: dict[bytes, list[tuple[bytes, ...]]] = {}
        self._incarnations: dict[bytes, dict[str, str]] = {}
        self._kept: set[int] = set()
        self._kept_under: LedgerMetadata | None = None

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
            files = self._durable_files(bookie)
            for path, data in files.items():
                if _kind(path) == "record":
                    self._put(log, bookie, path, data)
        return self._logs[bookie]

    def landed(self, bookie: BookieId, path: str, data: bytes) -> None:
        """A file became durable."""
        if _kind(path) == "record":
            self._put(self.log(bookie), bookie, path, data)
        elif _kind(path) == "part":
            self.changed(bookie)

    def changed(self, bookie: BookieId) -> None:
        """Files of a bookie went away, or changed: look at all of them again."""
        self._logs.pop(bookie, None)
        self._kept.clear()

    @property
    def kept(self) -> set[int]:
        """Entries that were found to have as many copies as they are owed, as things stand.

        Copies become more, and what is owed less, until files go away or the metadata name other
        bookies: then all is asked again. For checkers to add to.
        """
        metadata, before = self.metadata, self._kept_under
        if metadata is not before:
            self._kept_under = metadata
            if (
                before is None
                or before.fragments != metadata.fragments
                or before.custom_metadata != metadata.custom_metadata
            ):
                self._kept.clear()
        return self._kept

    @property
    def written_under(self) -> LedgerMetadata:
        """The latest version under which the writer could still count acks."""
        return next(v for v in reversed(self.versions) if v.state is LedgerState.OPEN)

    def copies_owed(self, write_set: list[BookieId]) -> int:
        """How many copies of a confirmed entry must exist: Qa, less those destroyed since."""
        if self.is_collected:
            return 0
        lost = sum(self.named(bookie, self.metadata) in self.lost for bookie in write_set)
        return max(self.metadata.quorum.ack_quorum_size - lost, 0)

    def is_counted(self, bookie: BookieId, entry_id: int) -> bool:
        """Whether a writer may just have counted a bookie's ack of an entry."""
        named = self.named(bookie, self.written_under)
        if named in self.vanished:
            return entry_id in self.vanished[named]
        if self.is_collected:
            return True
        if named in self.lost:  # damaged: its files say nothing any more of what it answered
            return True
        return self.log(bookie).adds_unfenced(entry_id) or (
            (self.is_rereplicated or self.is_compacted) and entry_id in self.log(bookie).held
        )

    def named(self, bookie: BookieId, metadata: LedgerMetadata) -> tuple[BookieId, str]:
        """A bookie in the incarnation that the metadata names."""
        packed = metadata.custom_metadata.get(INCARNATIONS_KEY, b"{}")
        if packed not in self._incarnations:
            self._incarnations[packed] = json.loads(packed)
        return bookie, self._incarnations[packed].get(bookie, "")

    def _put(self, log: RawLog, bookie: BookieId, path: str, data: bytes) -> None:
        record = None if (bookie, path) in self.damaged else self._parse(bookie, data)
        if record is None:
            log.put(path, "", frozenset())
            return
        if not record.parts:
            log.put(path, record.kind, record.entries.keys())
            return
        held = set(record.entries)
        files = self._durable_files(bookie)
        for part in record.parts:
            where = f"{path.rsplit('/', 2)[0]}/parts/{part.name}"
            content = files.get(where)
            if content is None or (bookie, where) in self.damaged:
                continue
            if content not in self._parts:
                is_whole = len(content) == part.size_bytes
                if not is_whole or crc32c.crc32c(content) != part.crc32c:
                    continue
                self._parts[content] = take_part_apart(content)
            rows_of_each = self._parts[content]
            for (entry_id, length, size), rows in zip(part.entries, rows_of_each, strict=True):
                self._see(bookie, entry_id, RawEntry(length, size, rows))
                held.add(entry_id)
        log.put(path, record.kind, held)

    def _parse(self, bookie: BookieId, data: bytes) -> RawRecord | None:
        if data not in self._parsed:
            record = self._parsed[data] = self._take_apart(data)
            if record is not None:
                self.highest_lac = max(self.highest_lac, record.last_add_confirmed)
                for entry_id, entry in record.entries.items():
                    self._see(bookie, entry_id, entry)
        return self._parsed[data]

    def _see(self, bookie: BookieId, entry_id: int, entry: RawEntry) -> None:
        first = self.content.setdefault(entry_id, entry)
        if first != entry:
            self.unlike.append(f"entry {entry_id} on {bookie}: {entry} is not {first}")


def write_set(metadata: LedgerMetadata, entry_id: int) -> list[BookieId]:
    """The bookies that should hold an entry, by a metadata value. Own arithmetic."""
    for fragment in reversed(metadata.fragments):
        if fragment.first_entry_id <= entry_id:
            break
    ensemble = fragment.ensemble
    size, quorum = metadata.quorum.ensemble_size, metadata.quorum.write_quorum_size
    return [ensemble[i % size] for i in range(entry_id, entry_id + quorum)]


def _kind(path: str) -> str:
    """``record``, ``part``, or "" for what says nothing of entries."""
    parts = path.split("/")
    if len(parts) != 4 or parts[0] != "ledgers" or not parts[3].endswith(".arrow"):
        return ""
    return {"slots": "record", "copies": "record", "parts": "part"}.get(parts[2], "")
