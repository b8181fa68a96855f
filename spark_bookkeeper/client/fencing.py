"""Stop a ledger's writer, before any decision about the ledger.

The ledger is flagged IN_RECOVERY, so that the writer cannot change its metadata. Then its bookies
are fenced: once every write set is covered, the writer can acknowledge nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.names import ledger_called
from spark_bookkeeper.client.recover.recovery import flag
from spark_bookkeeper.errors import BookieError, MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Fencing:
    """How far one ledger is fenced."""

    ledger_id: LedgerId
    state: str
    """OPEN, IN_RECOVERY or CLOSED, as it was found; a closed one has no writer to stop."""
    fenced: Sequence[BookieId] = ()
    """The bookies of its last fragment that take nothing more from the writer."""
    not_fenced: Mapping[BookieId, str] = field(default_factory=dict)
    """The other bookies of that fragment, with the reason."""
    is_stopped: bool = True
    """Whether no append that begins now is ever acknowledged: in each write set enough bookies are
    fenced, Qw - Qa + 1."""


def fence_ledger(context: ClientContext, called: int | str, *, dry_run: bool = False) -> Fencing:
    """Stop the writer of a ledger without closing it; see ``BookKeeper.fence_ledger``."""
    ledger_id = ledger_called(context, called)
    found = context.store.read_ledger(ledger_id)
    Ledger.of(ledger_id, found.value)  # another client's is refused, and not flagged
    if dry_run and not found.value.is_closed:
        bookies = dict.fromkeys(
            found.value.last_fragment.ensemble, "a dry run: nothing was changed"
        )
        return Fencing(ledger_id, found.value.state.name, (), bookies, is_stopped=False)
    return stop_writer(context, ledger_id, found)[1]


def stop_writer(
    context: ClientContext, ledger_id: LedgerId, found: Versioned[LedgerMetadata]
) -> tuple[Versioned[LedgerMetadata], Fencing]:
    """Flag and fence a ledger unless it is closed; idempotent. Also return its metadata."""
    state = found.value.state.name
    flagged = update_ledger(context.store, ledger_id, flag, known=found)
    metadata = flagged.value
    if metadata.is_closed:
        return flagged, Fencing(ledger_id, state)

    def fence(bookie: BookieId) -> str | None:
        try:
            context.bookies.replica(bookie, Ledger.of(ledger_id, metadata)).fence()
        except BookieError as error:
            return error.message
        except MetadataFormatError:
            return "the ledger is another client's, which is fenced otherwise"
        except NoSuchLedgerError:  # a tombstone: it takes nothing either
            return None
        return None

    ensemble = metadata.last_fragment.ensemble
    said = dict(zip(ensemble, context.runtime.map(fence, list(ensemble)), strict=True))
    not_fenced = {bookie: why for bookie, why in said.items() if why is not None}
    fenced = {p: bookie for p, bookie in enumerate(ensemble) if bookie not in not_fenced}
    is_stopped = metadata.quorum.has_coverage(fenced.keys())
    return flagged, Fencing(ledger_id, state, tuple(fenced.values()), not_fenced, is_stopped)
