"""An ensemble without the bookies that failed, published by compare-and-swap while OPEN.

Source: The BookKeeper protocol, "Writing to ledgers" (a failed bookie is replaced by a new
fragment); SLOT-LOG rule R7.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, with_incarnations
from spark_bookkeeper.errors import LedgerClosedError, LedgerFencedError, NotEnoughBookiesError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import read_again, update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.placement import members, replace_bookies


def change_ensemble(
    context: ClientContext,
    ledger: Ledger,
    known: Versioned[LedgerMetadata],
    first: EntryId,
    failed: Mapping[int, BookieId],
    left: Mapping[BookieId, str],
) -> Versioned[LedgerMetadata]:
    """Replace failed bookies from entry ``first`` on.

    Args:
        failed: by position; one that somebody else replaced meanwhile is left as it is.
        left: every bookie this writer has given up, with the reason; none is chosen again.

    Raises:
        NotEnoughBookiesError: with every bookie and why it was not chosen. Nothing was written.
        LedgerFencedError, LedgerClosedError: the ledger is not OPEN any more.
        NoSuchLedgerError, MetadataUnavailableError: as ``update_ledger``.
    """

    def without(old: LedgerMetadata) -> LedgerMetadata | None:
        check_open(ledger, old, EntryId(first - 1))
        ensemble = old.last_fragment.ensemble
        positions = [p for p, bookie in failed.items() if ensemble[p] == bookie]
        if not positions:
            return None
        alive = context.bookies.registrations()
        excluded = members(ensemble, alive) | dict(left)
        # Others may have changed earlier fragments, and with them which incarnations are meant.
        current = ledger.with_metadata(old)
        reasons = context.bookies.ineligible(alive, len(positions), current, excluded)
        chosen = replace_bookies(ensemble, positions, context.bookies.candidates(alive), reasons)
        added = {b: alive[b].incarnation for b in chosen if b not in ensemble}
        return with_incarnations(old.with_new_ensemble(first, chosen), added)

    try:
        return update_ledger(context.store, ledger.ledger_id, without, known=known)
    except NotEnoughBookiesError:
        # The ledger may be another client's by now, which explains more than the bookies do.
        now = read_again(context.store, ledger.ledger_id, ledger.metadata.nonce)
        check_open(ledger, now.value, EntryId(first - 1))
        raise


def check_open(ledger: Ledger, found: LedgerMetadata, confirmed: EntryId) -> None:
    """Raises the error that tells a writer what became of its ledger, unless it is OPEN."""
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


def fenced_error(ledger: Ledger, confirmed: EntryId, cause: str) -> LedgerFencedError:
    """What a writer is told that lost its ledger to a recovery."""
    return LedgerFencedError(
        f"ledger {ledger.ledger_id} was fenced by another client ({cause}). Entries after "
        f"{confirmed} may or may not be written: treat this like a time-out. Open the ledger to "
        "recover it and read what is there; do not append the same rows elsewhere before that",
        ledger_id=ledger.ledger_id,
    )
