"""Read how far an open ledger has come, without fencing its bookies."""

from __future__ import annotations

from dataclasses import dataclass

from spark_bookkeeper.bookie.bookie import NewestRecord
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import BookieError, MetadataFormatError
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Newest:
    """How far a ledger has come; for people, as everything about its age (SLOT-LOG rule R17)."""

    last_add_confirmed: EntryId | None = None
    """The highest LAC that any bookie of the last fragment knows; a little behind the writer's.

    ``None`` when none of them answered, or the ledger is another client's.
    """
    stored_at_ms: int | None = None
    """When the newest entry was stored, in milliseconds since 1970 by the bookie's clock."""


def newest_entry(context: ClientContext, ledger_id: LedgerId, metadata: LedgerMetadata) -> Newest:
    """Query the bookies of the last fragment, all at once; nothing is fenced.

    If they have stored nothing yet, the time of the newest entry is from an earlier fragment.
    """
    try:
        ledger = Ledger.of(ledger_id, metadata)
    except MetadataFormatError:
        return Newest()

    def look(bookie: BookieId) -> NewestRecord | None:
        try:
            return context.bookies.replica(bookie, ledger).newest()
        except BookieError:
            return None

    confirmed: EntryId | None = None
    for fragment in reversed(metadata.fragments):
        asked = context.runtime.map(look, list(fragment.ensemble))
        told = [each for each in asked if each is not None]
        if fragment is metadata.last_fragment and told:
            highest = max(newest.last_add_confirmed for newest in told)
            confirmed = EntryId(max(fragment.first_entry_id - 1, highest))
        moments = [newest.stored_at_ms for newest in told if newest.stored_at_ms is not None]
        if moments or not told:
            return Newest(confirmed, max(moments, default=None))
    return Newest(confirmed)
