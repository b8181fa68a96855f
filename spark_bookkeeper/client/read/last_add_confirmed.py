"""How far a ledger that is not closed is known to be acknowledged: its bookies are asked."""

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
"""Of one ledger, by bookie: each knows how far it has looked."""


def read_last_add_confirmed(
    context: ClientContext, ledger: Ledger, replicas: Replicas | None = None
) -> EntryId:
    """The highest entry of an open ledger that is known to be acknowledged; fences nothing.

    All are asked at once. One that is silent is not waited for when another has answered; one
    that was silent before is asked only when no other answers.

    Args:
        context: the cluster.
        ledger: as its metadata are now.
        replicas: kept from one call to the next by who asks often: only the first call lists slots.

    Source: BookKeeper ``client/TryReadLastConfirmedOp``: any answer helps, the highest counts.

    Raises:
        EntryUnreadableError: no bookie of the last fragment answered.
    """
    told = [tail.last_add_confirmed for tail in read_tails(context, ledger, replicas)]
    return EntryId(max(ledger.metadata.last_fragment.first_entry_id - 1, *told))


def read_tails(
    context: ClientContext, ledger: Ledger, replicas: Replicas | None = None
) -> list[LedgerTail]:
    """What the bookies say, one at the least; see ``read_last_add_confirmed``."""
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
    """What the bookies say, without those that are late when another answered; and why not."""
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
            replicas.pop(bookie, None)  # it may have moved: the next look asks where it is
            causes[bookie] = error.message
