"""An ensemble without the bookies that failed, published by compare-and-swap while OPEN.

Source: The BookKeeper protocol, "Writing to ledgers" (a failed bookie is replaced by a new
fragment); SLOT-LOG rule R7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, with_incarnations
from spark_bookkeeper.errors import (
    LedgerClosedError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import read_again, update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.placement import members, replace_bookies

SETTLE_SECONDS: Final = 60.0
"""For so long it is asked whether a change was made that could have been left alone."""

SETTLE_PAUSE_SECONDS: Final = 1.0
"""Between two such questions."""


def change_ensemble(
    context: ClientContext,
    ledger: Ledger,
    known: Versioned[LedgerMetadata],
    first: EntryId,
    failed: Mapping[int, BookieId],
    left: Mapping[BookieId, str],
    *,
    may_stay: bool = False,
) -> Versioned[LedgerMetadata] | None:
    """Replace failed bookies from entry ``first`` on.

    Args:
        failed: by position; one that somebody else replaced meanwhile is left as it is.
        left: every bookie this writer has given up, with the reason; none is chosen again.
        may_stay: they are only read-only, so the writer can go on without a change.

    Returns:
        what is stored now; ``None``, only with ``may_stay``, when nobody can take their place or
        could be asked about, and nothing was written for certain.

    Raises:
        NotEnoughBookiesError: with every bookie and why it was not chosen. Nothing was written.
        LedgerFencedError, LedgerClosedError: the ledger is not OPEN any more.
        NoSuchLedgerError, MetadataUnavailableError: as ``update_ledger``.
    """
    is_written = False
    """Whether a write was begun, whose answer may have been lost."""

    def without(old: LedgerMetadata) -> LedgerMetadata | None:
        nonlocal is_written
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
        candidates = context.bookies.candidates(alive)
        chosen = replace_bookies(old.quorum, ensemble, positions, candidates, reasons)
        added = {b: alive[b].incarnation for b in chosen if b not in ensemble}
        new = with_incarnations(old.with_new_ensemble(first, chosen), added)
        is_written = True
        return new

    runtime = context.runtime
    until = runtime.now() + SETTLE_SECONDS
    try:
        while True:
            try:
                if is_written:  # an answer was lost
                    known = read_again(context.store, ledger.ledger_id, ledger.metadata.nonce)
                return update_ledger(context.store, ledger.ledger_id, without, known=known)
            except MetadataUnavailableError:
                if may_stay and not is_written:
                    return None
                # Staying would need to know that nothing was written, and the bookies all serve.
                if not may_stay or runtime.now() >= until:
                    raise
            runtime.sleep(SETTLE_PAUSE_SECONDS)
    except NoSuchLedgerError as error:
        raise deleted_error(ledger, EntryId(first - 1), error) from error
    except NotEnoughBookiesError:
        if may_stay:
            return None
        # The ledger may be another client's by now, which explains more than the bookies do.
        now = read_again(context.store, ledger.ledger_id, ledger.metadata.nonce)
        check_open(ledger, now.value, EntryId(first - 1))
        raise


def check_open(ledger: Ledger, found: LedgerMetadata, confirmed: EntryId) -> None:
    """Raises the error that tells a writer what became of its ledger, unless it is OPEN.

    And unless it is as its writer left it: while a ledger is OPEN, nobody else gives it another
    last fragment.
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
    # One at the next entry is the writer's own, if the answer to that change was lost.
    if first not in (ledger.metadata.last_fragment.first_entry_id, confirmed + 1):
        cause = f"it has a fragment at entry {first} that this writer did not make"
        raise fenced_error(ledger, confirmed, cause)


def fenced_error(ledger: Ledger, confirmed: EntryId, cause: str) -> LedgerFencedError:
    """What a writer is told that lost its ledger to a recovery."""
    return LedgerFencedError(
        f"ledger {ledger.ledger_id} was fenced by another client ({cause}). Entries after "
        f"{confirmed} may or may not be written: treat this like a time-out. Open the ledger to "
        "recover it and read what is there; do not append the same rows elsewhere before that",
        ledger_id=ledger.ledger_id,
    )


def deleted_error(
    ledger: Ledger, confirmed: EntryId, found: NoSuchLedgerError | None = None
) -> NoSuchLedgerError:
    """What a writer is told whose ledger was deleted; ``found`` is what its metadata said."""
    said = "" if found is None else f". What was found: {found.message}"
    return NoSuchLedgerError(
        f"ledger {ledger.ledger_id} was DELETED by another client while this writer was at it. "
        f"Nothing of it can be read any more, also not what was acknowledged (up to {confirmed}); "
        "later entries may or may not have been written, and are gone with it. Create another "
        f"ledger, and append there what is to be kept{said}",
        ledger_id=ledger.ledger_id,
    )
