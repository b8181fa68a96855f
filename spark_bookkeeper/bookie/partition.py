"""A storage partition for maintenance: its marker, its formatting, its space.

``Bookie`` is the interface for ledgers and entries. ``Partition`` is the interface for the disk
below them. Only the bookie's agent and commands with the partition's root use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.marker import (
    Marker,
    check_marker,
    ledger_directories,
    lost_directory,
    read_marker,
)
from spark_bookkeeper.bookie.probe import (
    PROBE_DIRECTORY,
    OnCheck,
    Race,
    ignore_progress,
    probe,
    race_in_threads,
)
from spark_bookkeeper.bookie.schema import LEDGERS, MARKER_PATH, WITNESS_PATH, ledger_of
from spark_bookkeeper.errors import (
    BookieFullError,
    BookieUnavailableError,
    BookKeeperError,
    CookieMismatchError,
)
from spark_bookkeeper.storage.storage import Storage, unavailable

AGENT_PROBE_PREFIX: Final = "probe-"
"""The prefix of the files at the root with which an agent regularly tests the storage."""

_RETIRED: Final = "retired"
_LOST_AND_FOUND: Final = "lost+found"

log = logging.getLogger(__name__)


class NotWrittenError(Exception):
    """A small file could not be written; the message shows the reason."""


class Partition:
    """One storage partition.

    Every method raises ``BookieUnavailableError`` when the storage does not answer.

    Args:
        storage: the storage, whose root exists.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.uri = storage.uri

    def close(self) -> None:
        """Close the storage."""
        self._storage.close()

    # Identity

    def marker(self) -> Marker | None:
        """Read the marker; ``None`` if certainly none exists.

        Raises:
            CookieMismatchError: it cannot be decoded.
        """
        return read_marker(self._storage)

    def check_marker(self, incarnation: str, bookie_id: str = "") -> Marker:
        """Read the marker, and check that it has this incarnation.

        Raises:
            CookieMismatchError: no marker exists, or it has another incarnation.
        """
        return check_marker(self._storage, incarnation, bookie_id)

    def remove_marker(self) -> None:
        """Remove the marker. From then on no add counts (SLOT-LOG rule R11)."""
        self._storage.delete(MARKER_PATH)

    def put_marker(self, marker: Marker) -> bool:
        """Write the marker; False if one exists already."""
        return self._storage.put_if_absent(MARKER_PATH, marker.encode())

    # Content

    def lost_directory(self, marker: Marker) -> str | None:
        """Return why a partition with that marker lost its content; ``None`` if it did not."""
        return lost_directory(self._storage, marker)

    def holds_anything(self) -> bool:
        """Whether it has files of ledgers, or tombstones."""
        return bool(ledger_directories(self._storage)) or bool(self._storage.list(_RETIRED))

    def in_the_way(self) -> Sequence[str]:
        """Return the names at the root that prevent the formatting of a partition without a marker.

        Empty directories of an interrupted formatting are not among them.
        """
        names = self._root_names()
        return [n for n in names if n not in (LEDGERS, _RETIRED) or self.holds_anything()]

    def foreign_names(self) -> Sequence[str]:
        """Return the names at the root that do not belong to a bookie."""
        return [n for n in self._root_names() if n not in (LEDGERS, _RETIRED, MARKER_PATH)]

    def _root_names(self) -> Sequence[str]:
        ignored = (PROBE_DIRECTORY, _LOST_AND_FOUND)
        return [
            name
            for name in self._storage.list("")
            if name not in ignored and not name.startswith(AGENT_PROBE_PREFIX)
        ]

    def ledgers(self) -> tuple[int, int | None]:
        """Return the number of ledger directories, and their bytes (``None``: unknown)."""
        directories = ledger_directories(self._storage)
        keys = filter(None, map(ledger_of, directories))
        try:
            size = sum(map(sum, map(FileBookie(self._storage).sizes_of, keys)))
        except BookieUnavailableError:  # a damaged disk
            return len(directories), None
        return len(directories), size

    def space(self) -> tuple[int, int] | None:
        """Return free and total bytes; ``None`` where the storage does not report them."""
        return self._storage.space()

    def inodes(self) -> tuple[int, int] | None:
        """Return free and total inodes; ``None`` where the storage does not report them."""
        return self._storage.inodes()

    # Formatting

    def probe(
        self,
        token: Callable[[], str],
        *,
        race: Race = race_in_threads,
        on_check: OnCheck = ignore_progress,
    ) -> None:
        """Test whether the file system can hold a bookie; see ``probe.py``.

        Raises:
            UnsuitableStorageError: it cannot.
        """
        probe(self._storage, token, race=race, on_check=on_check)

    def format(
        self,
        bookie_id: str,
        instance_id: str,
        *,
        token: Callable[[], str],
        is_probe_required: bool = True,
        race: Race = race_in_threads,
        on_check: OnCheck = ignore_progress,
    ) -> Marker:
        """Make an empty partition a bookie, with a new incarnation. The marker is written last.

        A caller that wipes it first must decide whether it may hold the last copy of an entry.

        Args:
            bookie_id: ``host:port``.
            instance_id: the cluster's INSTANCEID.
            token: makes names never used before.
            is_probe_required: whether to probe the file system first.
            race: how the probe runs concurrent creators of one name.
            on_check: called with each check that the probe passes.

        Raises:
            CookieMismatchError: the partition is not empty.
            UnsuitableStorageError: the probe failed.
            BookieUnavailableError: no answer. The formatting may be incomplete; the marker is last.
        """
        found = self.in_the_way()
        if found:
            marker = self.marker()
            owner = (
                f"bookie {marker.bookie_id} of cluster {marker.instance_id}"
                if marker
                else "no bookie"
            )
            raise CookieMismatchError(
                f"{self.uri} is not empty (it holds {', '.join(found[:5])}; {owner}). Nothing was "
                "changed. Choose an empty directory, or move what is there elsewhere",
                bookie_id=bookie_id,
                nothing_changed=True,
            )
        if is_probe_required:
            self.probe(token, race=race, on_check=on_check)
        marker = Marker(
            bookie_id=bookie_id,
            incarnation=token(),
            instance_id=instance_id,
            has_witness=not self._storage.has_directories,
        )
        if not self.furnish(marker):
            return self.check_marker(marker.incarnation, bookie_id)  # a lost answer, or a race
        return marker

    def furnish(self, marker: Marker) -> bool:
        """Write the directories and files of an empty partition, the marker last (rule R11).

        Returns:
            False if a marker existed already.
        """
        self._storage.make_directory(LEDGERS)
        self._storage.make_directory(_RETIRED)
        if marker.has_witness:
            self._storage.put_if_absent(WITNESS_PATH, marker.encode())
        return self.put_marker(marker)

    def wipe(self) -> None:
        """Delete everything, the marker first. From then on no add counts (SLOT-LOG rule R11)."""
        self.remove_marker()
        for name in (LEDGERS, _RETIRED, PROBE_DIRECTORY):
            self._storage.delete_directory(name)
        self.remove_old_probes()

    # Regular tests by the agent

    def write_and_read(self, token: str) -> None:
        """Write a small file, read it back and remove it.

        Args:
            token: a name never used before.

        Raises:
            BookieFullError: there was no space for the file.
            NotWrittenError: the file could not be written.
            BookieUnavailableError: the file could not be read back.
        """
        path = f"{AGENT_PROBE_PREFIX}{token}"
        data = path.encode() * 16
        try:
            try:
                self._storage.put_if_absent(path, data)
            except BookieFullError:
                raise
            except BookieUnavailableError as error:
                raise NotWrittenError(error.message) from error
            # The result of the put does not matter. No other process uses this name, so if it
            # is taken, an SDK repeated the put after a lost answer (SLOT-LOG rule R3).
            if self._storage.read(path) != data:
                raise unavailable(
                    self._storage,
                    f"{self.uri}/{path} was written and does not read back as it was written",
                    path,
                )
        finally:
            try:
                self._storage.delete(path)
            except BookKeeperError as error:
                log.info("%s/%s could not be removed: %s", self.uri, path, error)

    def remove_old_probes(self) -> None:
        """Remove the files of agents that were killed in ``write_and_read``."""
        for name in self._storage.list(""):
            if name.startswith(AGENT_PROBE_PREFIX):
                self._storage.delete(name)
