"""Read the last add confirmed of a ledger that is not closed, from its bookies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_bookkeeper.bookie.holdings import LedgerTail
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.bookies.gather import Gather, TimedOut
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import BookieError, EntryUnreadableError
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId

Replicas = dict[BookieId, Replica]
"""The replicas of one ledger by bookie; each remembers how far it has listed."""


def read_last_add_confirmed(
    context: ClientContext, ledger: Ledger, replicas: Replicas | None = None
) -> EntryId:
    """Return the highest entry of an open ledger that is known to be acknowledged; fence nothing.

    Queries all bookies at once. Once a bookie has answered, it does not wait for those that time
    out. It queries a bookie that timed out before only if no other bookie answers.

    Args:
        context: the cluster.
        ledger: the ledger, with its metadata as it is now.
        replicas: kept between calls by a caller that reads often: only the first call lists slots.

    Source: BookKeeper ``client/TryReadLastConfirmedOp``: any answer helps, the highest counts.

    Raises:
        EntryUnreadableError: no bookie of the last fragment answered.
    """
    told = [tail.last_add_confirmed for tail in read_tails(context, ledger, replicas)]
    return EntryId(max(ledger.metadata.last_fragment.first_entry_id - 1, *told))


def read_tails(
    context: ClientContext, ledger: Ledger, replicas: Replicas | None = None
) -> list[LedgerTail]:
    """Return the answers of the bookies, at least one; see ``read_last_add_confirmed``."""
    causes: dict[str, str] = {}
    ensemble = ledger.metadata.last_fragment.ensemble
    silent = [b for b in ensemble if context.bookies.is_silent(b)]
    for bookies in ([b for b in ensemble if b not in silent], silent):
        tails = list(_tails(context, ledger, bookies, causes, {} if replicas is None else replicas))
        if tails:
            return tails
    said = "\n".join(f"  {bookie}: {why}" for bookie, why in causes.items())
    raise EntryUnreadableError(
        f"the last add confirmed of ledger {ledger.ledger_id} cannot be read: no bookie of its "
        f"last fragment answered\n{said}",
        ledger_id=ledger.ledger_id,
        entry_id=NO_ENTRY,
        causes=causes,
    )


def _tails(
    context: ClientContext,
    ledger: Ledger,
    bookies: Sequence[BookieId],
    causes: dict[str, str],
    replicas: Replicas,
) -> Iterator[LedgerTail]:
    """Yield the answers, without late ones if another came; note failures in ``causes``."""
    answers = Gather[BookieId, LedgerTail](context.runtime)
    for bookie in bookies:
        try:
            replica = replicas.get(bookie)
            if replica is None or replica.ledger.incarnation != ledger.incarnations.get(bookie):
                replicas[bookie] = replica = context.bookies.replica(bookie, ledger)
            purpose = f"reading the end of ledger {ledger.ledger_id}"
            answers.ask(bookie, context.bookies.bookie_client(bookie), purpose, replica.tail)
        except BookieError as error:
            causes[bookie] = error.message
    count = 0
    while count == 0 or answers.is_waited_for():
        came = answers.next(context.config.read_hedge_ms / 1000)
        if came is None:
            break
        if isinstance(came, TimedOut):
            continue
        bookie, tail = came
        try:
            yield tail()
            count += 1
        except BookieError as error:
            replicas.pop(bookie, None)  # it may have moved: the next call looks it up
            causes[bookie] = error.message
