"""Reading entries: every byte is verified before it is handed out.

One pipeline: places in a file become messages, each verified. Whole entries, rows, or nothing but
the word that all is well are made of these.

Files are read, not mapped: a bad sector is then an error that sends the reader to another
replica, where a mapped page would end the process.
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
from spark_bookkeeper.bookie.storage.storage import Request, Storage
from spark_bookkeeper.errors import BookieError, BookieUnavailableError, CorruptEntryError
from spark_bookkeeper.protocol.metadata import DigestType

_READ_BYTES: Final = 16 << 20
"""At most so much is read at once, unless one entry is larger."""

_LARGE_BYTES: Final = 1 << 20
"""A message of this size does not stay near the processor between being read and being summed."""

_APART_RATIO: Final = 2
"""Columns that are at most one part in so many of their message are copied out of it."""

_GAP_BYTES: Final = 64 << 10
"""Reading over a gap of this size is cheaper than a second request."""

_NOTHING_READ: Final[Mapping[str, bytes]] = {}

_Run: TypeAlias = Sequence[Sequence[Location]]
"""Neighbours in a file: messages, each with its places."""

Refused: TypeAlias = tuple[Location, BookieError]
"""A place whose entry cannot be used, and why."""


class Wanted(enum.Enum):
    """What the caller makes of a message, and so how far it is looked into."""

    NOTHING = enum.auto()
    """Only whether it is as it was written: rows are decoded where nothing else can tell."""
    ROWS = enum.auto()
    """Rows in a run. The checksum of a message that payloads share vouches for all of them."""
    ENTRIES = enum.auto()
    """Entries one by one, each by its own digest."""


class Message(NamedTuple):
    """One record batch message, verified: a batch entry, or payload entries that share it."""

    places: tuple[Location, ...]
    """Those of its entries that can be used, in the order in which they were asked for."""
    refused: tuple[Refused, ...] = ()
    data: Buffer | None = None
    batch: pa.RecordBatch | None = None
    """The rows of the whole message, where they were decoded."""
    payloads: tuple[Buffer, ...] = ()
    """Of its good entries, where they were looked at one by one."""

    def rows(self, details_of: str | None = None) -> Rows:
        """The rows of its good entries. It was read for ``Wanted.ROWS``.

        Args:
            details_of: the bookie, to tell the details of entries too.
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
        """Its good entries. It was read for ``Wanted.ENTRIES``."""
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
        # The message's checksum stands in a header with a digest, so it vouches for the rows
        # in it; a keyed digest says more than a checksum, so those are checked one by one.
        self._is_keyed = encoding.digest_type is DigestType.MAC
        self._has_digests = encoding.digest_type is not DigestType.DUMMY
        self._is_summed = encoding.digest_type is DigestType.CRC32C
        """Whether a CRC32C is all that vouches for a message of either form."""

    def messages(
        self,
        places: Iterable[Location],
        wanted: Wanted,
        columns: Sequence[str] | None = None,
        read: Mapping[str, bytes] = _NOTHING_READ,
    ) -> Iterator[Message]:
        """Messages in the order of the places given; neighbours in a file are read together. Those
        of small files that were read before come first.

        Nothing is raised for what cannot be used: each message says which of its entries are
        refused, and those keep no other back.

        Args:
            columns: decode only these, in this order; ``None`` decodes all. Payloads have one.
            read: files that the caller has just read, whole, by their paths.
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
        """Verified entries in the order given.

        Raises:
            CorruptEntryError: the bytes of an entry do not match its digest; when the iterator
                comes to it.
            BookieUnavailableError: no answer, or the file is gone: the metadata may have
                changed, so read that again first.
        """
        for message in self.messages(places, Wanted.ENTRIES):
            if message.refused:
                raise message.refused[0][1]
            yield from message.entries(self._schema)

    def _fetched(
        self, runs: Iterable[_Run], read: Mapping[str, bytes], *, is_summed: bool
    ) -> Iterator[tuple[_Run, pa.Buffer | BookieError | None]]:
        """Each run with its bytes, in order. Those of some runs are asked for together, as many as
        the storage has on their way.

        Args:
            is_summed: for a large message its bytes are not wanted: it comes with ``None``.
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
        """From the first of some messages to the end of the last."""
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
        """What a read has answered."""
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
        """The payload of a message, if it has one as it was written, and no other."""
        is_whole = place.row == 0 and len(data) == place.extent
        payload = only_payload(data, place.size) if is_whole else None
        if payload is None or crc(data) != place.extent_crc32c:
            return None
        is_good = self._digester.digest(payload) == place.digest
        return Message((place,), (), data, None, (payload,)) if is_good else None

    def _compared(self, group: Sequence[Location]) -> Message:
        """A large message of which nothing is wanted: it is summed while it comes, and not kept."""
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
        """Args: ``at`` is where the message begins in what was read."""
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
            # Before Arrow sees the message: what is damaged is told from what it refuses.
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
        """Payloads, each of which is looked for, and compared with its own digest if so wanted."""
        good: list[Location] = []
        refused: list[Refused] = []
        payloads: list[pa.Buffer] = []
        column = batch.column(0)
        try:
            slices = _slices(column) if each else None
        except UNDECODABLE as error:  # where even the checksum was made to fit
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
        except UNDECODABLE as error:  # where even the checksum was made to fit
            raise self._corrupt(location, f"its row cannot be found ({error})") from error

    def _decoded(
        self, location: Location, data: pa.Buffer, columns: Sequence[str] | None
    ) -> pa.RecordBatch:
        """The one place that decodes rows: what Arrow does not take is damaged.

        Without digests only Arrow can say so, and it is asked for all it can find.
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
    """The bytes of a row, where they are: a value that Arrow is asked for is a copy of them.

    Raises:
        ValueError: the message says that its offsets have a size that they cannot have.
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
    """The same rows in memory of their own, so that the memory of the whole message is free.

    A batch without columns stays as it is: nothing else says how many rows it has.
    """
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _length(first: Location, last: Location) -> int:
    """Bytes from the beginning of a message to the end of one behind it in the file."""
    return last.offset + last.extent - first.offset


def _request(run: _Run) -> Request:
    """For the bytes of a run."""
    first = run[0][0]
    return Request("read_range", first.path, (first.offset, _length(first, run[-1][-1])))


def _is_large(groups: _Run) -> bool:
    return len(groups) == 1 and groups[0][0].extent >= _LARGE_BYTES


def _runs(locations: Iterable[Location]) -> Iterator[_Run]:
    """Locations that one read serves, by the messages that they are in."""
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
