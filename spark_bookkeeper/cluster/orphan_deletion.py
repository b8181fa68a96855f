"""Deleting ledgers that nobody owns, when a person has said so.

Between a plan and its end somebody may claim a ledger: a writer that was frozen goes on and enters
it into its log. So whose each is, is asked again just before it goes, and it goes as
``deletion.delete_ledger`` has it: never under a writer that lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.deletion import delete_ledger
from spark_bookkeeper.cluster.orphans import OwnedLedger, ledgers_with_owners
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.report import Outcome, Report, Row
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.runtime.spool import Spool

LEDGERS_AT_ONCE: Final = 100
"""For so many it is asked together whose they are, and then they are deleted."""

_CLAIMED: Final = "somebody owns it by now"


class OrphansReport(Report):
    """Of ``delete_orphans``: a row for each ledger that nobody owned and that is old enough."""


def delete_orphans(
    context: ClientContext,
    created_before_ms: int,
    *,
    dry_run: bool = True,
    progress: Progress = no_progress,
) -> OrphansReport:
    """Delete the ledgers of ``orphans()`` that were created before a time.

    One of which it is not known when it was created stays.

    Args:
        created_before_ms: milliseconds since 1970, by the clocks of those who created them.
    """
    started = context.runtime.now()
    doomed = [
        (ledger_id, known)
        for ledger_id, known in ledgers_with_owners(context).items()
        if _is_doomed(known, created_before_ms)
    ]
    rows: Spool[Row] = Spool()
    if dry_run:
        rows.extend(_row(ledger_id, known, Outcome.PLANNED) for ledger_id, known in doomed)
    else:
        progress("deleting ledgers", 0, len(doomed), 0)
        following = iter(doomed)
        while some := list(islice(following, LEDGERS_AT_ONCE)):
            rows.extend(_deleted(context, some))
            progress("deleting ledgers", len(rows), len(doomed), 0)
    duration_ms = round((context.runtime.now() - started) * 1000)
    return OrphansReport("delete_orphans", rows, dry_run, duration_ms)


def _deleted(context: ClientContext, some: Sequence[tuple[LedgerId, OwnedLedger]]) -> Iterator[Row]:
    now = ledgers_with_owners(context, [ledger_id for ledger_id, _ in some])
    for ledger_id, known in some:
        again = now.get(ledger_id)
        if again is None:
            yield _row(ledger_id, known, Outcome.GONE)
        elif again.unowned is None:
            yield _row(ledger_id, known, Outcome.NO_LONGER_NEEDED, _CLAIMED)
        else:
            try:
                delete_ledger(context, ledger_id)
            except BookKeeperError as error:
                yield _row(ledger_id, known, Outcome.LEFT, error.message)
            else:
                yield _row(ledger_id, known, Outcome.DELETED)


def _is_doomed(known: OwnedLedger, created_before_ms: int) -> bool:
    if known.metadata is None or known.unowned is None:
        return False
    created_ms = known.metadata.ctime_ms
    return created_ms is not None and 0 <= created_ms < created_before_ms


def _row(
    ledger_id: LedgerId, known: OwnedLedger, status: Outcome, reason: str | None = None
) -> Row:
    assert known.metadata is not None
    length = known.metadata.length_bytes or 0
    return Row(ledger_id, "delete", status, reason or known.unowned, bytes=length)
