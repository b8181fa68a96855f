"""The interface of a table that takes the rows of ledgers for a backup; see ``delta/``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from spark_bookkeeper.backup.folder import BackupFolder
from spark_bookkeeper.backup.snapshot import SavedPlace
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import LedgerId

CLOCKS_MS: Final = 3_600_000
"""Tolerated difference between the clocks of a ledger's creator and of the backup. With a larger
difference, a ledger may be proven a second time."""


@dataclass(frozen=True, slots=True)
class InTable:
    """A table stands for a closed ledger: this run or an earlier one has proven all of it."""

    index: str
    """The digest of its list."""
    length_bytes: int | None
    """Length of the ledger, from its last entry; ``None``: an earlier run has proven it."""


@dataclass(frozen=True, slots=True)
class NotInTable:
    """A table does not stand for a ledger, which has to be copied."""

    reason: str
    is_certain: bool
    """Whether the table never will. If false, an error occurred that may pass, and the next run
    tries again."""


Taken: TypeAlias = InTable | NotInTable


class LedgerTable(Protocol):
    """A table that takes ledgers of a backup."""

    @property
    def uri(self) -> str:
        """URI of the table, which may not exist yet."""

    def check(self) -> None:
        """Check that it can take ledgers, as far as possible without writing.

        Raises:
            InvalidArgumentError: it is no such table, or it is another cluster's.
        """

    def take(
        self, ledgers: Sequence[Ledger], known: Mapping[LedgerId, str], *, verify: bool
    ) -> Mapping[LedgerId, Taken]:
        """Append the rows that the table lacks, and prove that it stands for ledgers.

        Args:
            ledgers: closed ledgers with entries.
            known: digests of lists by which it stood for some of them before. These are read back
                only if the table no longer has the files that the list names.
            verify: read all of them back.

        Returns:
            the result for each ledger.

        Raises:
            BookKeeperError: the table cannot be used at all now, or the job was cancelled.
        """


class LastPlaces:
    """The place of each closed ledger in the newest snapshot that has it."""

    def __init__(self, folder: BackupFolder) -> None:
        self._folder = folder
        self._numbers = list(folder.snapshots.numbers())
        """Numbers of the snapshots not yet read, ascending."""
        self._read_to_ms: int | None = None
        """Time of the oldest snapshot that was read."""
        self._places: dict[str, SavedPlace] = {}

    def find(self, ledgers: Iterable[Ledger]) -> None:
        """Read older snapshots until each ledger is found, or is too young to be in them.

        The search has no limit of snapshots: without a ledger's list, the entries that the table
        stands for would be read again from bookies, which may have lost them.
        """
        lacking = list(ledgers)
        while lacking := [x for x in lacking if self._may_be_older(x)]:
            if not self._numbers:
                return
            with suppress(InvalidArgumentError):  # a damaged snapshot is skipped
                closed = self._folder.snapshots.closed_ledgers(self._numbers[-1])
                self._read_to_ms = closed.taken_at_ms
                for name, place in closed.places.items():
                    # The reason for a copy may have passed: an older snapshot may have its list.
                    if place.index is not None or place.is_refused:
                        self._places.setdefault(name, place)
            self._numbers.pop()

    def _may_be_older(self, ledger: Ledger) -> bool:
        """Whether an older snapshot may have a ledger that was not found yet."""
        created_ms, read_to_ms = ledger.metadata.ctime_ms, self._read_to_ms
        is_younger = (
            created_ms is not None
            and read_to_ms is not None
            and created_ms - CLOCKS_MS > read_to_ms
        )
        return str(ledger.key) not in self._places and not is_younger

    def is_refused(self, ledger: Ledger) -> bool:
        """Whether a ledger was copied into the folder since the table can never stand for it."""
        place = self._places.get(str(ledger.key))
        return place is not None and place.is_refused

    def index_of(self, ledger: Ledger) -> str | None:
        """Return the digest of a ledger's list; ``None``: the table did not stand for it."""
        place = self._places.get(str(ledger.key))
        return None if place is None else place.index
