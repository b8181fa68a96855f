"""Read entries, and verify every byte before a caller gets it.

``EntryReader.messages`` reads locations in files as messages, and verifies each. From these a
caller gets whole entries, rows, or only the result of the verification.

Files are read, not mapped: a bad sector is then an error, after which the reader uses another
replica. With a mapped page it would end the process.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie.bookie import EntryDetails, Rows
from spark_bookkeeper.bookie.decoding import read_batch
from spark_bookkeeper.bookie.digest import Digester, crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.framing import UNDECODABLE
from spark_bookkeeper.bookie.location import NO_ROW, Location
from spark_bookkeeper.bookie.messages import Int64Array, only_payload
from spark_bookkeeper.errors import BookieError, BookieUnavailableError, CorruptEntryError
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.storage.storage import Request, Storage

_READ_BYTES: Final = 16 << 20
"""The most bytes of one read, unless one entry is larger."""

_LARGE_BYTES: Final = 1 << 20
"""A message of this size leaves the processor's cache between its read and its checksum."""

_APART_RATIO: Final = 2
"""Decoded columns are copied out of their message if they are at most this part (1/n) of it."""

_GAP_BYTES: Final = 64 << 10
"""The largest gap that is read as well, as that is cheaper than a second request."""

_NOTHING_READ: Final[Mapping[str, bytes]] = {}

_Run: TypeAlias = Sequence[Sequence[Location]]
"""Neighbouring messages in a file, each as the locations of its entries."""

Refused: TypeAlias = tuple[Location, BookieError]
"""The location of an entry that cannot be used, and the error."""


class Wanted(enum.Enum):
    """The purpose of a read, which decides how far a message is decoded."""

    NOTHING = enum.auto()
    """Only verify it. Rows are decoded only if no digest exists."""
    ROWS = enum.auto()
    """Rows. The checksum of a message that payloads share verifies all of them."""
    ENTRIES = enum.auto()
    """Single entries, each verified by its own digest."""


class Message(NamedTuple):
    """One verified record batch message: a batch entry, or payload entries that share it."""

    places: tuple[Location, ...]
    """The locations of its good entries, in the order of the request."""
    refused: tuple[Refused, ...] = ()
    data: Buffer | None = None
    batch: pa.RecordBatch | None = None
    """The rows of the whole message, if they were decoded."""
    payloads: tuple[Buffer, ...] = ()
    """The payloads of its good entries, if each was verified."""

    def rows(self, details_of: str | None = None) -> Rows:
        """Return the rows of its good entries. It was read for ``Wanted.ROWS``.

        Args:
            details_of: the bookie's id, to return the details of entries too.
        """
        batch = self.batch
        assert batch is not None
        ids: Sequence[int] = [place.entry_id for place in self.places]
        numbers = [place.row for place in self.places]
        if numbers[0] == NO_ROW:
            entry_ids = np.full(batch.num_rows, ids[0], dtype=np.int64)
            positions: Int64Array = np.arange(batch.num_rows, dtype=np.int64)
        else:
            if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
                batch = batch.slice(numbers[0], len(numbers))
            else:
                batch = batch.take(pa.array(numbers))
            entry_ids = np.array(ids, dtype=np.int64)
            positions = np.zeros(len(ids), dtype=np.int64)
        size_bytes = sum(place.size for place in self.places)
        details: tuple[EntryDetails, ...] = ()
        if details_of is not None:
            details = tuple(
                EntryDetails(details_of, place.last_add_confirmed, place.digest)
                for place in self.places
            )
        return Rows(batch, entry_ids, positions, tuple(ids), size_bytes, details)

    def entries(self, schema: pa.Schema) -> Iterator[StoredEntry]:
        """Yield its good entries. It was read for ``Wanted.ENTRIES``."""
        for place, data in zip(self.places, self.payloads or (self.data,), strict=True):
            assert data is not None, "it was kept"
            is_payload = place.row != NO_ROW
            yield StoredEntry(
                entry_id=place.entry_id,
                length_after=place.length_after,
                last_add_confirmed=place.last_add_confirmed,
                digest=place.digest,
                is_payload=is_payload,
                data=data,
                schema=schema,
                message=self.data if is_payload else None,
                message_crc32c=place.extent_crc32c if is_payload else 0,
                row=place.row,
                appended_at_ms=place.appended_at_ms,
            )


class EntryReader:
    """Reads entries of one ledger from one bookie."""

    def __init__(self, storage: Storage, encoding: LedgerEncoding) -> None:
        self._storage = storage
        self._bookie_id = storage.bookie_id
        self._encoding = encoding
        self._schema = encoding.schema
        self._digester: Digester = encoding.digester()
        # A header with a digest contains the message's checksum, which so verifies all rows. A
        # keyed digest proves more than a checksum, so those are checked one by one.
        self._is_keyed = encoding.digest_type is DigestType.MAC
        self._has_digests = encoding.digest_type is not DigestType.DUMMY
        self._is_summed = encoding.digest_type is DigestType.CRC32C
        """Whether a CRC32C is the only check of a message, in both forms of entries."""

    def messages(
        self,
        places: Iterable[Location],
        wanted: Wanted,
        columns: Sequence[str] | None = None,
        read: Mapping[str, bytes] = _NOTHING_READ,
    ) -> Iterator[Message]:
        """Yield messages in the order of ``places``. Neighbours in a file share a read. Messages of
        small files that were read before come first.

        An entry that cannot be used raises no error: its message lists it as refused. Other
        entries are not affected.

        Args:
            columns: decode only these, in this order; ``None`` decodes all. Payloads have one.
            read: whole files that the caller has just read, by their paths.
        """
        if read and wanted is Wanted.ENTRIES and self._encoding.has_payload:
            left: list[Location] = []
            for place in places:
                whole = b"" if place.row else read.get(place.path, b"")
                message = self._alone(place, whole[place.offset : place.offset + place.extent])
                if message is None:
                    left.append(place)
                else:
                    yield message
            places = left
        is_summed = wanted is Wanted.NOTHING and self._is_summed
        for groups, data in self._fetched(_runs(places), read, is_summed=is_summed):
            first = groups[0][0]
            if data is None:
                yield self._compared(groups[0])
                continue
            for group in groups:
                if isinstance(data, BookieError):
                    alone = data if len(groups) == 1 else self._read(group[0], group[-1], read)
                    yield self._message(group, alone, 0, wanted, columns)
                else:
                    at = group[0].offset - first.offset
                    yield self._message(group, data, at, wanted, columns)

    def entries(self, places: Iterable[Location]) -> Iterator[StoredEntry]:
        """Yield verified entries in the order of ``places``.

        Raises:
            CorruptEntryError: the bytes of an entry do not match its digest. Raised when the
                iterator comes to that entry.
            BookieUnavailableError: no answer, or the file is gone. Read the metadata again first,
                as they may have changed.
        """
        for message in self.messages(places, Wanted.ENTRIES):
            if message.refused:
                raise message.refused[0][1]
            yield from message.entries(self._schema)

    def _fetched(
        self, runs: Iterable[_Run], read: Mapping[str, bytes], *, is_summed: bool
    ) -> Iterator[tuple[_Run, pa.Buffer | BookieError | None]]:
        """Yield each run with its bytes, in order. Runs are read in batches, as large as the
        storage can send concurrently.

        Args:
            is_summed: do not read a large message, but yield it with ``None``.
        """
        at_once = self._storage.requests_at_once
        some: list[_Run] = []
        size = 0
        for run in runs:
            if is_summed and _is_large(run):
                yield from self._read_together(some, read)
                yield run, None
                some, size = [], 0
                continue
            some.append(run)
            size += _length(run[0][0], run[-1][-1])
            if len(some) == at_once or size >= _READ_BYTES:
                yield from self._read_together(some, read)
                some, size = [], 0
        yield from self._read_together(some, read)

    def _read_together(
        self, runs: Sequence[_Run], read: Mapping[str, bytes]
    ) -> Iterator[tuple[_Run, pa.Buffer | BookieError]]:
        unread = [run for run in runs if run[0][0].path not in read]
        if len(unread) < 2:
            for run in runs:
                yield run, self._read(run[0][0], run[-1][-1], read)
            return
        try:
            answers = iter(self._storage.ask_all(list(map(_request, unread))))
        except BookieError as error:
            answers = repeat(error)
        for run in runs:
            first = run[0][0]
            if first.path in read:
                yield run, self._read(first, run[-1][-1], read)
            else:
                yield run, self._as_data(first.path, next(answers))

    def _read(
        self, first: Location, last: Location, read: Mapping[str, bytes]
    ) -> pa.Buffer | BookieError:
        """Read from the start of the first message to the end of the last one."""
        length = _length(first, last)
        if (whole := read.get(first.path)) is not None:
            return pa.py_buffer(memoryview(whole)[first.offset : first.offset + length])
        try:
            data = self._storage.read_range(first.path, first.offset, length)
        except BookieError as error:
            return error
        return self._as_data(first.path, data)

    def _as_data(
        self, path: str, data: bytes | pa.Buffer | BookieError | None
    ) -> pa.Buffer | BookieError:
        """Convert the answer of a read."""
        if isinstance(data, BookieError):
            return data
        return self._gone(path) if data is None else pa.py_buffer(data)

    def _gone(self, path: str) -> BookieUnavailableError:
        return BookieUnavailableError(
            f"bookie {self._bookie_id}: {path} is gone; read the ledger's metadata "
            "again, it may have changed",
            bookie_id=self._bookie_id,
            path=path,
            is_gone=True,
        )

    def _alone(self, place: Location, data: bytes | pa.Buffer) -> Message | None:
        """Return the verified payload of a message that has only one; else ``None``."""
        is_whole = place.row == 0 and len(data) == place.extent
        payload = only_payload(data, place.size) if is_whole else None
        if payload is None or crc(data) != place.extent_crc32c:
            return None
        is_good = self._digester.digest(payload) == place.digest
        return Message((place,), (), data, None, (payload,)) if is_good else None

    def _compared(self, group: Sequence[Location]) -> Message:
        """Verify a large message by its checksum only, piece by piece, without keeping it."""
        place = group[0]
        value = size = 0

        def take(data: Buffer) -> None:
            nonlocal value, size
            value = crc(data, value)
            size += memoryview(data).nbytes

        try:
            if not self._storage.read_through(place.path, place.offset, place.extent, take):
                raise self._gone(place.path)
            if size < place.extent:
                raise self._corrupt(place, "the file is cut short")
            if place.row != NO_ROW:
                if value != place.extent_crc32c:
                    raise self._corrupt(place, "the message does not match its checksum")
            elif (size, value.to_bytes(4, "little")) != (place.size, place.digest):
                raise self._corrupt(place, "its bytes do not match its digest")
        except BookieError as error:
            return Message((), tuple((place, error) for place in group))
        return Message(tuple(group))

    def _message(
        self,
        group: Sequence[Location],
        read: pa.Buffer | BookieError,
        at: int,
        wanted: Wanted,
        columns: Sequence[str] | None,
    ) -> Message:
        """Verify a message that begins at offset ``at`` in the bytes read, and decode it."""
        if isinstance(read, BookieError):
            return Message((), tuple((place, read) for place in group))
        try:
            if not 0 <= group[0].extent <= read.size - at:
                raise self._corrupt(group[0], "the file is cut short")
            data = read.slice(at, group[0].extent)
            if group[0].row == NO_ROW:
                self._verify(group[0], data)
                batch = None
                if wanted is Wanted.ROWS or not self._has_digests:
                    batch = self._decoded(group[0], data, columns)
                return Message(tuple(group), (), data, batch)
            is_alone = wanted is Wanted.ENTRIES and len(group) == 1 and self._encoding.has_payload
            if is_alone and (message := self._alone(group[0], data)) is not None:
                return message
            # Before Arrow decodes the message, to distinguish damage from rows that Arrow refuses.
            if crc(data) != group[0].extent_crc32c:
                raise self._corrupt(group[0], "the message does not match its checksum")
            if wanted is Wanted.NOTHING and self._has_digests and not self._is_keyed:
                return Message(tuple(group), (), data)
            if not self._encoding.has_payload:
                reason = "its record says that it is bytes, and the ledger has rows"
                raise self._corrupt(group[0], reason)
            batch = self._decoded(group[0], data, columns)
        except BookieError as error:
            return Message((), tuple((place, error) for place in group))
        return self._checked(group, data, batch, each=self._is_keyed or wanted is Wanted.ENTRIES)

    def _checked(
        self, group: Sequence[Location], data: pa.Buffer, batch: pa.RecordBatch, *, each: bool
    ) -> Message:
        """Check that each payload has a row; with ``each``, compare it with its own digest."""
        good: list[Location] = []
        refused: list[Refused] = []
        payloads: list[pa.Buffer] = []
        column = batch.column(0)
        try:
            slices = _slices(column) if each else None
        except UNDECODABLE as error:  # the checksum matches, so someone forged it
            reason = f"its rows cannot be found ({error})"
            refused = [(place, self._corrupt(place, reason)) for place in group]
            return Message((), tuple(refused))
        for place in group:
            try:
                if place.row >= len(column):
                    raise self._corrupt(place, "it has fewer rows than its record says")
                if slices is not None:
                    payload = self._payload(place, slices)
                    self._verify(place, payload)
                    payloads.append(payload)
                good.append(place)
            except BookieError as error:
                refused.append((place, error))
        return Message(tuple(good), tuple(refused), data, batch, tuple(payloads))

    def _payload(self, location: Location, slices: Callable[[int], pa.Buffer]) -> pa.Buffer:
        try:
            return slices(location.row)
        except UNDECODABLE as error:  # the checksum matches, so someone forged it
            raise self._corrupt(location, f"its row cannot be found ({error})") from error

    def _decoded(
        self, location: Location, data: pa.Buffer, columns: Sequence[str] | None
    ) -> pa.RecordBatch:
        """Decode rows; no other code does. Rows that Arrow refuses are damaged.

        Without digests only Arrow can find damage, so it makes a full validation.
        """
        is_compressed = self._encoding.compression is not None
        if location.row != NO_ROW:
            columns = None
        try:
            if not self._has_digests:
                read_batch(data, self._schema).validate(full=True)
            batch = read_batch(data, self._schema, columns, is_compressed=is_compressed)
            is_apart = columns and not is_compressed and _APART_RATIO * batch.nbytes <= data.size
            return _apart(batch) if is_apart else batch
        except UNDECODABLE as error:
            raise self._corrupt(location, f"its rows cannot be decoded ({error})") from error

    def _verify(self, location: Location, data: pa.Buffer) -> None:
        if data.size != location.size:
            raise self._corrupt(location, f"{data.size} bytes instead of {location.size}")
        if self._digester.digest(data) != location.digest:
            raise self._corrupt(location, "its bytes do not match its digest")

    def _corrupt(self, location: Location, reason: str) -> CorruptEntryError:
        return CorruptEntryError(
            f"bookie {self._bookie_id}: entry {location.entry_id} in {location.path} cannot be "
            f"used: {reason}; read another replica",
            bookie_id=self._bookie_id,
            path=location.path,
            entry_id=location.entry_id,
        )


def _slices(column: pa.BinaryArray) -> Callable[[int], pa.Buffer]:
    """Return a function for the bytes of a row, without a copy. Arrow's own values are copies.

    Raises:
        ValueError: the message has offsets of an impossible size.
    """
    _, offsets, data = column.buffers()
    least = 4 * (column.offset + len(column) + 1)
    if offsets is None or offsets.size < least or offsets.size % 4:
        size = 0 if offsets is None else offsets.size
        raise ValueError(f"offsets of {size} bytes, and {len(column)} rows need {least}")
    ends = memoryview(offsets).cast("B").cast("i")[column.offset :]

    def row(number: int) -> pa.Buffer:
        start = ends[number]
        return data.slice(start, ends[number + 1] - start)

    return row


def _apart(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the rows into new memory, so that the memory of the whole message can be freed.

    The batch must have columns: nothing else would give the number of rows.
    """
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _length(first: Location, last: Location) -> int:
    """Return the bytes from the start of a message to the end of a later one in the file."""
    return last.offset + last.extent - first.offset


def _request(run: _Run) -> Request:
    """Make the request for the bytes of a run."""
    first = run[0][0]
    return Request("read_range", first.path, (first.offset, _length(first, run[-1][-1])))


def _is_large(groups: _Run) -> bool:
    return len(groups) == 1 and groups[0][0].extent >= _LARGE_BYTES


def _runs(locations: Iterable[Location]) -> Iterator[_Run]:
    """Yield the locations that one read serves, grouped by message."""
    run: list[list[Location]] = []
    for group in _same_message(locations):
        if run and not _joins(run[0][0], run[-1][-1], group[0]):
            yield run
            run = []
        run.append(group)
    if run:
        yield run


def _joins(first: Location, last: Location, location: Location) -> bool:
    end = last.offset + last.extent
    return (
        location.path == last.path
        and 0 <= location.offset - end <= _GAP_BYTES
        and location.offset + location.extent - first.offset <= _READ_BYTES
    )


def _same_message(locations: Iterable[Location]) -> Iterator[list[Location]]:
    group: list[Location] = []
    offset, path = -1, ""
    for location in locations:
        if location.offset != offset or location.path != path:
            if group:
                yield group
            group, offset, path = [], location.offset, location.path
        group.append(location)
    if group:
        yield group
