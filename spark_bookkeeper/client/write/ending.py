"""The end of a ledger, fixed by its own writer: by compare-and-swap, while it is OPEN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.write.foreign import check_open, deleted_error
from spark_bookkeeper.errors import NoSuchLedgerError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

if TYPE_CHECKING:
    from spark_bookkeeper.client.context import ClientContext


def close_ledger(
    context: ClientContext,
    ledger: Ledger,
    known: Versioned[LedgerMetadata],
    confirmed: EntryId,
    length_bytes: int,
) -> Versioned[LedgerMetadata]:
    """Close a ledger at the last entry that its writer acknowledged; returns its metadata.

    Raises:
        LedgerFencedError, LedgerClosedError: it is not as this writer left it.
        NoSuchLedgerError: it was deleted.
        MetadataUnavailableError: whether it is closed is not known.
    """

    def closed(old: LedgerMetadata) -> LedgerMetadata | None:
        if old.is_closed and (old.last_entry_id, old.length_bytes) == (confirmed, length_bytes):
            return None  # somebody closed it exactly where this writer would
        check_open(ledger, old, confirmed)
        return old.closed(confirmed, length_bytes)

    try:
        return update_ledger(context.store, ledger.ledger_id, closed, known=known)
    except NoSuchLedgerError as error:
        raise deleted_error(ledger, confirmed, error) from error
