"""The errors of this library, as one tree.

::

    BookKeeperError
      InvalidArgumentError (ValueError)   the call was wrong; nothing was sent
      LedgerError
        NoSuchLedgerError                 metadata has no such ledger
        LedgerExistsError                 the id is taken, or was used before
        LedgerClosedError                 the ledger ended at another entry, or takes no more
        LedgerFencedError                 another client recovers or closed the ledger
          LogOwnershipLostError           another writer took over the log
        NoSuchEntryError                  beyond the end, or beyond the last add confirmed
        DataLossError                     the data to be read next is gone
        EntryUnreadableError              no replica could be read and verified
        RecoveryUndecidedError            too few answers to decide an entry
        UnauthorizedError                 the password or digest type is not the ledger's
        AppendFailedError                 the append did not reach its ack quorum
      LogError
        NoSuchLogError                    there is no log of that name
        LogExistsError                    the name is taken
      BookieError
        BookieUnavailableError            no answer, or an unreliable answer
          BookieFullError                 no space left
          ProcessLimitError               this process may open no more files
          SlotTakenError                  a slot that another client created
        BookieReadOnlyError               refused before writing
        CorruptEntryError                 bytes that do not match their digest
        CookieMismatchError               this storage is not the registered one
        UnsuitableStorageError            the file system cannot create conditionally
      NotEnoughBookiesError               an ensemble cannot be formed
      MetadataError
        VersionConflictError              a lost compare-and-swap; nothing was written
        MetadataUnavailableError          no answer from the metadata store
        MetadataFormatError               bytes that cannot be decoded
        NoClusterError                    the metadata store holds no cluster here
      MissingRequirementError             something this machine lacks (Java, an extra)

A class exists where a caller would act differently. Each docstring says when it is
raised, what is then certain and what to do. Errors travel from Spark tasks to the driver,
so all of them survive pickling with their attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from typing_extensions import Self

from spark_bookkeeper.secrecy import without_passwords

NO_ACCESS: Final = "no access with these storage_options"
"""The text in a bookie's error if its storage lacks credentials, or refuses them."""


def remedy(causes: Iterable[str], otherwise: str) -> str:
    """Return what to do about bookies, according to the error text of each."""
    give = (
        "give this program the storage_options of that storage (connect(..., storage_options=...), "
        "--storage-option of a command, options storage.* of the data source)"
    )
    return give if any(NO_ACCESS in why for why in causes) else otherwise


class BookKeeperError(Exception):
    """The root of the tree. ``condition`` is a stable name, like Spark's error conditions.

    A password in a URI of the message is not shown (``secrecy.py``).
    """

    condition = "BOOKKEEPER_ERROR"

    def __init_subclass__(cls) -> None:
        """Set ``condition`` from the name: ``NoSuchLedgerError`` is ``BOOKKEEPER_NO_SUCH_LEDGER``.

        A class of another module keeps its base class's condition: for callers it is that error.
        """
        if cls.__module__ == __name__:
            words = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error"))
            cls.condition = f"BOOKKEEPER_{words.upper()}"

    def __init__(self, message: str, **facts: Any) -> None:
        message = without_passwords(message)
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.facts))

    def again(self) -> Self:
        """Return an equal error, with the same traceback and cause, to raise for one more caller.

        Raising an error adds a traceback, which keeps its frames alive. One error for many callers
        would grow with each of them, and show each the frames of the others.
        """
        same = type(self)(self.message, **self.facts).with_traceback(self.__traceback__)
        same.__cause__, same.__context__ = self.__cause__, self.__context__
        same.__suppress_context__ = self.__suppress_context__
        return same

    def for_worker(self) -> str:
        """Return the text for another process: ``[condition] message``, as Spark does."""
        return f"[{self.condition}] {self.message}"


def _rebuild(cls: type[BookKeeperError], message: str, facts: dict[str, Any]) -> BookKeeperError:
    return cls(message, **facts)


class InvalidArgumentError(BookKeeperError, ValueError):
    """The call was wrong. Nothing was sent, nothing changed. Fix the call."""


class LedgerError(BookKeeperError):
    """An error that concerns one ledger."""

    ledger_id: int
    """The id of the ledger."""


class NoSuchLedgerError(LedgerError):
    """Metadata holds no such ledger: it was deleted or never existed. Stop.

    Also raised if another ledger has its id by now, made by a tool that uses ids again.
    """


class LedgerExistsError(LedgerError):
    """The ledger id is taken, or was used before. Nothing was written. Choose another id."""


class LedgerClosedError(LedgerError):
    """The ledger is closed. Entries beyond ``last_entry_id`` are not in it. Use a new ledger."""

    last_entry_id: int | None


class LedgerFencedError(LedgerError):
    """Another client fenced the ledger.

    Pending adds may or may not be written: treat this like a time-out. Open the ledger (which
    recovers it) and read it to find out; do not simply append the same rows elsewhere.
    """


class LogOwnershipLostError(LedgerFencedError):
    """Another writer took over the log.

    The acknowledged entries of this writer are in the log; pending ones may or may not be. Read the
    log's end to find out, and become its writer again only if that is still intended.
    """

    log: str
    """Name of the log."""


class NoSuchEntryError(LedgerError):
    """The entry is beyond the last entry, or beyond the last add confirmed of an open ledger."""

    entry_id: int


class DataLossError(LedgerError):
    """The data to be read next was truncated or deleted, so not all of it can be read any more.

    Nothing was skipped. ``failOnDataLoss=false`` skips the missing data and goes on.
    """

    entry_id: int


class EntryUnreadableError(LedgerError):
    """No replica of an entry could be read and verified.

    ``causes`` gives the reason for each bookie. The entry is not certainly lost: bring back one of
    the named bookies, then read again. Never delete the ledger to make the message go away.
    """

    entry_id: int
    causes: Mapping[str, str]


class RecoveryUndecidedError(LedgerError):
    """Too few bookies answered to decide whether an entry exists. The ledger stays IN_RECOVERY.

    ``answers`` holds the answer of each bookie of the write set. One more answer, from any bookie
    of ``blockers``, would decide it. Nothing is lost; bring one back and repeat.
    """

    entry_id: int
    answers: Mapping[str, str]
    blockers: Sequence[str]


class UnauthorizedError(LedgerError):
    """The password is not the ledger's. Nothing was read or changed."""


class AppendFailedError(LedgerError):
    """An append did not reach its ack quorum, and the writer has ended.

    The entries may or may not be written. Open the ledger to recover it, and read it to find out.
    """


class LogError(BookKeeperError):
    """An error that concerns one log."""

    log: str
    """Name of the log."""


class NoSuchLogError(LogError):
    """There is no log of that name: it was deleted or never existed."""


class LogExistsError(LogError):
    """The name is taken. Nothing was changed. Open that log, or choose another name."""


class BookieError(BookKeeperError):
    """An error that concerns one bookie."""

    bookie_id: str
    """The bookie's id, or its storage's root while no id is known, as before it is formatted."""

    def __init__(self, message: str, *, bookie_id: str, **facts: Any) -> None:
        super().__init__(message, bookie_id=bookie_id, **facts)


class BookieUnavailableError(BookieError):
    """The bookie gave no reliable answer. A write may or may not have taken effect."""


class BookieFullError(BookieUnavailableError):
    """The storage has no space left. The write was not acknowledged."""


class ProcessLimitError(BookieUnavailableError):
    """This process, or its machine, may open no more files. The bookie itself may be well.

    The writer ends, and keeps its bookies in the ensemble. Close ledgers that are finished, or
    raise the limit (``ulimit -n``).
    """


class SlotTakenError(BookieUnavailableError):
    """The slot exists and is not this writer's, or cannot be read.

    This writer's record will never be in it. Stop using the bookie for this ledger; never go on
    with its next slot (SLOT-LOG rule R3).
    """


class BookieReadOnlyError(BookieError):
    """The bookie takes no new data: its last space is for fences and recovery.

    It refused the write before it began. Use another bookie; a writer does so itself if one exists.
    """


class CorruptEntryError(BookieError):
    """The bytes do not match their digest. Read another replica; report this one."""

    path: str


class CookieMismatchError(BookieError):
    """The storage is not the one that was registered under this id, or was wiped."""


class UnsuitableStorageError(BookieError):
    """The file system cannot create a file exclusively with complete, synced content.

    Fencing needs that (SLOT-LOG rule R1), so the bookie is refused. Nothing was formatted.
    """


class NotEnoughBookiesError(BookKeeperError):
    """An ensemble cannot be formed. ``causes`` gives for every bookie why it was not chosen."""

    needed: int
    available: int
    causes: Mapping[str, str]


class MetadataError(BookKeeperError):
    """An error that concerns the metadata store."""


class VersionConflictError(MetadataError):
    """A compare-and-swap found another version. Nothing was written. Re-read, then decide."""


class MetadataUnavailableError(MetadataError):
    """The metadata store did not answer. A write may have happened: re-read before retrying."""


class MetadataFormatError(MetadataError):
    """The metadata cannot be decoded. Nothing was changed. Upgrade, or report it."""

    path: str


class NoClusterError(MetadataError):
    """The metadata store answers, but holds no BookKeeper cluster under this root."""


class MissingRequirementError(BookKeeperError):
    """This machine lacks something (Java, an extra). The message names how to get it."""
