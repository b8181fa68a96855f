"""Whether the files of a bookie are whole, also where no entry lies.

Reading verifies entries. Here is the rest of each file: that any Arrow reader opens it, and finds
the batches where the footer says. Entries of a file that is damaged there can still be read by this
library, but the file cannot be copied as it is, and what damaged its end may damage more of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from spark_bookkeeper.bookie import framing
from spark_bookkeeper.bookie.entry import PartRef
from spark_bookkeeper.bookie.index import Holding
from spark_bookkeeper.bookie.part_files import PartFiles
from spark_bookkeeper.bookie.record import Record
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.errors import BookieError

_PREFIX_BYTES = 8
"""Of a message, enough to tell the length of its metadata."""


def spoilt_files(
    storage: Storage,
    paths: LedgerPaths,
    parts: PartFiles,
    holdings: Iterable[Holding],
    *,
    has_digests: bool,
) -> Iterator[tuple[str, str]]:
    """The files of some records that are damaged outside their entries, each with the reason.

    Entries are not read, as far as that can be avoided: whoever asks has verified them. Without
    digests nobody has, and the checksum of a whole part is all there is: it is read. What cannot
    be read just now is not known to be damaged, and is not among them.
    """
    seen: set[str] = set()
    for holding in holdings:
        looks = [(holding.path, partial(_record, storage, holding.path, holding.record))]
        for part in holding.record.parts:
            path = paths.part(part.ref.name)
            looks.append((path, partial(_part, storage, path, parts, part.ref, has_digests)))
        for path, look in looks:
            if path in seen:
                continue
            seen.add(path)
            try:
                reason = look()
            except BookieError:
                continue
            if reason is not None:
                yield path, reason


def _record(storage: Storage, path: str, record: Record) -> str | None:
    data = storage.read(path)
    if data is None:
        return "it is gone"
    sizes = ([record.row_extent] if record.row_count else []) + [
        int(size) for size in record.sizes[record.row_count : record.inline_count]
    ]
    blocks, offset = [], record.header_bytes
    try:
        for size in sizes:
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
    """Whether what is around the entries is as it should be; ``False`` when that is not sure.

    All messages of a file have metadata of one length, as long as their schema is one: so the
    footer is known from the first of them.
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
    except framing.FrameError:  # the file is read whole then
        return False
