"""What is known of a task beyond the bookies it names: what was tried, and when to try again.

BookKeeper keeps this in the memory of each worker, so nobody can ask why a ledger is still
under-replicated. Times are of the cluster's clock (``client/cluster_clock.py``): by those of the
workers, one that is ahead would take a writer's ledger at once, and try again what waits. Only
convenience rests on them (SLOT-LOG rule R17).

Source: BookKeeper ``replication/ReplicationWorker`` (grace period, back-off that doubles).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata

WAIT_FOR_EVENT_MS: Final = 86_400_000
"""Until the next attempt where only something that is noticed by itself can help, a bookie that
comes for example. It is there for what nobody is told of."""

_GRACE: Final = "the grace period of an open ledger"
"""The blocker of a ledger whose writer is waited for."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A task as it was published: when it is published again, another."""

    missing: tuple[str, ...]
    at_ms: int | None
    version: int = 0
    """Of its node: another one where the same bookies were found wanting once more."""


@dataclass(frozen=True, slots=True)
class LocalRefusal:
    """What a bookie did not take from the worker beside it. It keeps nobody else waiting."""

    bookie: str
    attempts: int
    error: str
    next_try_at_ms: int


@dataclass(frozen=True, slots=True)
class Whole:
    """Replicas that were looked at, and that lack nothing."""

    seen: tuple[int, ...]
    """What they were looked at for, and as members of what: another one where anything of it has
    changed since."""
    at_ms: int
    """When."""
    replicas: tuple[tuple[str, str], ...]
    """Bookie and incarnation of each."""

    def still(self, seen: tuple[int, ...], now_ms: int) -> frozenset[tuple[str, str]]:
        """Those that need not be looked at now: nobody has said anything since. Once a day they
        are: Apache BookKeeper's auditor says nothing where a task names the bookie already.
        """
        is_new = self.seen == seen and 0 <= now_ms - self.at_ms < WAIT_FOR_EVENT_MS
        return frozenset(self.replicas if is_new else ())


@dataclass(frozen=True, slots=True)
class TaskNote:
    """Of one ledger's task."""

    attempts: int = 0
    last_error: str | None = None
    blocker: str | None = None
    """What would have to happen, for people."""
    next_try_at_ms: int = 0
    waits_for: tuple[str, ...] = ()
    """Bookies that were missing at the last attempt."""
    writable: int = 0
    """How many bookies took data then."""
    open_fragment: EntryId | None = None
    """The last fragment that its writer is given time to leave."""
    open_ensemble: tuple[str, ...] = ()
    """Its bookies: a writer that has replaced one of them has begun another fragment, also where
    nothing was acknowledged in between and it begins at the same entry."""
    open_since_ms: int = 0
    percentage: int = 0
    """How much of the replicas that are there has to be read to see what the auditor saw."""
    findings: int = 0
    """How often damage was published. A note that was read before the last time is another one, so
    that nobody removes what he does not know."""
    suspects: tuple[str, ...] = ()
    """Bookies where a look at some entries found something, which was made again: the next such
    look finds nothing there, and only one at all entries what is wrong with the others."""
    waits_for_event: bool = False
    """No attempt can help before something changes that ``protocol/underreplication.blocked``
    sees: whoever thinks of trying again asks that first."""
    marked: Marked | None = None
    """The task at the last attempt; ``None`` where it could not be read."""
    refusals: tuple[LocalRefusal, ...] = ()
    """One for each bookie beside whose worker it was tried in vain."""
    tried_at_ms: int = 0
    """When the last attempt ended that noted why the task stays."""
    whole: Whole | None = None
    """What the last attempt found whole of the replicas that are there."""

    def is_due(
        self,
        now_ms: int,
        marked: Marked | None,
        registered: Collection[str],
        writable: int,
        most_ms: int,
        local: str | None = None,
    ) -> bool:
        """Whether to try again now: it is time, it was published again, or a bookie has come that
        may help.

        Args:
            marked: the task as it is now; ``None`` where it cannot be read.
            registered: bookies that are there now.
            writable: how many of them take data.
            most_ms: the longest that anybody waits for a time to come; one further off is another
                clock's.
            local: the bookie beside which the worker runs that asks.
        """
        if self.is_refused(now_ms, most_ms, local):
            return False
        if marked is not None and self.next_try_at_ms and marked != self.marked:
            return True
        left = self.next_try_at_ms - now_ms
        if left <= 0 or left > (2 * WAIT_FOR_EVENT_MS if self.waits_for_event else most_ms):
            return True
        if self.waits_for_event:
            return False
        return writable > self.writable or any(b in registered for b in self.waits_for)

    def is_refused(self, now_ms: int, most_ms: int, local: str | None) -> bool:
        """Whether the worker beside a bookie leaves it alone because of that bookie."""
        return 0 < self._refusal_until_ms(local) - now_ms <= most_ms

    def waits_until_ms(self, local: str | None) -> int:
        """When it is due for the worker beside a bookie, if nothing happens before."""
        return max(self.next_try_at_ms, self._refusal_until_ms(local))

    def _refusal_until_ms(self, local: str | None) -> int:
        return next((r.next_try_at_ms for r in self.refusals if r.bookie == local), 0)

    def failed(
        self,
        error: str,
        blocker: str | None,
        now_ms: int,
        marked: Marked | None,
        *,
        waits_for: Collection[str],
        writable: int,
        first_ms: int,
        most_ms: int,
        waits_for_event: bool = False,
    ) -> TaskNote:
        """After an attempt in vain: wait twice as long as the last time, at most ``most_ms``; and
        where the clock does not help, ``WAIT_FOR_EVENT_MS``.

        Args:
            marked: the task as it was then; ``None`` where it could not be read.
        """
        attempts = self.attempts + 1
        wait = WAIT_FOR_EVENT_MS if waits_for_event else back_off(attempts, first_ms, most_ms)
        return replace(
            self,
            attempts=attempts,
            last_error=error,
            blocker=blocker,
            next_try_at_ms=now_ms + wait,
            waits_for=tuple(sorted(waits_for)),
            writable=writable,
            waits_for_event=waits_for_event,
            marked=marked,
            tried_at_ms=now_ms,
        )

    def refused(
        self, bookie: str, error: str, now_ms: int, *, first_ms: int, most_ms: int
    ) -> TaskNote:
        """After an attempt that failed only because of the bookie beside which it was made: what
        was waited for before has come.
        """
        before = next((each.attempts for each in self.refusals if each.bookie == bookie), 0)
        next_ms = now_ms + back_off(before + 1, first_ms, most_ms)
        others = (each for each in self.refusals if each.bookie != bookie)
        return replace(
            self,
            blocker=None,
            next_try_at_ms=0,
            waits_for_event=False,
            refusals=(*others, LocalRefusal(bookie, before + 1, error, next_ms)),
            tried_at_ms=now_ms,
        )

    def grace_over(
        self, fragment: Fragment, now_ms: int, grace_ms: int, jumped_ms: int = 0
    ) -> bool:
        """Whether a writer has had its time to leave this very fragment.

        Args:
            jumped_ms: when the clock was found to have gone ahead by itself: the time begins anew.
        """
        since = max(self.open_since_ms, jumped_ms)
        return self._is_about(fragment) and now_ms - since >= grace_ms

    def _is_about(self, fragment: Fragment) -> bool:
        known = self.open_fragment, self.open_ensemble
        return known == (fragment.first_entry_id, fragment.ensemble)

    def with_grace(
        self,
        fragment: Fragment,
        now_ms: int,
        grace_ms: int,
        marked: Marked | None,
        waits_for: Collection[str],
        writable: int,
        jumped_ms: int = 0,
    ) -> TaskNote:
        """The writer's time runs: since before, where it is about the same fragment and the clock
        has not jumped since (``grace_over``).
        """
        since = max(self.open_since_ms, jumped_ms) if self._is_about(fragment) else now_ms
        since = min(since, now_ms)  # that clock was set back
        return replace(
            self,
            open_fragment=fragment.first_entry_id,
            open_ensemble=fragment.ensemble,
            open_since_ms=since,
            next_try_at_ms=since + grace_ms,
            waits_for=tuple(sorted(waits_for)),
            writable=writable,
            waits_for_event=False,
            marked=marked,
            tried_at_ms=now_ms,
            last_error=f"its last fragment, from entry {fragment.first_entry_id}, is open, and its "
            "writer may be about to replace the lost bookie itself",
            blocker=_GRACE,
        )

    def is_past_grace(self, metadata: LedgerMetadata) -> bool:
        """Whether what was noted is that a writer has its time, and the ledger was closed since, or
        goes on in another fragment.
        """
        return self.blocker == _GRACE and (
            metadata.is_closed or not self._is_about(metadata.last_fragment)
        )

    def found_damaged(self, percentage: int) -> TaskNote:
        """Damage was seen by a look at so much of a replica."""
        closer = max(self.percentage, percentage)
        return replace(self, percentage=closer, findings=self.findings + 1)

    def suspected(self, bookie: str) -> TaskNote:
        """Some of a bookie's entries were made again, and the others are to be looked at."""
        return replace(self, suspects=tuple(sorted({*self.suspects, bookie})))

    def cleared(self, bookies: Collection[str], whole: Whole | None) -> TaskNote:
        """All that these bookies should have is there; ``whole`` is what of that may be noted."""
        suspects = tuple(bookie for bookie in self.suspects if bookie not in bookies)
        return replace(self, suspects=suspects, whole=whole)

    def without_grace(self) -> TaskNote:
        """No writer is waited for: the last fragment lacks nobody."""
        return replace(self, open_fragment=None, open_ensemble=(), open_since_ms=0)


def back_off(attempts: int, first_ms: int, most_ms: int) -> int:
    """How long to wait after so many attempts in vain; milliseconds."""
    return min(most_ms, first_ms << min(attempts - 1, 30))


def next_check_at(last_ms: int | None, interval_ms: int, now_ms: int) -> int | None:
    """When a check is due that is done every so often; ``None`` for never.

    Source: BookKeeper ``Auditor``: one that was never done is due now, and one that was done in
    the future, by another clock, an interval from now.
    """
    if interval_ms <= 0:
        return None
    if last_ms is None:
        return now_ms
    return min(last_ms, now_ms) + interval_ms
