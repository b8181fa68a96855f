"""What other clients did to the ledger of a writer, and what the writer is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata.update import read_again
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from spark_bookkeeper.client.context import ClientContext


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


def error_of_fence(
    context: ClientContext, ledger: Ledger, confirmed: EntryId, cause: str
) -> BookKeeperError:
    """What a writer is told that met a fence: the metadata tell a recovery from a deletion."""
    try:
        read_again(context.store, ledger.ledger_id, ledger.metadata.nonce)
    except NoSuchLedgerError as found:
        return deleted_error(ledger, confirmed, found)
    except BookKeeperError:
        pass  # that it was fenced is certain
    return fenced_error(ledger, confirmed, cause)
