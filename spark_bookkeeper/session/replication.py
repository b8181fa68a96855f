"""Calls that replace copies: of lost bookies and disks, and those found missing or damaged.

Each call imports its own job: every program and command imports this module, but few use a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.accepted_loss import AcceptedLoss
from spark_bookkeeper.protocol.arguments import check_flag
from spark_bookkeeper.protocol.ids import parse_bookie_id
from spark_bookkeeper.runtime.progress import told
from spark_bookkeeper.session.arguments import (
    error_text,
    ids_of,
    known_bookies,
    list_of,
    percentage_of,
    rate_of,
)
from spark_bookkeeper.session.handle import ClusterHandle

if TYPE_CHECKING:
    from spark_bookkeeper.autorecovery.publishing import AuditReport
    from spark_bookkeeper.config import AutorecoveryConfig
    from spark_bookkeeper.replication.report import CheckReport, RecoveryReport
    from spark_bookkeeper.replication.runner import Progress, Runner


def recover_ledgers(
    self: ClusterHandle,
    ledger_ids: Iterable[int] | None = None,
    *,
    accept_loss: bool | RecoveryReport = False,
    gone: str | Sequence[str] = (),
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RecoveryReport:
    """Fence, recover and close ledgers that are not closed, as one Spark job.

    Args:
        ledger_ids: which; ``None`` is every one that is not closed. One that does not exist gets a
            row with the status ``gone``, and one that cannot be closed now, ``left``.
        accept_loss: close a ledger at the last entry that is left, if too many bookies are gone
            for good to find its end. First pass ``True`` in a dry run: its rows ``given up`` show
            the entries that may be missing. Then pass its report, which accepts only these.
            ``LedgerReader.accepted_loss`` records the loss. This cannot be undone.
        gone: bookies that are gone for good. One that was formatted again need not be named.
        dry_run: only report what would be closed; with ``accept_loss`` also at which entry.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Raises:
        InvalidArgumentError: ``accept_loss`` without ledgers, or ``True`` and no dry run, or
            ``gone`` without ``accept_loss``.
    """
    from spark_bookkeeper.replication.recover_ledgers import recover_ledgers as recover_ledgers_job
    from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row

    shown: Iterable[Row] = ()
    if isinstance(accept_loss, RecoveryReport):
        shown = accept_loss.rows
    else:
        check_flag("accept_loss", accept_loss)
    wanted = ids_of(ledger_ids)
    named = tuple(map(parse_bookie_id, [gone] if isinstance(gone, str) else list_of("gone", gone)))
    if accept_loss and not wanted:
        raise InvalidArgumentError("accept_loss: name the ledgers; it is never meant for all")
    if named and not accept_loss:
        raise InvalidArgumentError(f"gone={gone!r} goes with accept_loss: it says what is lost")
    if accept_loss is True and not dry_run:
        raise InvalidArgumentError("dry_run=True shows the loss; accept_loss=report accepts that")
    who = str(self.context.writer or WriterInfo.of_this_process())
    loss = AcceptedLoss(who, self.context.runtime.wall_ms(), named)
    spans: dict[Any, list[Any]] = {each: [] for each in wanted or () if accept_loss}
    for row in shown:
        if row.status is Outcome.GIVEN_UP and row.ledger_id in spans:
            spans[row.ledger_id].append((row.first_entry_id, row.last_entry_id))
    accepting = {each: replace(loss, missing=tuple(found)) for each, found in spans.items()}
    return self.reported(
        "recover_ledgers",
        error_text("ledger", wanted),
        dry_run,
        progress,
        lambda runner, tell: recover_ledgers_job(
            self.context, runner, wanted, dry_run=dry_run, accepting=accepting, progress=tell
        ),
    )


def recover_bookie(
    self: ClusterHandle,
    bookie_ids: str | Sequence[str],
    target: str | None = None,
    *,
    ledger_ids: Iterable[int] | None = None,
    skip_open_ledgers: bool = False,
    even_if_alive: bool = False,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> RecoveryReport:
    """Copy the data of lost bookies to other bookies, as a Spark job.

    Args:
        bookie_ids: one lost bookie, or several at once.
        target: where to copy to; ``None`` chooses a random suitable bookie per fragment.
        ledger_ids: only these.
        skip_open_ledgers: skip ledgers that would have to be fenced and closed.
        even_if_alive: also for a bookie that is registered.
        dry_run: show what would be done; nothing is changed.
        bytes_per_second: limit for the whole job.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Raises:
        InvalidArgumentError: a bookie is alive or unknown, or the target does not fit.
    """
    from spark_bookkeeper.replication.recover_bookie import BookieRecovery
    from spark_bookkeeper.replication.recover_bookie import recover_bookie as recover_bookie_job

    names = [bookie_ids] if isinstance(bookie_ids, str) else list_of("bookie_ids", bookie_ids)
    if not names:
        raise InvalidArgumentError("no bookie was named; bookies() shows which are lost")
    wish = BookieRecovery(
        bookies=tuple(parse_bookie_id(name) for name in names),
        target=None if target is None else parse_bookie_id(target),
        ledger_ids=None if ledger_ids is None else tuple(ids_of(ledger_ids) or ()),
        skip_open_ledgers=skip_open_ledgers,
        even_if_alive=even_if_alive,
        bytes_per_second=rate_of(bytes_per_second),
    )
    return self.reported(
        "recover_bookie",
        error_text("bookie", wish.bookies),
        dry_run,
        progress,
        lambda runner, tell: recover_bookie_job(
            self.context, runner, wish, dry_run=dry_run, progress=tell
        ),
    )


def refill_bookie(
    self: ClusterHandle,
    bookie_id: str,
    *,
    ledger_ids: Iterable[int] | None = None,
    skip_open_ledgers: bool = False,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> RecoveryReport:
    """Copy back to a bookie whose disk was replaced what it should hold, as a Spark job.

    The bookie must be formatted again (``bookie format --replaced``) and registered. Until it holds
    its whole part of a ledger, it needs refill for that ledger, and its answers do not count.

    Args:
        bookie_id: the bookie.
        ledger_ids: only these.
        skip_open_ledgers: skip ledgers that would have to be fenced and closed.
        dry_run: show what would be done; nothing is changed.
        bytes_per_second: limit for the whole job.
        progress: called with phase, items done, items in all, bytes so far.

    Raises:
        InvalidArgumentError: the bookie is not registered, or a ledger does not exist.
    """
    from spark_bookkeeper.replication.refill_bookie import Refill
    from spark_bookkeeper.replication.refill_bookie import refill_bookie as refill_bookie_job

    wish = Refill(
        bookie=parse_bookie_id(bookie_id),
        ledger_ids=None if ledger_ids is None else tuple(ids_of(ledger_ids) or ()),
        skip_open_ledgers=skip_open_ledgers,
        bytes_per_second=rate_of(bytes_per_second),
    )
    return self.reported(
        "refill_bookie",
        f"bookie {bookie_id}",
        dry_run,
        progress,
        lambda runner, tell: refill_bookie_job(
            self.context, runner, wish, dry_run=dry_run, progress=tell
        ),
    )


def check_ledgers(
    self: ClusterHandle,
    ledger_ids: Iterable[int] | None = None,
    *,
    percentage: int = 0,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Report which shares of which fragments are missing or damaged, as a Spark job.

    Args:
        ledger_ids: which; ``None`` is all. One that does not exist is a row with the status
            ``gone``.
        percentage: of the entries that are read and verified, besides the first and the last
            of every share; 100 verifies every digest.
        bytes_per_second: limit on reading, for the whole job; ``None`` is no limit.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Raises:
        InvalidArgumentError: ``percentage`` is not a whole number from 0 to 100.
    """
    from spark_bookkeeper.replication.check_ledgers import check_ledgers as check_ledgers_job

    wanted, share, rate = ids_of(ledger_ids), percentage_of(percentage), rate_of(bytes_per_second)
    return self.reported(
        "check_ledgers",
        error_text("ledger", wanted),
        False,
        progress,
        lambda runner, tell: check_ledgers_job(
            self.context, runner, wanted, share, bytes_per_second=rate, progress=tell
        ),
    )


def repair_ledgers(
    self: ClusterHandle,
    ledger_ids: Iterable[int] | None = None,
    *,
    percentage: int = 100,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> RecoveryReport:
    """Replace missing and damaged copies on the bookies that should hold them, as a Spark job.

    It does not replace lost bookies; ``recover_bookie`` does.

    Args:
        ledger_ids: which; ``None`` is all.
        percentage: of the entries that are checked, as in ``check_ledgers``. Damage of the other
            entries remains, so the default reads every replica of every entry.
        dry_run: only report what would be copied.
        bytes_per_second: limit for the whole job.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.
    """
    from spark_bookkeeper.replication.repair_ledgers import repair_ledgers as repair_ledgers_job

    wanted, share, rate = ids_of(ledger_ids), percentage_of(percentage), rate_of(bytes_per_second)
    return self.reported(
        "repair_ledgers",
        error_text("ledger", wanted),
        dry_run,
        progress,
        lambda runner, tell: repair_ledgers_job(
            self.context,
            runner,
            wanted,
            percentage=share,
            dry_run=dry_run,
            bytes_per_second=rate,
            progress=tell,
        ),
        looks_on_spark=True,
    )


def audit(
    self: ClusterHandle, *, dry_run: bool = False, progress: Progress | None = None
) -> AuditReport:
    """Run one round of the auditor: publish every ledger that relies on an absent bookie.

    The round is a Spark job if there are 100,000 ledgers or more.

    Raises:
        InvalidArgumentError: autorecovery is disabled, and nothing was published. If it is disabled
            later, the report shows what was published, and has a row about the rest.
    """
    from spark_bookkeeper.autorecovery.publishing import publish_lost_bookies

    runner = self.runner("audit")
    with told(progress, "audit") as tell:
        report = publish_lost_bookies(self.context, runner=runner, dry_run=dry_run, progress=tell)
    return replace(report, frame=self.frames.from_arrow)


def rereplicate(
    self: ClusterHandle,
    *,
    bookie_id: str | None = None,
    config: AutorecoveryConfig | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RecoveryReport:
    """Run one round of replication work, as Spark jobs: repair published ledgers where possible.

    An open ledger with a lost bookie is left until the grace period of its writer is over; a
    later round closes it.

    Args:
        bookie_id: copy to this bookie only, as a worker that runs next to it does. Fragments of
            which it has a share already are left to other workers.
        config: how long to wait before repetitions, and without Spark how many ledgers at once.

    Raises:
        InvalidArgumentError: the bookie is unknown, or autorecovery is disabled. If it is
            disabled during the round, the report shows what is left.
    """
    from spark_bookkeeper.autorecovery.names import process_name
    from spark_bookkeeper.autorecovery.worker import ReplicationWorker, runner_of_worker
    from spark_bookkeeper.autorecovery.worker import rereplicate as rereplicate_round
    from spark_bookkeeper.config import AutorecoveryConfig

    local = None if bookie_id is None else parse_bookie_id(bookie_id)
    if local is not None:
        known_bookies(self.context, [local])

    def run(runner: Runner, tell: Progress) -> RecoveryReport:
        chosen = config or AutorecoveryConfig()
        own = runner_of_worker(self.context, runner, chosen)
        worker = ReplicationWorker(self.context, own, chosen, process_name(local), local)
        return rereplicate_round(self.context, worker, dry_run=dry_run, progress=tell)

    about = None if local is None else error_text("bookie", [local])
    return self.reported("rereplicate", about, dry_run, progress, run)
