"""Check that the files of a bookie are whole outside their entries.

Reading verifies entries. This module checks the rest of each file: any Arrow reader must be able to
open it, and its footer must show where the batches are. If that is damaged, this library can still
read the entries. But the file cannot be copied as it is, and the damage may spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from spark_bookkeeper.bookie import framing
from spark_bookkeeper.bookie.entry import PartRef
from spark_bookkeeper.bookie.index import Holding
from spark_bookkeeper.bookie.part_files import PartFiles
from spark_bookkeeper.bookie.record import Record
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.storage.batching import together
from spark_bookkeeper.storage.storage import Storage

_FILES_AT_ONCE: Final = 16
"""The most files that are checked in one batch in a bucket. Records are in memory whole."""

_READ_BYTES: Final = 16 << 20
"""The most bytes of the records of a batch, unless one record is larger."""

_PREFIX_BYTES: Final = 8
"""The start of a message, which has the length of its metadata."""


def spoilt_files(
    storage: Storage,
    paths: LedgerPaths,
    parts: PartFiles,
    holdings: Iterable[Holding],
    *,
    has_digests: bool,
) -> Iterator[tuple[str, str]]:
    """Yield the files of records that are damaged outside their entries, each with the reason.

    The caller has verified the entries, so they are read only where necessary. Without digests it
    could not verify them. Then a part has only the checksum of the whole file, which is read. A
    file that cannot be read just now is not yielded, as it may be undamaged.
    """
    looks: dict[str, _Look] = {}
    for holding in holdings:
        path, record = holding.path, holding.record
        size = record.header_bytes + sum(_sizes(record))  # nearly all
        looks.setdefault(path, _Look(path, size, partial(_record, storage, path, record)))
        for part in record.parts:
            path = paths.part(part.ref.name)
            of_part = partial(_part, storage, path, parts, part.ref, has_digests)
            looks.setdefault(path, _Look(path, 0, of_part))
    for some in _portions(looks.values(), min(_FILES_AT_ONCE, storage.requests_at_once)):
        reasons = together(storage, [look.reason for look in some])
        for look, reason in zip(some, reasons, strict=True):
            if isinstance(reason, str):
                yield look.path, reason


class _Look(NamedTuple):
    """The check of one file."""

    path: str
    size_bytes: int
    """The bytes that the check holds in memory."""
    reason: Callable[[], str | None]
    """Makes the check. Returns the damage, or ``None``."""


def _portions(looks: Iterable[_Look], at_once: int) -> Iterator[list[_Look]]:
    some: list[_Look] = []
    size = 0
    for look in looks:
        if some and (len(some) == at_once or size + look.size_bytes > _READ_BYTES):
            yield some
            some, size = [], 0
        some.append(look)
        size += look.size_bytes
    if some:
        yield some


def _sizes(record: Record) -> list[int]:
    """Return the sizes of the messages in a record's file."""
    rows = [record.row_extent] if record.row_count else []
    return rows + [int(size) for size in record.sizes[record.row_count : record.inline_count]]


def _record(storage: Storage, path: str, record: Record) -> str | None:
    data = storage.read(path)
    if data is None:
        return "it is gone"
    blocks, offset = [], record.header_bytes
    try:
        for size in _sizes(record):
            prefix = data[offset : offset + _PREFIX_BYTES]
            blocks.append((offset, framing.metadata_length(prefix), size))
            offset += size
        schema = data[len(framing.MAGIC) : record.header_bytes]
        is_whole = data[offset:] == framing.trailer(schema, blocks)
    except framing.FrameError as error:
        return str(error)
    return None if is_whole else "the end of the file is damaged or missing"


def _part(
    storage: Storage, path: str, parts: PartFiles, part: PartRef, has_digests: bool
) -> str | None:
    actual = storage.size(path)
    if actual is None:
        return "it is gone"
    if actual != part.size_bytes:
        return f"it has {actual} bytes instead of {part.size_bytes}"
    if (has_digests and _is_framed(storage, path, part)) or parts.holds(part):
        return None
    return "it does not match its checksum"


def _is_framed(storage: Storage, path: str, part: PartRef) -> bool:
    """Whether the bytes around the entries are right; ``False`` if that is uncertain.

    All messages of one schema have metadata of the same length. So the first message is enough to
    compute the footer.
    """
    end = part.first_offset + sum(part.sizes)
    head = storage.read_range(path, 0, part.first_offset + _PREFIX_BYTES)
    tail = storage.read_range(path, end, part.size_bytes - end)
    if head is None or tail is None:
        return False
    head, tail = bytes(head), bytes(tail)
    try:
        length = framing.metadata_length(head[part.first_offset :])
        blocks, offset = [], part.first_offset
        for size in part.sizes:
            blocks.append((offset, length, size))
            offset += size
        schema = head[len(framing.MAGIC) : part.first_offset]
        is_headed = framing.header_end(head) == part.first_offset
        return is_headed and tail == framing.trailer(schema, blocks)
    except framing.FrameError:  # the caller then reads the whole file
        return False
