"""The part files of one ledger on one bookie: made, found, compared, and read to be copied.

A part counts only where a record lists it, so nothing here needs a slot (SLOT-LOG rule R15).
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
"""A piece that is read, compared and written while it is near the processor: larger ones come
back from memory for each of the three, and of smaller ones the calls cost more than that saves. So
does a request to an object store."""

REMOVING: Final = ".removing"
"""Behind the name of a part that is about to be removed, as no record lists it (rule R21)."""

_BROUGHT: Final = re.compile(r"\.[0-9a-f]{16}(?:-[0-9]+)?\.arrow$")
"""What is added to the name of a part that is brought to a bookie."""

MOST_NAMES: Final = 100
"""So many names are tried for one copy, when something else has taken the first of them."""


def names_are_taken(storage: Storage, path: str) -> BookieUnavailableError:
    """The error of a copy that found no name: all are taken, and none of the files is that copy."""
    reason = (
        f"{path} and {MOST_NAMES - 1} names beside it are taken by something "
        "else, or what was put there is not read back; look at the storage"
    )
    return unavailable(storage, reason, path)


class PartFiles:
    """Part files under their names.

    Args:
        storage: the bookie's partition.
        paths: of the ledger.
        ledger: as it is asked for.
    """

    def __init__(self, storage: Storage, paths: LedgerPaths, ledger: LedgerRef) -> None:
        self._storage = storage
        self._paths = paths
        self._ledger = ledger

    def create(self, name: str) -> FileSink:
        """Begin a part under a name that nobody else uses; ``finish`` makes it durable (R15)."""
        self._storage.make_directory(self._paths.parts)
        return self._storage.create(self._paths.part(name))

    def mark(self, name: str) -> str:
        """Path of the file that says that a part is about to be removed."""
        return f"{self._paths.part(name)}{REMOVING}"

    def check_kept(self, names: Iterable[str]) -> None:
        """After a copy that lists parts is there: none of them is about to be removed.

        Raises:
            BookieUnavailableError: one is, or is gone; copy it again [part_mark].
        """
        for name in names:
            path = self._paths.part(name)
            if self._storage.exists(self.mark(name)) or not self._storage.exists(path):
                reason = f"{path} is being removed, as nothing listed it; it must be copied again"
                raise unavailable(self._storage, reason, path)

    def find(self, part: PartRef, *, is_copy: bool) -> PartPlace:
        """Where a part is, durable from now on (R9b); or the first name that is free for it.

        A part has here the name that it has elsewhere only if a task wrote it on this bookie as
        well; one that is brought gets a name of this era [copy_era].

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
        """The name here of a part that another bookie lists; the listed name where it is not here.

        Names of parts that were brought are looked for first: where a task's file was damaged here,
        the part was brought again under such a name.
        """
        for name in (self._brought(part.name), part.name, _written(part.name)):
            if self._storage.size(self._paths.part(name)) == part.size_bytes:
                return name
        return part.name

    def _brought(self, name: str) -> str:
        """Name of a part that is brought here, from anywhere."""
        return f"{_written(name).removesuffix('.arrow')}.{self._ledger.era}.arrow"

    def _is_free(self, name: str) -> bool:
        files = (self._paths.part(name), self.mark(name))
        return not any(self._storage.exists(path) for path in files)

    def _is_there(self, name: str, part: PartRef) -> bool:
        """Whether these are its bytes, durable from now on. What has the name and cannot be read
        is left alone, like anything else there.
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
        """Whether the bytes of a part are here, all of them read.

        Raises:
            BookieUnavailableError: no answer, or the file is gone.
        """
        return self._checksum(part.name, part.size_bytes) == part.crc32c

    def read(self, name: str, offset: int) -> bytes | pa.Buffer:
        """A piece of a part; empty at its end.

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
        """CRC32C of as many bytes of a file as the part should have."""
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
    """The name under which a task wrote a part that was brought somewhere since."""
    return _BROUGHT.sub(".arrow", name)
