"""The part files of one ledger on one bookie: made, compared, and copied file to file.

A part counts only where a record lists it, so nothing here needs a slot (SLOT-LOG rule R15).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.entry import PartRef
from spark_bookkeeper.bookie.schema import LedgerKey
from spark_bookkeeper.bookie.storage.storage import FileSink, Storage
from spark_bookkeeper.errors import BookieUnavailableError, CorruptEntryError

_CHUNK_BYTES: Final = 8 << 20


MOST_NAMES: Final = 100
"""Tried for one copy, whose own name is taken by something else."""


def names_are_taken(bookie_id: str, path: str) -> BookieUnavailableError:
    """A copy finds no name: each is taken, and none by what is to be copied."""
    return BookieUnavailableError(
        f"bookie {bookie_id}: {path} and {MOST_NAMES - 1} names beside it are taken by something "
        "else, or what was put there is not read back; look at the storage",
        bookie_id=bookie_id,
        path=path,
    )


class PartFiles:
    """Part files under their names.

    Args:
        storage: the bookie's partition.
        bookie_id: for messages.
        key: the ledger's life.
    """

    def __init__(self, storage: Storage, bookie_id: str, key: LedgerKey) -> None:
        self._storage = storage
        self._bookie_id = bookie_id
        self._key = key

    def create(self, name: str) -> FileSink:
        """Begin a part under a name that nobody else uses; ``finish`` makes it durable (R15)."""
        self._storage.make_directory(self._key.parts)
        return self._storage.create(self._key.part(name))

    def copy_from(
        self, source: PartFiles, part: PartRef, progress: Callable[[int], None] = lambda _: None
    ) -> PartRef:
        """Copy a part from another bookie, file to file.

        Args:
            source: the other bookie's parts of the same ledger.
            part: which one.
            progress: called after every piece of it, with its bytes.

        Returns:
            the part as it is named here: under its own name, unless something else has that.

        Raises:
            CorruptEntryError: the source's bytes do not match the checksum; nothing is left here.
            BookieUnavailableError: no answer from either.
        """
        name = part.name
        for attempt in range(1, MOST_NAMES + 1):
            if (size := self._storage.size(self._key.part(name))) is None:
                break
            # What has the name and cannot be read is left alone, like anything else there.
            with suppress(BookieUnavailableError):
                if self._has(name, size, part):
                    return replace(part, name=name)
            name = f"{part.name.removesuffix('.arrow')}-{attempt}.arrow"
        else:
            raise names_are_taken(self._bookie_id, self._key.part(part.name))
        sink = self.create(name)

        def write(data: bytes) -> None:
            sink.write(data)
            progress(len(data))

        try:
            if source._checksum(part.name, part.size_bytes, write) != part.crc32c:
                path = self._key.part(part.name)
                raise CorruptEntryError(
                    f"bookie {source._bookie_id}: {path} does not match its "
                    "checksum; copy it from another replica",
                    bookie_id=source._bookie_id,
                    path=path,
                )
            try:
                sink.finish()
            except BookieUnavailableError:
                # Somebody else copied the same meanwhile, or an answer was lost: is it there?
                found = self._storage.size(self._key.part(name))
                if found is None or not self._has(name, found, part):
                    raise
        finally:
            sink.abandon()
        return replace(part, name=name)

    def holds(self, part: PartRef) -> bool:
        """Whether the bytes of a part are here, all of them read.

        Raises:
            BookieUnavailableError: no answer, or the file is gone.
        """
        return self._checksum(part.name, part.size_bytes) == part.crc32c

    def _has(self, name: str, size: int, part: PartRef) -> bool:
        """Whether a file of that size is the part; if so, it is durable from now on (R9b)."""
        if size != part.size_bytes or self._checksum(name, size) != part.crc32c:
            return False
        self._storage.sync(self._key.part(name))
        return True

    def _checksum(self, name: str, size: int, write: Callable[[bytes], None] | None = None) -> int:
        """CRC32C of a part, read in pieces that are handed on."""
        value = 0
        for offset in range(0, max(size, 1), _CHUNK_BYTES):
            data = self._storage.read_range(self._key.part(name), offset, _CHUNK_BYTES)
            if data is None:
                raise BookieUnavailableError(
                    f"bookie {self._bookie_id}: {self._key.part(name)} is gone",
                    bookie_id=self._bookie_id,
                    path=self._key.part(name),
                )
            value = crc(data, value)
            if write is not None:
                write(data)
        return value
