"""The auditor: it notices lost bookies, publishes ledgers that lack replicas, and repeats checks.

Leader election allows one at a time; two by mistake would publish the same tasks.

Source: Bookie Ledger Recovery, "Auditor"; BookKeeper ``replication/Auditor``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from spark_bookkeeper.autorecovery.checks import (
    ABSENT_BOOKIE,
    AuditorCheck,
    Found,
    check_all_ledgers,
    check_placement,
    show_results,
    write_result,
)
from spark_bookkeeper.autorecovery.delay import read_delay
from spark_bookkeeper.autorecovery.notes import forget_what_is_done
from spark_bookkeeper.autorecovery.publishing import (
    DISABLED,
    AuditReport,
    DisabledError,
    EndedError,
    check_enabled,
    publish_lost_bookies,
)
from spark_bookkeeper.autorecovery.replica_count import check_replicas
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import registered_incarnations
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import BookKeeperError, MetadataFormatError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.lost_bookies import LostBookies
from spark_bookkeeper.protocol.task_notes import back_off, next_check_at
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import Runner, reason_of
from spark_bookkeeper.runtime.throttle import LOOK_SECONDS

_log = logging.getLogger(__name__)

ReportT = TypeVar("ReportT", bound=AuditReport)

_WAIT_MOST_SECONDS: Final = 60.0
"""The longest wait before the auditor looks again, with or without a notice from a watch."""

_SECOND_LOOK_SECONDS: Final = 60.0
"""All bookies are checked once more this long after a loss. A writer may have chosen the bookie
before it went, and have named it in the metadata after they were read."""

_BEGUN_MS: Final = 0
"""The stored time of a first check until it ends. The check is due all the same. An operator who
requests a check meanwhile removes this value, and the auditor notices that."""

_LISTED_SECONDS: Final = 60.0
"""The least interval between two counts of the tasks for their gauge, and between two searches for
notes without tasks: each lists all tasks."""


class UnfinishedScanError(BookKeeperError):
    """Not all ledgers were scanned. Published tasks stay, and the scan is to be repeated."""


class Auditor:
    """The elected auditor, from the moment that it is made. Call ``step`` and ``check``, and each
    again after the seconds that it returned.

    Two tasks may call them at once: a check may take hours, and a bookie that goes must be noticed
    at once.

    Args:
        is_over: whether its election has ended, or its process ends: then a running check ends
            soon, and the next auditor begins it anew.
    """

    def __init__(
        self,
        context: ClientContext,
        runner: Runner,
        config: AutorecoveryConfig,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.was_cut_off = False
        """Set when its session has ended. If elected again, it begins like a new auditor, for
        bookies may have been cut off with it."""
        self._is_over = is_over
        self._switch_seen_at = 0.0
        self._context = context
        self._runner = runner
        self._config = config
        self._bookies: LostBookies | None = None
        self._delay: Versioned[int] | None = None
        self._bookies_due_at: float | None = None
        """When all bookies are checked again; ``None``: now."""
        self._next_check_ms: int | None = None
        """When the next check is due."""
        self._in_vain: dict[Check, tuple[int, float]] = {}
        """Of each check: the failures since its last success, and when to try again."""
        self._counted_at: float | None = None
        """When the tasks were counted last."""
        self._tidied_at: float | None = None
        """When notes without tasks were removed last."""

    @property
    def can_check(self) -> bool:
        """Whether ledgers may be checked: the bookies were read, and none is away with time left.

        A task that is published while a bookie is away might be needless in a minute.
        """
        bookies = self._bookies
        return bookies is not None and not bookies.away

    def step(self, changed: Callable[[], None]) -> float:
        """Read the registered bookies, and publish the ledgers of lost ones.

        Returns:
            the seconds after which to call it again at the latest.

        Args:
            changed: called once when it should be called sooner.

        Raises:
            BookKeeperError: something could not be done, and is to be tried again.
        """
        self._show()  # not in check, which may take hours
        tree = self._context.store.underreplication
        is_enabled = tree.is_enabled(changed)
        if self.was_cut_off or not is_enabled:
            self.was_cut_off = False
            # Bookies that come and go meanwhile are not seen, so all are checked afterwards.
            self._bookies = self._bookies_due_at = None
        if not is_enabled:
            return _WAIT_MOST_SECONDS
        try:
            self._look_at_bookies(changed)
            assert self._bookies is not None
            if self.can_check:
                self._check_bookies()
        except (DisabledError, EndedError):
            return _WAIT_MOST_SECONDS
        if self._bookies.due_at is None:
            return _WAIT_MOST_SECONDS
        left = self._bookies.due_at - self._context.runtime.now()
        return min(_WAIT_MOST_SECONDS, max(0.0, left))

    def check(self, changed: Callable[[], None]) -> float:
        """Run due checks of ledgers, if ``can_check``. Argument and result are as for ``step``."""
        if not self._context.store.underreplication.is_enabled(changed) or not self.can_check:
            return _WAIT_MOST_SECONDS
        try:
            self._check_ledgers(changed)
        except (DisabledError, EndedError):
            return _WAIT_MOST_SECONDS
        self._tidy()
        if self._next_check_ms is None:
            return _WAIT_MOST_SECONDS
        left = (self._next_check_ms - self._context.cluster_ms()) / 1000
        return min(_WAIT_MOST_SECONDS, max(0.0, left))

    def _tidy(self) -> None:
        now = self._context.runtime.now()
        if self._tidied_at is None or now - self._tidied_at >= _LISTED_SECONDS:
            forget_what_is_done(self._context)
            self._tidied_at = now

    # The bookies

    def _look_at_bookies(self, changed: Callable[[], None]) -> None:
        store, now = self._context.store, self._context.runtime.now()
        before, self._delay = self._delay, self._read_delay(changed)
        is_first = self._bookies is None
        if self._bookies is None:  # known bookies that are away are news to a new auditor
            known = frozenset(cookie.value.bookie_id for cookie in store.cookies())
            self._bookies = LostBookies(known)
        registered = self._context.bookies.registrations()
        available = registered_incarnations(registered)
        delay = self._delay.value
        if not is_first and before is not None and before.version != self._delay.version:
            if delay == 0 or delay == before.value:
                _log.info("an audit was asked for")
                self._bookies_due_at = None
                # All absent bookies are checked below, also those that had time left.
                self._bookies = LostBookies(self._bookies.known & available.keys())
            else:
                self._bookies = self._bookies.delay_changed(now)
        before_away = self._bookies.away.keys()
        session_seconds = self._context.config.metadata_timeout_ms / 1000
        self._bookies, lost = self._bookies.seen(available, delay, session_seconds, now)
        away, metrics = self._bookies.away.keys(), self._context.metrics
        if new := away - before_away:
            left = (self._bookies.due_at or now) - now
            metrics.audits_delayed.inc(len(new))
            _log.info("away: %s; lost in %.0f s unless back", ", ".join(sorted(new)), left)
        if back := before_away - away - lost:
            metrics.delayed_audits_cancelled.inc(len(back))
            _log.info("back, or not waited for any more: %s", ", ".join(sorted(back)))
        if lost:
            try:
                report = self._published(f"bookies {', '.join(sorted(lost))} are lost", lost)
            except BaseException:
                self._bookies = self._bookies.audit_failed(lost)
                raise
            self._bookies = self._bookies.back(report.back)
            second_at = self._context.runtime.now() + _SECOND_LOOK_SECONDS
            if self._bookies_due_at is not None:
                self._bookies_due_at = min(self._bookies_due_at, second_at)

    def _read_delay(self, changed: Callable[[], None]) -> Versioned[int]:
        tree = self._context.store.underreplication
        found = read_delay(tree, changed)
        if found.seconds is None:  # BookKeeper's shell cannot read a delay that was never set
            tree.set_delay_seconds(0)
            found = read_delay(tree, changed)
        if found.warning is not None and found.seconds != self._delay:
            _log.warning("%s", found.warning)
        return found.seconds or Versioned(0, 0)

    def _check_bookies(self) -> None:
        """Check every bookie that any ledger names, even one without registration and cookie."""
        interval_s, now = self._config.bookie_check_interval_s, self._context.runtime.now()
        if self._bookies_due_at is not None and now < self._bookies_due_at:
            return
        report = self._published("all bookies were looked for", None)
        found = Found()
        found.ledgers = report.looked_at
        for row in report.rows:
            if row.status is Outcome.PUBLISHED:
                found.add(ABSENT_BOOKIE, LedgerId(row.ledger_id))
        self._bookies_due_at = now + interval_s if interval_s > 0 else math.inf
        try:
            result = found.result(None, self._context.cluster_ms(), report.duration_ms)
            write_result(self._context.store.registers, result)
        except BookKeeperError as error:  # it is for people: not worth another scan
            _log.warning("what the look for bookies found is not kept: %s", error.message)

    def _published(self, why: str, lost: frozenset[BookieId] | None) -> AuditReport:
        report = self._scanned(partial(publish_lost_bookies, self._context, lost, heed=self._go_on))
        self._context.metrics.auditing.observe(report.duration_ms)
        _log.info("%s: %d ledgers published", why, report.marked_ledgers)
        if report.is_cut_short:  # so the rest is scanned later
            raise DisabledError(DISABLED)
        _check_whole(report)
        return report

    def _scanned(self, scan: Callable[..., ReportT]) -> ReportT:
        """Run a scan on Spark, or here if Spark fails: no other process may do it."""
        if not self._runner.is_elsewhere:
            return scan()
        try:
            report = scan(runner=self._runner)
            if report.failure is None:
                return report
            reason = report.failure
        except (DisabledError, EndedError):
            raise
        except Exception as error:  # noqa: BLE001  (also when the JVM of Spark has ended)
            reason = reason_of(error, "a scan")
        _log.warning("the scan was not all done by Spark, and is done here: %s", reason)
        return scan()

    # The checks

    def _check_ledgers(self, changed: Callable[[], None]) -> None:
        config, context = self._config, self._context
        limit = config.check_bytes_per_second or None
        checks: dict[Check, Callable[[], AuditorCheck]] = {
            Check.ALL_LEDGERS: partial(
                check_all_ledgers,
                context,
                self._runner,
                config.ledger_check_percentage,
                bytes_per_second=limit,
                heed=self._heed,
            ),
            Check.PLACEMENT: partial(
                self._scanned, partial(check_placement, context, heed=self._heed)
            ),
            Check.REPLICAS: partial(
                check_replicas, context, self._runner, bytes_per_second=limit, heed=self._heed
            ),
        }
        tree = context.store.underreplication
        self._next_check_ms = None
        failure: Exception | None = None
        for check, run in checks.items():
            interval_ms, now_ms = self._interval_ms(check), context.cluster_ms()
            last = self._checked_at(check, changed)
            due = next_check_at(None if last is None else last.value, interval_ms, now_ms)
            if due is None:
                continue
            if last is not None and last.value > now_ms:
                # A stored time in the future would postpone the check at every look.
                tree.set_checked_at_ms(check, now_ms, last)
            at_ms = due if due > now_ms else now_ms + interval_ms
            self._next_check_ms = min(at_ms, self._next_check_ms or at_ms)
            if due > now_ms:
                continue
            if last is None:  # an operator requests it, perhaps after a failure
                last = tree.set_checked_at_ms(check, _BEGUN_MS, None)
                if last is None:
                    continue  # another auditor began it, so this one is not elected any more
            elif check in self._in_vain:
                left = self._in_vain[check][1] - context.runtime.now()
                if left > 0:
                    at_ms = now_ms + math.ceil(left * 1000)
                    self._next_check_ms = min(at_ms, self._next_check_ms)
                    continue
            try:
                self._check_and_remember(check, run, last)
            except (DisabledError, EndedError, MetadataUnavailableError):
                raise  # it concerns the other checks too
            except Exception as error:  # noqa: BLE001  (raised when the others have been done)
                failure = failure or error
                self._wait_for(check, error)
            else:
                self._in_vain.pop(check, None)
        if failure is not None:
            raise failure

    def _checked_at(self, check: Check, changed: Callable[[], None]) -> Versioned[int] | None:
        """Return when a check ended last; remove an unreadable time, so that it is due now."""
        tree = self._context.store.underreplication
        try:
            return tree.checked_at_ms(check, changed)
        except MetadataFormatError as error:
            _log.warning("%s is done now: %s", check.name.lower(), error.message)
            tree.forget_checked(check)
            return None

    def _check_and_remember(
        self, check: Check, run: Callable[[], AuditorCheck], last: Versioned[int]
    ) -> None:
        """Run one check, and store its result and its time.

        Args:
            last: the stored time of the last run.
        """
        context, tree = self._context, self._context.store.underreplication
        report = run()
        _check_whole(report)
        # The result first: if the process is killed in between, the check is repeated.
        if report.result is not None:
            write_result(context.store.registers, report.result)
        tree.set_checked_at_ms(check, context.cluster_ms(), last)
        context.metrics.checking[check.name.lower()].observe(report.duration_ms)
        _log.info("%s: %s", report.job, report.counts or "nothing was found")

    def _wait_for(self, check: Check, error: Exception) -> None:
        """Delay the next attempt, longer each time: a check may read all ledgers and fail."""
        attempts = self._in_vain.get(check, (0, 0.0))[0] + 1
        wait_ms = back_off(attempts, self._config.retry_first_ms, self._config.retry_most_ms)
        self._in_vain[check] = attempts, self._context.runtime.now() + wait_ms / 1000
        what = f"the check of {check.name.lower()}"
        _log.warning("%s, again in %.0f s: %s", what, wait_ms / 1000, reason_of(error, what))

    def _go_on(self) -> None:
        """Raise ``EndedError`` if a scan is to end."""
        if self._is_over():
            raise EndedError

    def _heed(self) -> None:
        """Raise if a check is to end. The switch is read every few seconds."""
        self._go_on()
        now = self._context.runtime.now()
        if now - self._switch_seen_at >= LOOK_SECONDS:
            check_enabled(self._context)
            self._switch_seen_at = now  # not when it raises: the next call must raise, too

    def _show(self) -> None:
        """Set the gauges, also from the results that an earlier auditor stored."""
        store, metrics = self._context.store, self._context.metrics
        now = self._context.runtime.now()
        try:
            if self._counted_at is None or now - self._counted_at >= _LISTED_SECONDS:
                self._counted_at = now
                tasks = sum(1 for _ in store.underreplication.ledger_ids())
                metrics.underreplicated_ledgers.set(tasks)
            show_results(metrics, store.registers)
        except Exception as error:  # noqa: BLE001  (what cannot be shown stops no check)
            _log.warning("gauges are not set: %s", reason_of(error, "showing what checks found"))

    def _interval_ms(self, check: Check) -> int:
        config = self._config
        return (
            1000
            * {
                Check.ALL_LEDGERS: config.ledger_check_interval_s,
                Check.PLACEMENT: config.placement_check_interval_s,
                Check.REPLICAS: config.replicas_check_interval_s,
            }[check]
        )


def _check_whole(report: AuditReport) -> None:
    if report.failure is not None:
        raise UnfinishedScanError(report.failure)
