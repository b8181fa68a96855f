"""The auditor: notices lost bookies, publishes what lacks replicas, and checks now and then.

There is one at a time as far as anybody can tell; two would publish the same.

Source: Bookie Ledger Recovery, "Auditor"; BookKeeper ``replication/Auditor``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from spark_bookkeeper.autorecovery.checks import (
    check_all_ledgers,
    check_placement,
    check_replicas,
)
from spark_bookkeeper.autorecovery.notes import forget_what_is_done
from spark_bookkeeper.autorecovery.publishing import (
    DISABLED,
    AuditReport,
    DisabledError,
    audit_bookies,
)
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import registered_incarnations
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.lost_bookies import LostBookies
from spark_bookkeeper.protocol.task_notes import next_check_at
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import Runner

_log = logging.getLogger(__name__)

_WAIT_MOST_SECONDS: Final = 60.0
"""Looked at again after so long, whatever is told or not told."""


class Auditor:
    """In office from the moment that it is made. Call ``step`` and ``check``, and each again when
    what it returned has passed.

    They may be called by two tasks at once: a check may take hours, and a bookie that goes is
    news at once.
    """

    def __init__(self, context: ClientContext, runner: Runner, config: AutorecoveryConfig) -> None:
        self._context = context
        self._runner = runner
        self._config = config
        self._bookies: LostBookies | None = None
        self._delay: Versioned[int] | None = None
        self._bookies_due_at: float | None = None
        """When all bookies are looked for again; ``None`` is now."""
        self._next_check_ms: int | None = None
        """When the first of the checks is due."""

    @property
    def can_check(self) -> bool:
        """Whether ledgers may be checked: no bookie is waited for, and all were looked at.

        What is marked while one is away might be needless in a minute.
        """
        bookies = self._bookies
        return bookies is not None and bookies.waiting is None

    def step(self, changed: Callable[[], None]) -> float:
        """Look at the bookies, and publish what the lost ones held.

        Returns:
            after how many seconds to look again at the latest.

        Args:
            changed: called once when it is to look sooner.

        Raises:
            BookKeeperError: something could not be done, and is to be tried again.
        """
        tree = self._context.store.underreplication
        if not tree.is_enabled(changed):
            self._bookies = (
                None  # who comes and goes meanwhile is not seen: then all are looked for
            )
            self._bookies_due_at = None
            return _WAIT_MOST_SECONDS
        try:
            self._look_at_bookies(changed)
            assert self._bookies is not None
            if self.can_check:
                self._check_bookies()
        except DisabledError:
            return _WAIT_MOST_SECONDS
        if self._bookies.due_at is None:
            return _WAIT_MOST_SECONDS
        left = self._bookies.due_at - self._context.runtime.now()
        return min(_WAIT_MOST_SECONDS, max(0.0, left))

    def check(self, changed: Callable[[], None]) -> float:
        """Do the checks of ledgers that are due, if ``can_check``; otherwise as ``step``."""
        if not self._context.store.underreplication.is_enabled(changed) or not self.can_check:
            return _WAIT_MOST_SECONDS
        try:
            self._check_ledgers()
        except DisabledError:
            return _WAIT_MOST_SECONDS
        forget_what_is_done(self._context)
        if self._next_check_ms is None:
            return _WAIT_MOST_SECONDS
        left = (self._next_check_ms - self._context.cluster_ms()) / 1000
        return min(_WAIT_MOST_SECONDS, max(0.0, left))

    # The bookies

    def _look_at_bookies(self, changed: Callable[[], None]) -> None:
        store, now = self._context.store, self._context.runtime.now()
        before, self._delay = self._delay, self._read_delay(changed)
        is_first = self._bookies is None
        if self._bookies is None:  # those that are known and away are news to a new auditor
            known = frozenset(cookie.value.bookie_id for cookie in store.cookies())
            self._bookies = LostBookies(known)
        registered = self._context.bookies.registrations()
        available = registered_incarnations(registered)
        delay = self._delay.value
        if not is_first and before is not None and before.version != self._delay.version:
            if delay == 0 or delay == before.value:
                _log.info("an audit was asked for")
                self._bookies_due_at = None
                # All that are away are looked for below, also the one that had time left.
                self._bookies = LostBookies(self._bookies.known & available.keys())
            else:
                self._bookies = self._bookies.delay_changed(delay, now)
        was_waiting = self._bookies.waiting
        self._bookies, lost = self._bookies.seen(available, delay, now)
        waiting = self._bookies.waiting
        if waiting is not None and waiting != was_waiting:
            _log.info("bookie %s is away; it is lost in %d s unless it is back", waiting, delay)
        elif was_waiting is not None and waiting is None and was_waiting not in lost:
            _log.info("bookie %s is back, or is not waited for any more", was_waiting)
        if lost:
            try:
                self._published(f"bookies {', '.join(sorted(lost))} are lost", lost)
            except BaseException:
                self._bookies = self._bookies.audit_failed(lost)
                raise

    def _read_delay(self, changed: Callable[[], None]) -> Versioned[int]:
        tree = self._context.store.underreplication
        found = tree.delay_seconds(changed)
        if found is None:  # BookKeeper's shell fails to read what nobody has set
            tree.set_delay_seconds(0)
            found = tree.delay_seconds(changed)
        return found or Versioned(0, 0)

    def _check_bookies(self) -> None:
        """Every bookie that any ledger names, also one that nobody has seen or remembers."""
        interval_s, now = self._config.bookie_check_interval_s, self._context.runtime.now()
        if self._bookies_due_at is not None and now < self._bookies_due_at:
            return
        self._published("all bookies were looked for", None)
        self._bookies_due_at = now + interval_s if interval_s > 0 else math.inf

    def _published(self, why: str, lost: frozenset[BookieId] | None) -> None:
        report = audit_bookies(self._context, lost)
        published = len({r.ledger_id for r in report.rows if r.status is Outcome.PUBLISHED})
        self._context.metrics.published_ledgers.inc(published)
        _log.info("%s: %d ledgers published", why, published)
        if report.is_cut_short:  # those that are left are not forgotten
            raise DisabledError(DISABLED)

    # The checks

    def _check_ledgers(self) -> None:
        config = self._config
        limit = config.check_bytes_per_second or None
        checks: dict[Check, Callable[[], AuditReport]] = {
            Check.ALL_LEDGERS: partial(
                check_all_ledgers,
                self._context,
                self._runner,
                config.ledger_check_percentage,
                bytes_per_second=limit,
            ),
            Check.PLACEMENT: partial(check_placement, self._context),
            Check.REPLICAS: partial(check_replicas, self._context, self._runner),
        }
        tree = self._context.store.underreplication
        self._next_check_ms = None
        for check, run in checks.items():
            interval_ms, now_ms = self._interval_ms(check), self._context.cluster_ms()
            last_ms = tree.checked_at_ms(check)
            due = next_check_at(last_ms, interval_ms, now_ms)
            if due is None:
                continue
            if last_ms is not None and last_ms > now_ms:
                # Else every look would find it due an interval later, until that time has come.
                tree.set_checked_at_ms(check, now_ms)
            at_ms = due if due > now_ms else now_ms + interval_ms
            self._next_check_ms = min(at_ms, self._next_check_ms or at_ms)
            if due > now_ms:
                continue
            report = run()
            tree.set_checked_at_ms(check, self._context.cluster_ms())
            _log.info("%s: %s", report.job, report.counts or "nothing was found")

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
