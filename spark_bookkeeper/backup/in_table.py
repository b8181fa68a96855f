"""What a backup asks of a table that takes the rows of ledgers; ``delta/`` has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from spark_bookkeeper.backup.folder import BackupFolder
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import LedgerId

LOOKED_AT: Final = 5
"""Snapshots, the newest first, in which a run finds what the table stands for already."""


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
            BookKeeperError: the table cannot be used at all, or somebody cancelled it.
        """


class LastPlaces:
    """Where the newest snapshots have closed ledgers."""

    def __init__(self, folder: BackupFolder) -> None:
        self._places: dict[str, str | None] = {}
        for number in reversed(folder.numbers()[-LOOKED_AT:]):
            with suppress(InvalidArgumentError):  # a damaged one says nothing
                for name, index in folder.closed_ledgers(number).items():
                    self._places.setdefault(name, index)

    def is_in_folder(self, ledger: Ledger) -> bool:
        """Whether all of it was put into the folder."""
        return self._places.get(str(ledger.key), "") is None

    def index_of(self, ledger: Ledger) -> str | None:
        """The digest of its list, where the table stood for it."""
        return self._places.get(str(ledger.key))
