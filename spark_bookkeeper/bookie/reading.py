"""Reading entries: every byte is verified before it is handed out.

Files are read, not mapped: a bad sector is then an error that sends the reader to another
replica, where a mapped page would end the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa

from spark_bookkeeper.bookie.digest import Digester, crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NO_ROW, Location, StoredEntry, read_batch, read_columns
from spark_bookkeeper.bookie.framing import UNDECODABLE
from spark_bookkeeper.bookie.messages import Int64Array
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.errors import BookieError, BookieUnavailableError, CorruptEntryError
from spark_bookkeeper.protocol.metadata import DigestType

_READ_BYTES: Final = 16 << 20
"""At most so much is read at once, unless one entry is larger."""

_GAP_BYTES: Final = 64 << 10
"""Reading over a gap of this size is cheaper than a second request."""


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Verified rows of one message: one batch entry, or several payload entries."""

    batch: pa.RecordBatch
    """Under the ledger's schema, or the columns of it that were asked for."""

    entry_ids: Int64Array
    """Entry id of each row."""

    positions: Int64Array
    """Position of each row within its entry."""

    locations: tuple[Location, ...]
    """The entries, in the order of their rows; one without rows is named here alone."""

    bookies: tuple[str, ...]
    """The bookie that each of these entries was read from."""


class EntryReader:
    """Reads entries of one ledger from one bookie."""

    def __init__(self, storage: Storage, bookie_id: str, encoding: LedgerEncoding) -> None:
        self._storage = storage
        self._bookie_id = bookie_id
        self._schema = encoding.schema
        self._is_compressed = encoding.compression is not None
        self._digester: Digester = encoding.digester()
        # The message's checksum stands in a header with a digest, so it vouches for the rows
        # in it; a keyed digest says more than a checksum, so those are checked one by one.
        self._checks_each_row = encoding.digest_type is DigestType.MAC
        self._has_digests = encoding.digest_type is not DigestType.DUMMY

    def read(self, location: Location) -> StoredEntry:
        """One entry.

        Raises:
            CorruptEntryError: its bytes do not match its digest.
            BookieUnavailableError: no answer, or the file is gone: the metadata may have
                changed, so read that again first.
        """
        return next(self.read_many([location]))

    def read_many(self, locations: Iterable[Location]) -> Iterator[StoredEntry]:
        """Entries in the order given; neighbours in a file are read together.

        Raises:
            CorruptEntryError: as ``read``, when the iterator comes to that entry.
            BookieUnavailableError: as ``read``.
        """
        for group, data in self._messages(locations):
            if group[0].row == NO_ROW:
                yield self._stored(group[0], data)
                continue
            column = self._payloads(group[0], data)
            for location in group:
                yield self._stored(location, _value(column, location.row), message=data)

    def read_each(
        self, locations: Iterable[Location]
    ) -> Iterator[tuple[Location, StoredEntry | BookieError]]:
        """Entries in the order given, or why one cannot be used, which keeps no other back."""
        for group in _same_message(locations):
            is_batch = group[0].row == NO_ROW
            try:
                _, data = next(self._messages(group))
                column = None if is_batch else self._payloads(group[0], data)
            except BookieError as error:
                for location in group:
                    yield location, error
                continue
            for location in group:
                answer: StoredEntry | BookieError
                try:
                    answer = (
                        self._stored(location, data)
                        if column is None
                        else self._stored(location, _value(column, location.row), message=data)
                    )
                except BookieError as error:
                    answer = error
                yield location, answer

    def scan(
        self, locations: Iterable[Location], columns: Sequence[str] | None = None
    ) -> Iterator[ScannedRows]:
        """Rows in the order given, a message at a time: the quick way to read a range.

        Args:
            columns: only these are decoded; ``None`` is all.

        Raises:
            CorruptEntryError: as ``read``.
            BookieUnavailableError: as ``read``.
        """
        for group, data in self._messages(locations):
            if group[0].row == NO_ROW:
                self._verify(group[0], data)
                batch = self._batch(group[0], data, columns)
                yield ScannedRows(
                    batch,
                    np.full(batch.num_rows, group[0].entry_id, dtype=np.int64),
                    np.arange(batch.num_rows, dtype=np.int64),
                    (group[0],),
                    (self._bookie_id,),
                )
            else:
                yield self._scan_payloads(group, data, columns)

    def _scan_payloads(
        self, group: Sequence[Location], data: pa.Buffer, columns: Sequence[str] | None
    ) -> ScannedRows:
        batch = self._payload_batch(group[0], data)
        rows = [location.row for location in group]
        if max(rows) >= batch.num_rows:
            self._corrupt(group[-1], "it has fewer rows than its record says")
        if rows == list(range(rows[0], rows[0] + len(rows))):
            batch = batch.slice(rows[0], len(rows))
        else:
            batch = batch.take(pa.array(rows))
        if self._checks_each_row:
            for location, value in zip(group, batch.column(0), strict=True):
                self._verify(location, value.as_buffer())
        return ScannedRows(
            batch if columns is None else batch.select(columns),
            np.array([location.entry_id for location in group], dtype=np.int64),
            np.zeros(len(group), dtype=np.int64),
            tuple(group),
            (self._bookie_id,) * len(group),
        )

    def _payload_batch(self, location: Location, data: pa.Buffer) -> pa.RecordBatch:
        # Before Arrow sees the message: it does not check what offsets inside it point to.
        if crc(data) != location.extent_crc32c:
            self._corrupt(location, "the message does not match its checksum")
        return self._batch(location, data)

    def _payloads(self, location: Location, data: pa.Buffer) -> pa.Array:
        batch = self._payload_batch(location, data)
        if batch.num_columns != 1 or not pa.types.is_binary(batch.schema.types[0]):
            self._corrupt(location, "its record says that it is bytes, and the ledger has rows")
        return batch.column(0)

    def _batch(
        self, location: Location, data: pa.Buffer, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """The one place that decodes rows: what Arrow does not take is damaged.

        Without digests only Arrow can say so, and it is asked for all it can find.
        """
        try:
            if columns is None:
                batch = read_batch(data, self._schema)
            else:
                batch = read_columns(data, self._schema, columns, self._is_compressed)
            if not self._has_digests:
                batch.validate(full=True)
        except UNDECODABLE as error:
            self._corrupt(location, f"its rows cannot be decoded ({error})")
        return batch

    def _stored(
        self, location: Location, data: pa.Buffer | None, *, message: pa.Buffer | None = None
    ) -> StoredEntry:
        """An entry; ``message`` is what it shares with others when it is a payload."""
        if data is None:
            self._corrupt(location, "it has fewer rows than its record says")
        self._verify(location, data)
        if not self._has_digests and location.row == NO_ROW:
            self._batch(location, data)
        return StoredEntry(
            entry_id=location.entry_id,
            length_after=location.length_after,
            last_add_confirmed=location.last_add_confirmed,
            digest=location.digest,
            is_payload=message is not None,
            data=data,
            schema=self._schema,
            message=message,
            row=location.row,
            appended_at_ms=location.appended_at_ms,
        )

    def _verify(self, location: Location, data: pa.Buffer) -> None:
        if data.size != location.size:
            self._corrupt(location, f"{data.size} bytes instead of {location.size}")
        if self._digester.digest(data) != location.digest:
            self._corrupt(location, "its bytes do not match its digest")

    def _messages(
        self, locations: Iterable[Location]
    ) -> Iterator[tuple[list[Location], pa.Buffer]]:
        """Locations that share a message, and that message, in the order given."""
        for run in _runs(locations):
            first, last = run[0], run[-1]
            length = last.offset + last.extent - first.offset
            data = self._storage.read_range(first.path, first.offset, length)
            if data is None:
                raise BookieUnavailableError(
                    f"bookie {self._bookie_id}: {first.path} is gone; read the ledger's metadata "
                    "again, it may have changed",
                    bookie_id=self._bookie_id,
                    path=first.path,
                )
            buffer = pa.py_buffer(data)
            for group in _same_message(run):
                at = group[0].offset - first.offset
                if at + group[0].extent > buffer.size:
                    self._corrupt(group[0], "the file is cut short")
                yield group, buffer.slice(at, group[0].extent)

    def _corrupt(self, location: Location, reason: str) -> NoReturn:
        raise CorruptEntryError(
            f"bookie {self._bookie_id}: entry {location.entry_id} in {location.path} cannot be "
            f"used: {reason}; read another replica",
            bookie_id=self._bookie_id,
            path=location.path,
            entry_id=location.entry_id,
        )


def _runs(locations: Iterable[Location]) -> Iterator[list[Location]]:
    """Locations that one read serves."""
    run: list[Location] = []
    for location in locations:
        if run and not _joins(run, location):
            yield run
            run = []
        run.append(location)
    if run:
        yield run


def _joins(run: Sequence[Location], location: Location) -> bool:
    first, last = run[0], run[-1]
    end = last.offset + last.extent
    return location.path == last.path and (
        location.offset == last.offset
        or (
            0 <= location.offset - end <= _GAP_BYTES
            and location.offset + location.extent - first.offset <= _READ_BYTES
        )
    )


def _value(column: pa.Array, row: int) -> pa.Buffer | None:
    return column[row].as_buffer() if row < len(column) else None


def _same_message(locations: Iterable[Location]) -> Iterator[list[Location]]:
    group: list[Location] = []
    for location in locations:
        if group and (location.offset != group[0].offset or location.path != group[0].path):
            yield group
            group = []
        group.append(location)
    if group:
        yield group
