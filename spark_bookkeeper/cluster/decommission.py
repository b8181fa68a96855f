"""Taking a bookie away for good: its data made again elsewhere, and then its cookie removed.

It ends, and says what remains and what is in the way. Begun again it does the rest.

Source: BookKeeper ``client/BookKeeperAdmin.decommissionBookie``, which waits for autorecovery to do
the work, for as long as that takes; here the work is done, as in manual bookie recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.cluster.cookies import forget_bookie
from spark_bookkeeper.cluster.dependents import ledgers_that_name
from spark_bookkeeper.errors import InvalidArgumentError, MetadataError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.report import RecoveryReport
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress

ROUNDS_MAX: Final = 5
"""A bookie that takes data while it is drained gets new ledgers meanwhile."""


@dataclass(frozen=True)
class DecommissionReport(RecoveryReport):
    """Of ``decommission_bookie``: what was copied, and whether the bookie is gone for good."""

    remaining: tuple[int, ...] = ()
    """Ledgers that count on the bookie still."""
    blocked_by: str | None = None
    """Why it is not forgotten; ``None`` when it is, and in a dry run."""

    @property
    def is_complete(self) -> bool:
        """Whether its cookie is removed, and nothing counts on it."""
        return super().is_complete and not self.remaining and self.blocked_by is None

    def to_dict(self) -> dict[str, Any]:
        """As every job's, and what remains and what is in the way."""
        return {
            **super().to_dict(),
            "remaining": list(self.remaining),
            "blocked_by": self.blocked_by,
        }


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
    """Make all that a bookie holds again on others, and remove its cookie.

    Args:
        drain: also while it is alive. Then its cookie stays until it is stopped, and this is asked
            for again.

    Raises:
        InvalidArgumentError: it is alive and not to be drained, or unknown. Nothing was changed.
    """
    if not drain and bookie in context.bookies.registrations():
        raise InvalidArgumentError(
            f"bookie {bookie} is alive (registered); nothing was changed. Stop its agent, or use "
            "drain (--drain), and its data is copied while it runs"
        )
    wish = BookieRecovery((bookie,), even_if_alive=drain, bytes_per_second=bytes_per_second)
    report = recover_bookie(context, runner, wish, dry_run=dry_run, progress=progress)
    rows = list(report.rows)
    remaining = ledgers_that_name(context.store, bookie)
    for _ in range(ROUNDS_MAX):
        if dry_run or not remaining or report.unfinished:
            break
        report = recover_bookie(context, runner, wish, progress=progress)
        rows += report.rows
        remaining = ledgers_that_name(context.store, bookie)
    blocked_by = None if dry_run else _forget(context, bookie)
    whole = replace(report, job="decommission_bookie", rows=tuple(rows))
    return DecommissionReport(
        whole.job,
        whole.rows,
        dry_run,
        whole.duration_ms,
        columns=whole.columns,
        remaining=tuple(remaining),
        blocked_by=blocked_by,
    )


def _forget(context: ClientContext, bookie: BookieId) -> str | None:
    if context.store.cookie_version(bookie) is None:
        return None  # it was forgotten before
    try:
        forget_bookie(context.store, bookie)
    except (InvalidArgumentError, MetadataError) as error:
        return error.message
    return None
