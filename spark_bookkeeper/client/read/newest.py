"""How far a ledger has come that is not closed, as its bookies tell without being disturbed."""

from __future__ import annotations

from dataclasses import dataclass

from spark_bookkeeper.bookie.record import RecordKind
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import BookieError, MetadataFormatError
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Newest:
    """The front of a ledger; for people, as everything about its age (SLOT-LOG rule R17)."""

    last_add_confirmed: EntryId | None = None
    """The highest that any bookie of the last fragment was told; a little behind the writer's.

    ``None`` when none of them answered, or the ledger is another client's.
    """
    stored_at_ms: int | None = None
    """When the newest entry was stored, in milliseconds since 1970 by the bookie's clock."""


def newest_entry(context: ClientContext, ledger_id: LedgerId, metadata: LedgerMetadata) -> Newest:
    """Ask the bookies of the last fragment, all at once; nothing is fenced.

    Where nothing was stored there yet, the fragment before it says when the newest entry came.
    """
    try:
        ledger = Ledger.of(ledger_id, metadata)
    except MetadataFormatError:
        return Newest()

    def look(bookie: BookieId) -> tuple[EntryId, int | None] | None:
        try:
            return _newest_at(context, ledger, bookie)
        except BookieError:
            return None

    confirmed: EntryId | None = None
    for fragment in reversed(metadata.fragments):
        asked = context.runtime.map(look, list(fragment.ensemble))
        told = [each for each in asked if each is not None]
        if fragment is metadata.last_fragment and told:
            confirmed = EntryId(max(fragment.first_entry_id - 1, *(lac for lac, _ in told)))
        moments = [moment for _, moment in told if moment is not None]
        if moments or not told:
            return Newest(confirmed, max(moments, default=None))
    return Newest(confirmed)


def _newest_at(
    context: ClientContext, ledger: Ledger, bookie: BookieId
) -> tuple[EntryId, int | None]:
    """The LAC in the newest record on a bookie, and when that was stored."""
    log = context.bookies.log(bookie, ledger)
    confirmed = NO_ENTRY
    for record in log.records(newest_first=True):
        if record.kind is RecordKind.ADD:
            confirmed = max(confirmed, EntryId(record.last_add_confirmed))
            if len(record.ids):  # and not only an explicit LAC
                return confirmed, log.storage.modified_ms(ledger.key.slot(record.slot))
    return confirmed, None
