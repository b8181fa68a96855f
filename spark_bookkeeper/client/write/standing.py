"""What has become of the writer of a ledger: whether it writes, and why not any more."""

from __future__ import annotations

from spark_bookkeeper.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
)
from spark_bookkeeper.protocol.ids import EntryId, LedgerId


class Standing:
    """Of one writer. Changed with its lock held."""

    def __init__(self) -> None:
        self.error: BookKeeperError | None = None
        """Why no further entry will be acknowledged; the first reason stays."""
        self.was_told = False
        """Whether the error was raised to some caller."""
        self.is_closing = False
        """No more entries are taken."""
        self.is_ended = False
        """Nothing is sent any more."""
        self.is_closed = False
        self.is_abandoned = False

    @property
    def state(self) -> str:
        """In a word or two, for people."""
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
        """No further entry will be acknowledged; returns the reason that stays."""
        self.error = self.error or error
        return self.error

    def told(self, error: BookKeeperError) -> BookKeeperError:
        """The error for one more caller, who knows of it from now on."""
        self.was_told = True
        return error.again()

    def account(
        self, ledger_id: LedgerId, confirmed: EntryId, pushed: EntryId, *, is_unknown: bool
    ) -> str:
        """What is certain of a ledger that its writer leaves open.

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
