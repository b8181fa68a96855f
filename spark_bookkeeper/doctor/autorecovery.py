"""Whether autorecovery copies the data of lost bookies, so that no operator needs to."""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.autorecovery.control import AutorecoveryControl, AutorecoveryStatus
from spark_bookkeeper.autorecovery.publishing import LEDGERS_AT_ONCE
from spark_bookkeeper.autorecovery.table import not_repaired_now, without_worker
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.runner import LocalRunner

_WHERE: Final = "`spark-bookkeeper autorecovery underreplicated` shows what is left, and why"


@dataclass(frozen=True)
class AutorecoverySeen:
    """The state of autorecovery at one time."""

    status: AutorecoveryStatus
    unfit: str | None
    """Why no suitable process does the work, and what to do."""
    published: Set[LedgerId]
    """Ledgers with a task."""
    looked_at: int = 0
    """The number of ledgers for which it was checked whether a running worker can repair them: at
    most ``LEDGERS_AT_ONCE``, spread evenly over all ledgers with a task."""
    without_worker: tuple[tuple[LedgerId, str], ...] = ()
    """The checked ledgers that no running worker can repair, and why."""
    waiting: tuple[tuple[LedgerId, str], ...] = ()
    """The other checked ledgers that are not repaired now, and why."""

    @staticmethod
    def of(context: ClientContext, ledger_id: LedgerId | None = None) -> AutorecoverySeen:
        """Read the state for all ledgers, or for one. Raises ``MetadataUnavailableError``."""
        control = AutorecoveryControl(context, lambda _: LocalRunner(context))
        status, unfit = control.status(), control.warning()
        tree = context.store.underreplication
        published = frozenset(tree.ledger_ids() if status.underreplicated else ())
        if ledger_id is not None:
            published &= {ledger_id}
        if not published or status.auditor is None or unfit is not None:
            return AutorecoverySeen(status, unfit, published)
        some = sorted(published)[:: -(-len(published) // LEDGERS_AT_ONCE)]
        without = tuple(without_worker(context, some))
        others = sorted(set(some).difference(ledger_id for ledger_id, _ in without))
        waiting = tuple(not_repaired_now(context, others))
        return AutorecoverySeen(status, unfit, published, len(some), without, waiting)

    def instead_of_recover(self, lacking: Collection[LedgerId]) -> str | None:
        """Return how autorecovery makes the copies that ledgers lack, in place of an operator.

        Returns:
            ``None`` if autorecovery does not copy all of them.
        """
        status = self.status
        if status.auditor is None or self.unfit is not None or self.without_worker:
            return None
        if self.published >= set(lacking):
            return f"autorecovery is at work on it: {_WHERE}"
        when = "when its auditor looks next"
        if status.lost_bookie_recovery_delay:
            when = f"once a bookie was away for {status.lost_bookie_recovery_delay:,} s"
        return (
            f"autorecovery takes it up {when} (at once: `spark-bookkeeper autorecovery "
            f"trigger-audit`); {_WHERE}"
        )
