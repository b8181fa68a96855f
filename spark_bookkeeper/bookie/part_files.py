"""The part files of one ledger on one bookie: create, find, compare and read them.

A part counts only if a record lists it, so this module puts no slots (SLOT-LOG rule R15).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie.bookie import LedgerRef, PartPlace
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.entry import PartRef
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.storage.storage import FileSink, Storage, unavailable

_CHUNK_BYTES: Final = 8 << 20

_CACHED_BYTES: Final = 1 << 20
"""The piece of a part that a copy reads, checks and writes while it is in the processor's cache.
Larger pieces come from memory for each of the three steps. With smaller ones the calls cost more
than that saves; so would requests to an object store."""

REMOVING: Final = ".removing"
"""The suffix of the mark of a part that will be removed, as no record lists it (rule R21)."""

_BROUGHT: Final = re.compile(r"\.[0-9a-f]{16}(?:-[0-9]+)?\.arrow$")
"""The suffix of the name of a part that was copied to a bookie."""

MOST_NAMES: Final = 100
"""The most names that are tried for one copy, if other files have the first of them."""


def names_are_taken(storage: Storage, path: str) -> BookieUnavailableError:
    """Make the error of a copy for which no name is free: other files have all its names."""
    reason = (
        f"{path} and {MOST_NAMES - 1} names beside it are taken by something "
        "else, or what was put there is not read back; look at the storage"
    )
    return unavailable(storage, reason, path)


class PartFiles:
    """The part files of one ledger, by name.

    Args:
        storage: the bookie's partition.
        paths: the ledger's paths.
        ledger: the ledger, as in requests.
    """

    def __init__(self, storage: Storage, paths: LedgerPaths, ledger: LedgerRef) -> None:
        self._storage = storage
        self._paths = paths
        self._ledger = ledger

    def create(self, name: str) -> FileSink:
        """Begin a part under a name with only one maker; ``finish`` makes it durable (R15)."""
        self._storage.make_directory(self._paths.parts)
        return self._storage.create(self._paths.part(name))

    def mark(self, name: str) -> str:
        """Return the path of the mark of a part that will be removed."""
        return f"{self._paths.part(name)}{REMOVING}"

    def check_kept(self, names: Iterable[str]) -> None:
        """Check, after a copy that lists parts is stored, that no process is about to remove them.

        Raises:
            BookieUnavailableError: a part has a mark, or is gone; copy it again [part_mark].
        """
        for name in names:
            path = self._paths.part(name)
            if self._storage.exists(self.mark(name)) or not self._storage.exists(path):
                reason = f"{path} is being removed, as nothing listed it; it must be copied again"
                raise unavailable(self._storage, reason, path)

    def find(self, part: PartRef, *, is_copy: bool) -> PartPlace:
        """Find a part, and make it durable (R9b); or return the first name that is free for it.

        A part has the same name here as elsewhere only if its task wrote it on this bookie as
        well. A part that was copied here gets a name of this era [copy_era].

        Args:
            is_copy: see ``Bookie.find_part``.

        Raises:
            BookieUnavailableError: no answer, or no name is free.
        """
        counts_as_written = not (is_copy and self._ledger.era_alone)
        if counts_as_written and self._is_there(part.name, part):
            return PartPlace(part.name, is_there=True)
        first = name = self._brought(part.name) if is_copy else part.name
        for attempt in range(1, MOST_NAMES + 1):
            if self._is_there(name, part):
                return PartPlace(name, is_there=True)
            if self._is_free(name):
                return PartPlace(name, is_there=False)
            name = f"{first.removesuffix('.arrow')}-{attempt}.arrow"
        raise names_are_taken(self._storage, self._paths.part(first))

    def name_here(self, part: PartRef) -> str:
        """Return the name here of a part that another bookie lists; the listed one if it is absent.

        The name of a copied part is tried first: if the file that a task wrote here was damaged,
        the part was copied here again under such a name.
        """
        for name in (self._brought(part.name), part.name, _written(part.name)):
            if self._storage.size(self._paths.part(name)) == part.size_bytes:
                return name
        return part.name

    def _brought(self, name: str) -> str:
        """Return the name for a part that is copied to this bookie."""
        return f"{_written(name).removesuffix('.arrow')}.{self._ledger.era}.arrow"

    def _is_free(self, name: str) -> bool:
        files = (self._paths.part(name), self.mark(name))
        return not any(self._storage.exists(path) for path in files)

    def _is_there(self, name: str, part: PartRef) -> bool:
        """Whether the file of that name is the part; if so, it is durable from now on. An
        unreadable or other file of that name is left alone.
        """
        if self._storage.size(self._paths.part(name)) != part.size_bytes:
            return False
        with suppress(BookieUnavailableError):
            if self._checksum(name, part.size_bytes) == part.crc32c:
                self.check_kept([name])
                self._storage.sync(self._paths.part(name))
                return True
        return False

    def holds(self, part: PartRef) -> bool:
        """Whether the file has the bytes of the part. Reads all of it.

        Raises:
            BookieUnavailableError: no answer, or the file is gone.
        """
        return self._checksum(part.name, part.size_bytes) == part.crc32c

    def read(self, name: str, offset: int) -> bytes | pa.Buffer:
        """Read a piece of a part; empty at its end.

        Raises:
            BookieUnavailableError: no answer, or the file is gone.
        """
        path = self._paths.part(name)
        size = _CACHED_BYTES if self._storage.has_directories else _CHUNK_BYTES
        data = self._storage.read_range(path, offset, size)
        if data is None:
            raise unavailable(self._storage, f"{path} is gone", path)
        return data

    def _checksum(self, name: str, size: int) -> int:
        """Return the CRC32C of a file's chunks, as many as the part's size needs."""
        path = self._paths.part(name)
        value = 0

        def take(data: Buffer) -> None:
            nonlocal value
            value = crc(data, value)

        for offset in range(0, max(size, 1), _CHUNK_BYTES):
            if not self._storage.read_through(path, offset, _CHUNK_BYTES, take):
                raise unavailable(self._storage, f"{path} is gone", path)
        return value


def _written(name: str) -> str:
    """Return the name under which a task wrote a part that may have been copied since."""
    return _BROUGHT.sub(".arrow", name)
