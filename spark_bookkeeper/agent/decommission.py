"""Draining and decommissioning a bookie: its data is copied to others, then its cookie is removed.

A call ends when it cannot go on, and reports what remains and why. Another call does the rest.

Source: BookKeeper ``client/BookKeeperAdmin.decommissionBookie``, which waits, without limit, for
autorecovery to do the work; here the call does the work, as manual bookie recovery does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from spark_bookkeeper.agent.cookies import forget_bookie
from spark_bookkeeper.agent.dependents import dependents_of
from spark_bookkeeper.agent.readonly import set_readonly
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import InvalidArgumentError, MetadataError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, report_rows
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress
from spark_bookkeeper.runtime.spool import Spool

OBEYED_WITHIN_S: Final = 20.0
"""Time for an agent to obey an order; it reads orders at every probe, by default every 5 s."""

ROUNDS_MAX: Final = 5
"""The most repetitions for ledgers that a bookie gets while it is drained."""


@dataclass(frozen=True, repr=False)
class DecommissionReport(RecoveryReport):
    """The report of ``decommission_bookie`` and ``drain_bookie``: the copies, and what remains."""

    remaining: tuple[int, ...] = ()
    """Ledgers that still count on the bookie."""
    blocked_by: str | None = None
    """Why its cookie stays, or why it is not drained; ``None`` on success and in a dry run."""

    @property
    def is_complete(self) -> bool:
        """Whether no ledger counts on it, and its cookie is removed if that was requested."""
        return super().is_complete and not self.remaining and self.blocked_by is None

    def totals(self) -> dict[str, Any]:
        """Return the totals of every job, and ``remaining`` and ``blocked_by``."""
        return {
            **super().totals(),
            "remaining": list(self.remaining),
            "blocked_by": self.blocked_by,
        }


def drain_bookie(
    context: ClientContext,
    runner: Runner,
    bookie: BookieId,
    *,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress = no_progress,
) -> DecommissionReport:
    """Make a bookie read-only, and copy all its data to others; it stays in the cluster.

    The drain is complete when no ledger counts on the bookie any more. The order to be read-only
    stays until ``set_writable``. Ledgers that are open on it are fenced, recovered and closed.

    Raises:
        InvalidArgumentError: it is unknown. Nothing was changed.
    """
    obeys = dry_run or _obeys(context, bookie)
    report = _emptied(
        context,
        runner,
        BookieRecovery((bookie,), even_if_alive=True, bytes_per_second=bytes_per_second),
        dry_run=dry_run,
        progress=progress,
    )
    blocked_by = None
    if (report.remaining or report.unfinished) and not dry_run:
        left = next(iter(report.unfinished), None)
        blocked_by = left.reason if left else "it got new data meanwhile"
    if not obeys and blocked_by is None:
        blocked_by = (
            f"its agent has not made it read-only within {OBEYED_WITHIN_S:.0f} s, so new data may "
            "come: look at its log, and repeat"
        )
    return replace(report, job="drain_bookie", blocked_by=blocked_by)


def _obeys(context: ClientContext, bookie: BookieId) -> bool:
    """Order a bookie to be read-only. Return whether it is read-only or not registered.

    A bookie that is down gets the order too: it holds when its agent starts.
    """
    store = context.store
    if bookie in context.bookies.registrations() or store.cookie_version(bookie) is not None:
        set_readonly(store, bookie, "it is drained", context.runtime.wall_ms())
    deadline = context.runtime.now() + OBEYED_WITHIN_S
    while True:
        found = context.bookies.registrations().get(bookie)
        if found is None or found.is_readonly:
            return True
        if context.runtime.now() >= deadline:
            return False
        context.runtime.sleep(0.2)


def decommission_bookie(
    context: ClientContext,
    runner: Runner,
    bookie: BookieId,
    *,
    drain: bool = False,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress = no_progress,
) -> DecommissionReport:
    """Copy all data of a bookie to others, and remove its cookie.

    Args:
        drain: also while the bookie is alive: it is made read-only first. Then its cookie stays
            until it is stopped, and this is called again.

    Raises:
        InvalidArgumentError: it is alive and not to be drained, or unknown. Nothing was changed.
    """
    is_alive = bookie in context.bookies.registrations()
    if not drain and is_alive:
        raise InvalidArgumentError(
            f"bookie {bookie} is alive (registered); nothing was changed. Stop its agent, or use "
            "drain (--drain), and its data is copied while it runs"
        )
    if drain and is_alive:
        report = drain_bookie(
            context,
            runner,
            bookie,
            dry_run=dry_run,
            bytes_per_second=bytes_per_second,
            progress=progress,
        )
    else:
        wish = BookieRecovery((bookie,), even_if_alive=drain, bytes_per_second=bytes_per_second)
        report = _emptied(context, runner, wish, dry_run=dry_run, progress=progress)
    blocked_by = None
    if not dry_run:
        # A ledger whose metadata cannot be read may count on it as well.
        left = next((row for row in report.unfinished if row.status is Outcome.LEFT), None)
        blocked_by = left.reason if left is not None else _forget(context, bookie)
    return replace(report, job="decommission_bookie", blocked_by=blocked_by)


def _emptied(
    context: ClientContext,
    runner: Runner,
    wish: BookieRecovery,
    *,
    dry_run: bool,
    progress: Progress,
) -> DecommissionReport:
    """Copy all its data to others, repeatedly while new data comes, and report what remains."""
    (bookie,) = wish.bookies
    report = recover_bookie(context, runner, wish, dry_run=dry_run, progress=progress)
    rows = Spool(report.rows)
    took_ms = report.duration_ms
    remaining = dependents_of(context.store, bookie).ledger_ids
    for _ in range(ROUNDS_MAX):
        if dry_run or not remaining or report.unfinished:
            break
        try:
            report = recover_bookie(context, runner, wish, progress=progress)
        except InvalidArgumentError:  # the bookie is alive again, so the recovery is refused
            break
        rows.extend(report.rows)
        took_ms += report.duration_ms
        remaining = dependents_of(context.store, bookie).ledger_ids
    return DecommissionReport(
        report.job,
        report_rows(rows),
        dry_run,
        took_ms,
        columns=report.columns,
        remaining=tuple(remaining),
    )


def _forget(context: ClientContext, bookie: BookieId) -> str | None:
    if context.store.cookie_version(bookie) is None:
        return None  # its cookie was deleted before
    if bookie in context.bookies.registrations():
        return "it is alive (registered): stop its agent, and repeat, which removes its cookie"
    try:
        forget_bookie(context.store, bookie)
    except (InvalidArgumentError, MetadataError) as error:
        return error.message
    return None
