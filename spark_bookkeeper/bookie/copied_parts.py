"""Parts from one bookie to another, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spark_bookkeeper.bookie.bookie import Bookie, LedgerRef
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.entry import PartRef
from spark_bookkeeper.errors import BookieUnavailableError, CorruptEntryError

Place = tuple[Bookie, LedgerRef]
"""A bookie, and the ledger as that one is asked for it."""


def copy_part(
    source: Place,
    target: Place,
    part: PartRef,
    progress: Callable[[int], None],
    *,
    is_copy: bool = True,
) -> PartRef:
    """Copy a part.

    Args:
        progress: called after every piece of it, with its bytes.
        is_copy: see ``Bookie.find_part`` and ``Bookie.begin_part``.

    Returns:
        the part as it is named there.

    Raises:
        CorruptEntryError: the source's bytes do not match the checksum; nothing is left there.
        BookieUnavailableError: no answer from either.
        BookieReadOnlyError: see ``Bookie.begin_part``.
    """
    bookie, ledger = target
    place = bookie.find_part(ledger, part, is_copy=is_copy)
    copied = replace(part, name=place.name)
    if place.is_there:
        return copied
    sink = bookie.begin_part(ledger, place.name, is_copy=is_copy)
    checksum = offset = 0
    try:
        while offset < max(part.size_bytes, 1):
            data = source[0].read_part(source[1], part, offset)
            if not len(data):
                break
            sink.write(data)
            checksum = crc(data, checksum)
            offset += len(data)
            progress(len(data))
        if checksum != part.crc32c:
            raise CorruptEntryError(
                f"bookie {source[0].bookie_id}: part {part.name} of ledger {ledger.key} does not "
                "match its checksum; copy it from another replica",
                bookie_id=source[0].bookie_id,
                path=part.name,
            )
        try:
            sink.finish()
        except BookieUnavailableError:
            # Somebody else copied the same meanwhile, or an answer was lost: is it there?
            found = bookie.find_part(ledger, part, is_copy=is_copy)
            if not found.is_there or found.name != place.name:
                raise
    finally:
        sink.abandon()
    return copied
