"""What a backup asks of a table that takes the rows of ledgers; ``delta/`` has one."""

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
"""How much the clocks of who creates a ledger and of who backs it up may differ. Where they differ
by more, a ledger may be proven a second time."""


@dataclass(frozen=True, slots=True)
class InTable:
    """A table stands for a closed ledger: all of it was proven, by this run or one before."""

    index: str
    """The digest of its list."""
    length_bytes: int | None
    """Of the ledger, as its last entry says; ``None``: an earlier run has proven it."""


@dataclass(frozen=True, slots=True)
class NotInTable:
    """It does not: the ledger has to be copied."""

    reason: str
    is_certain: bool
    """Whether it never will. Else something went wrong that may pass, and the next run asks it
    again."""


Taken: TypeAlias = InTable | NotInTable


class LedgerTable(Protocol):
    """A table that takes ledgers of a backup."""

    @property
    def uri(self) -> str:
        """Where it is, or will be."""

    def check(self) -> None:
        """Whether it can take ledgers, as far as that shows without writing.

        Raises:
            InvalidArgumentError: something else is there, or it is another cluster's.
        """

    def take(
        self, ledgers: Sequence[Ledger], known: Mapping[LedgerId, str], *, verify: bool
    ) -> Mapping[LedgerId, Taken]:
        """Have it take what it lacks, and prove that it stands for ledgers.

        Args:
            ledgers: closed ones with entries.
            known: digests of lists by which it stood for some of them before. These are read back
                only where the files that a list names are not the table's any more.
            verify: read all of them back.

        Returns:
            what is to be said of each.

        Raises:
            BookKeeperError: the table cannot be used at all now, or somebody cancelled it.
        """


class LastPlaces:
    """Where snapshots have closed ledgers, the newest that has each."""

    def __init__(self, folder: BackupFolder) -> None:
        self._folder = folder
        self._numbers = list(folder.snapshots.numbers())
        """Of those that were not read yet, ascending."""
        self._read_to_ms: int | None = None
        """When the oldest that was read was taken."""
        self._places: dict[str, SavedPlace] = {}

    def find(self, ledgers: Iterable[Ledger]) -> None:
        """Go back until each of some ledgers is found, or is too young to be found.

        However many snapshots of other ledgers there are since: without its list, what the table
        stands for would be read from bookies again, which may have lost it.
        """
        lacking = list(ledgers)
        while lacking := [x for x in lacking if self._may_be_older(x)]:
            if not self._numbers:
                return
            with suppress(InvalidArgumentError):  # a damaged one says nothing
                closed = self._folder.snapshots.closed_ledgers(self._numbers[-1])
                self._read_to_ms = closed.taken_at_ms
                for name, place in closed.places.items():
                    # Copied for a reason that may have passed: an older one may have its list.
                    if place.index is not None or place.is_refused:
                        self._places.setdefault(name, place)
            self._numbers.pop()

    def _may_be_older(self, ledger: Ledger) -> bool:
        """Whether a ledger is to be looked for in older snapshots."""
        created_ms, read_to_ms = ledger.metadata.ctime_ms, self._read_to_ms
        is_younger = (
            created_ms is not None
            and read_to_ms is not None
            and created_ms - CLOCKS_MS > read_to_ms
        )
        return str(ledger.key) not in self._places and not is_younger

    def is_refused(self, ledger: Ledger) -> bool:
        """Whether all of it was put into the folder, since the table can never stand for it."""
        place = self._places.get(str(ledger.key))
        return place is not None and place.is_refused

    def index_of(self, ledger: Ledger) -> str | None:
        """The digest of its list, where the table stood for it."""
        place = self._places.get(str(ledger.key))
        return None if place is None else place.index
