"""Publish an ensemble without the failed bookies, by compare-and-swap while OPEN.

The writer starts it under its lock. It runs in the background, because ZooKeeper may be slow.

Source: The BookKeeper protocol, "Writing to ledgers" (a failed bookie is replaced by a new
fragment); SLOT-LOG rule R7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, with_incarnations
from spark_bookkeeper.client.write.writer_lifecycle import check_open, deleted_error
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookKeeperError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import read_again, update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.placement import members, replace_bookies
from spark_bookkeeper.protocol.writer import ChangeEnsemble
from spark_bookkeeper.storage import retry_policy

if TYPE_CHECKING:
    from spark_bookkeeper.client.write.delivery import Delivery
    from spark_bookkeeper.runtime.runtime import Condition


def change_ensemble(
    context: ClientContext,
    ledger: Ledger,
    known: Versioned[LedgerMetadata],
    first: EntryId,
    failed: Mapping[int, BookieId],
    excluded: Mapping[BookieId, str],
    *,
    may_stay: bool = False,
) -> Versioned[LedgerMetadata] | None:
    """Replace failed bookies from entry ``first`` on.

    Args:
        failed: by position; a bookie that another client replaced meanwhile is left as it is.
        excluded: bookies that this writer must not choose, with the reason: those that are lost to
            it, and those that it left and cannot go back to yet.
        may_stay: none of them is lost (it is read-only, or has no agent), so the writer can go on
            without a change.

    Returns:
        the stored metadata; ``None``, only with ``may_stay``, when no bookie can replace them or
        the store does not answer, and certainly nothing was written.

    Raises:
        NotEnoughBookiesError: with every bookie and why it was not chosen. Nothing was written.
        LedgerFencedError, LedgerClosedError: the ledger is not OPEN any more.
        NoSuchLedgerError, MetadataUnavailableError: as ``update_ledger``.
    """
    is_written = False
    """Whether a write has begun, whose answer may be lost. Once true it stays true, even if the
    step runs again."""

    def without(old: LedgerMetadata) -> LedgerMetadata | None:
        nonlocal is_written
        new = _with_others(context, ledger, old, first, failed, excluded)
        is_written = is_written or new is not None
        return new

    runtime = context.runtime
    until = runtime.now() + retry_policy.SETTLE_SECONDS
    try:
        while True:
            try:
                if is_written:  # an answer was lost
                    known = read_again(context.store, ledger.ledger_id, ledger.metadata.nonce)
                return update_ledger(context.store, ledger.ledger_id, without, known=known)
            except MetadataUnavailableError:
                if may_stay and not is_written:
                    return None
                # The writer may stay only if nothing was written. Find out: all bookies serve.
                if not may_stay or runtime.now() >= until:
                    raise
            runtime.sleep(retry_policy.SETTLE_PAUSE_SECONDS)
    except NoSuchLedgerError as error:
        raise deleted_error(ledger, EntryId(first - 1), error) from error
    except NotEnoughBookiesError:
        if may_stay:
            return None
        # The ledger may be another client's by now, which explains more than the bookies do.
        now = read_again(context.store, ledger.ledger_id, ledger.metadata.nonce)
        check_open(ledger, now.value, EntryId(first - 1))
        raise


def _with_others(
    context: ClientContext,
    ledger: Ledger,
    old: LedgerMetadata,
    first: EntryId,
    failed: Mapping[int, BookieId],
    excluded: Mapping[BookieId, str],
) -> LedgerMetadata | None:
    """Return the metadata without the failed bookies; ``None`` if they are replaced already."""
    check_open(ledger, old, EntryId(first - 1))
    ensemble = old.last_fragment.ensemble
    positions = [p for p, bookie in failed.items() if ensemble[p] == bookie]
    if not positions:
        return None
    alive = context.bookies.registrations()
    unfit = members(ensemble, alive) | dict(excluded)
    # Other clients may have changed earlier fragments, and so the incarnations that are meant.
    current = ledger.with_metadata(old)
    reasons = context.bookies.ineligible(alive, len(positions), current, unfit)
    candidates = context.bookies.candidates(alive)
    chosen = replace_bookies(old.quorum, ensemble, positions, candidates, reasons)
    added = {b: alive[b].incarnation for b in chosen if b not in ensemble}
    return with_incarnations(old.with_new_ensemble(first, chosen), added)


class Changing(Protocol):
    """The writer whose ensemble is changed. Its lock is held during each call."""

    ledger: Ledger
    versioned: Versioned[LedgerMetadata]

    @property
    def is_ended(self) -> bool:
        """Whether nothing is sent any more, and no channel opened."""

    def not_again(self, first: EntryId) -> dict[BookieId, str]:
        """Return bookies that were left and cannot get entries from ``first`` on, with reasons."""

    def ensemble_changed(self, updated: Versioned[LedgerMetadata] | None) -> None:
        """Report that the ensemble was changed; ``None``: it stays as it is."""

    def ensemble_not_changed(self, error: BookKeeperError) -> None:
        """Report that no other ensemble could be published."""

    def fail(self, error: BookKeeperError) -> None:
        """Acknowledge no further entry."""


class EnsembleChanges:
    """The changes that one writer makes, and the bookies that are lost to it.

    Args:
        context: the client's.
        lock: the writer's.
        delivery: called after every change, outside the lock.
        writer: requests the changes.
    """

    def __init__(
        self, context: ClientContext, lock: Condition, delivery: Delivery, writer: Changing
    ) -> None:
        self.lost: dict[BookieId, str] = {}
        """Every bookie that is lost to the writer, with the reason. The lock is held."""
        self.full: set[BookieId] = set()
        """The lost bookies that had no space."""
        self._context = context
        self._lock = lock
        self._delivery = delivery
        self._writer = writer

    def begin(self, wanted: ChangeEnsemble) -> None:
        """Start a change. The lock is held."""
        try:
            self._context.runtime.spawn("ensemble-change", lambda: self._change(wanted))
        except RuntimeError:  # no more threads
            cause = "no thread could be started to change the ensemble"
            self._writer.fail(self.gave_up(cause, wanted.first))

    def excluded(self, first: EntryId) -> dict[BookieId, str]:
        """Return bookies that cannot get entries from ``first`` on, with reasons. The lock is held.

        They are lost to the writer, or it left them and cannot go back to them yet.
        """
        return self._writer.not_again(first) | self.lost

    def gave_up(self, cause: str, first: EntryId) -> AppendFailedError:
        """Return the error of a writer for which no ensemble is left.

        Args:
            first: the first entry that is not acknowledged.
        """
        ledger_id = self._writer.ledger.ledger_id
        untold = ((bookie, why) for bookie, why in sorted(self.lost.items()) if why not in cause)
        lost = "; ".join(f"{bookie} {why}" for bookie, why in untold)
        count = len(self.full)
        bookies = "1 bookie is" if count == 1 else f"{count} bookies are"
        acknowledged = f"entry {first - 1} is the last" if first else "no entry is"
        return AppendFailedError(
            (f"{bookies} full: " if count else "")
            + f"ledger {ledger_id} takes no more entries from this writer; {acknowledged} "
            "acknowledged. What was appended behind may or may not be written: open the ledger to "
            f"recover it, and read to know. The cause: {cause}"
            + (f". Bookies: {lost}" if lost else ""),
            ledger_id=ledger_id,
        )

    def _change(self, wanted: ChangeEnsemble) -> None:
        writer = self._writer
        with self._lock:
            excluded = self.excluded(wanted.first)
        try:
            updated = change_ensemble(
                self._context,
                writer.ledger,
                writer.versioned,
                wanted.first,
                wanted.failed,
                excluded,
                may_stay=wanted.may_stay,
            )
        except Exception as caught:  # noqa: BLE001  (whatever it was, nobody may wait for ever)
            unforeseen = AppendFailedError(f"{type(caught).__name__}: {caught}")
            error = caught if isinstance(caught, BookKeeperError) else unforeseen
            with self._lock:
                if writer.is_ended:
                    return
                if not isinstance(error, LedgerError):
                    error = self.gave_up(error.message, wanted.first)
                writer.ensemble_not_changed(error)
        else:
            with self._lock:
                if writer.is_ended:
                    return
                writer.ensemble_changed(updated)
        self._delivery.deliver()
