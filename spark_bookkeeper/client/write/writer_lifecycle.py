"""The lifecycle of a ledger's writer: its own end, or what other clients did to the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import read_again, update_ledger
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from spark_bookkeeper.client.context import ClientContext


class WriterLifecycle:
    """The lifecycle of one writer, and how it ended. Changed with the writer's lock held."""

    def __init__(self) -> None:
        self.error: BookKeeperError | None = None
        """Why no further entry will be acknowledged; the first reason stays."""
        self.was_told = False
        """Whether the error was raised to some caller."""
        self.is_closing = False
        """Whether the writer takes no more entries."""
        self.is_ended = False
        """Whether nothing is sent any more."""
        self.is_closed = False
        self.is_abandoned = False

    @property
    def state(self) -> str:
        """The state in a word or two, for people."""
        if isinstance(self.error, LedgerFencedError):
            return "fenced"
        if isinstance(self.error, LedgerClosedError):
            return "closed by another client"
        if isinstance(self.error, NoSuchLedgerError):
            return "deleted"
        if self.is_abandoned:
            return "abandoned"
        if self.is_closed:
            return "closed"
        if self.error is not None:
            return "failed"
        return "closing" if self.is_closing else "writing"

    def fail(self, error: BookKeeperError) -> BookKeeperError:
        """Note that no further entry will be acknowledged; return the reason that stays."""
        self.error = self.error or error
        return self.error

    def told(self, error: BookKeeperError) -> BookKeeperError:
        """Return the error for one more caller, and note that a caller has seen it."""
        self.was_told = True
        return error.again()

    def account(
        self, ledger_id: LedgerId, confirmed: EntryId, pushed: EntryId, *, is_unknown: bool
    ) -> str:
        """Return what is certain of a ledger that its writer leaves open.

        Args:
            is_unknown: a ``close`` had no answer.
        """
        if pushed < 0:
            certain = "nothing was appended"
        elif confirmed < 0:
            certain = "no entry is acknowledged"
        else:
            certain = f"entries 0 to {confirmed} are acknowledged"
        end = "It stays open until somebody recovers it"
        if is_unknown:
            end = "Whether it was closed is not known"
        why = "" if self.error is None else f" ({self.error.message})"
        doubt = f", {confirmed + 1} to {pushed} may or may not be written{why}"
        return (
            f"Ledger {ledger_id}: last add confirmed {confirmed}; {certain}"
            + (doubt if confirmed < pushed else "")
            + f". {end}: open_ledger or recover_ledgers closes it"
        )


def check_open(ledger: Ledger, found: LedgerMetadata, confirmed: EntryId) -> None:
    """Raise the error that says what became of the ledger, unless it is OPEN.

    Also raise it if the last fragment is not the writer's: while a ledger is OPEN, no other client
    may add one.
    """
    if found.state is LedgerState.IN_RECOVERY:
        raise fenced_error(ledger, confirmed, "it is IN_RECOVERY in the metadata")
    if found.state is LedgerState.CLOSED:
        raise LedgerClosedError(
            f"ledger {ledger.ledger_id} was closed by another client at entry "
            f"{found.last_entry_id}; this writer had acknowledged up to {confirmed}. Later entries "
            "may or may not be written: read the ledger to know",
            ledger_id=ledger.ledger_id,
            last_entry_id=found.last_entry_id,
        )
    first = found.last_fragment.first_entry_id
    # A fragment at the next entry is the writer's own, if the answer to that change was lost.
    if first not in (ledger.metadata.last_fragment.first_entry_id, confirmed + 1):
        cause = f"it has a fragment at entry {first} that this writer did not make"
        raise fenced_error(ledger, confirmed, cause)


def fenced_error(ledger: Ledger, confirmed: EntryId, cause: str) -> LedgerFencedError:
    """Return the error of a writer that lost its ledger to a recovery."""
    return LedgerFencedError(
        f"ledger {ledger.ledger_id} was fenced by another client ({cause}). Entries after "
        f"{confirmed} may or may not be written: treat this like a time-out. Open the ledger to "
        "recover it and read what is there; do not append the same rows elsewhere before that",
        ledger_id=ledger.ledger_id,
    )


def deleted_error(
    ledger: Ledger, confirmed: EntryId, found: NoSuchLedgerError | None = None
) -> NoSuchLedgerError:
    """Return the error of a writer whose ledger was deleted; ``found`` is from its metadata."""
    said = "" if found is None else f". What was found: {found.message}"
    return NoSuchLedgerError(
        f"ledger {ledger.ledger_id} was DELETED by another client while this writer was at it. "
        f"Nothing of it can be read any more, also not what was acknowledged (up to {confirmed}); "
        "later entries may or may not have been written, and are gone with it. Create another "
        f"ledger, and append there what is to be kept{said}",
        ledger_id=ledger.ledger_id,
    )


def error_of_fence(
    context: ClientContext, ledger: Ledger, confirmed: EntryId, cause: str
) -> BookKeeperError:
    """Return the error of a fenced writer: the metadata tell a recovery from a deletion."""
    try:
        read_again(context.store, ledger.ledger_id, ledger.metadata.nonce)
    except NoSuchLedgerError as found:
        return deleted_error(ledger, confirmed, found)
    except BookKeeperError:
        pass  # the fence itself is certain
    return fenced_error(ledger, confirmed, cause)


def close_ledger(
    context: ClientContext,
    ledger: Ledger,
    known: Versioned[LedgerMetadata],
    confirmed: EntryId,
    length_bytes: int,
) -> Versioned[LedgerMetadata]:
    """Close a ledger at the last entry that its writer acknowledged; return its metadata.

    Raises:
        LedgerFencedError, LedgerClosedError: it is not as this writer left it.
        NoSuchLedgerError: it was deleted.
        MetadataUnavailableError: it is unknown whether it is closed.
    """

    def closed(old: LedgerMetadata) -> LedgerMetadata | None:
        if old.is_closed and (old.last_entry_id, old.length_bytes) == (confirmed, length_bytes):
            return None  # another client closed it exactly where this writer would
        check_open(ledger, old, confirmed)
        return old.closed(confirmed, length_bytes)

    try:
        return update_ledger(context.store, ledger.ledger_id, closed, known=known)
    except NoSuchLedgerError as error:
        raise deleted_error(ledger, confirmed, error) from error
