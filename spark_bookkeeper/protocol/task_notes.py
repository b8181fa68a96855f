"""The notes on a task: earlier attempts, and the time of the next one.

BookKeeper keeps them in the memory of each worker, so no client can find out why a ledger is still
under-replicated. Times are on the cluster's clock (``client/cluster_clock.py``). If workers used
their own clocks, a worker with a fast one would take a writer's ledger at once, and retry a waiting
task. Only convenience depends on the times (SLOT-LOG rule R17).

Source: BookKeeper ``replication/ReplicationWorker`` (grace period, back-off that doubles).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata

WAIT_FOR_EVENT_MS: Final = 86_400_000
"""The time until the next attempt if only an event can help, such as a new bookie. Workers notice
events themselves; this retry is for those that they miss."""

_GRACE: Final = "the grace period of an open ledger"
"""The blocker of a ledger whose writer is waited for."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A task as it was published; another publication gives another value."""

    missing: tuple[str, ...]
    at_ms: int | None
    version: int = 0
    """The version of its node: it changes when the same bookies are published once more."""


@dataclass(frozen=True, slots=True)
class LocalRefusal:
    """A failure of the bookie next to the worker. It makes no other worker wait."""

    bookie: str
    attempts: int
    error: str
    next_try_at_ms: int


@dataclass(frozen=True, slots=True)
class Whole:
    """Replicas that were checked and lack nothing."""

    seen: tuple[int, ...]
    """The task, the findings and the metadata at the check, as numbers that change with them."""
    at_ms: int
    """The time of the check."""
    replicas: tuple[tuple[str, str], ...]
    """The bookie and the incarnation of each replica."""

    def still(self, seen: tuple[int, ...], now_ms: int) -> frozenset[tuple[str, str]]:
        """Return the replicas that need no check now, because no report came since. Once a day all
        are checked: Apache BookKeeper's auditor reports nothing if a task names the bookie already.
        """
        is_new = self.seen == seen and 0 <= now_ms - self.at_ms < WAIT_FOR_EVENT_MS
        return frozenset(self.replicas if is_new else ())


@dataclass(frozen=True, slots=True)
class TaskNote:
    """The notes on one ledger's task."""

    attempts: int = 0
    last_error: str | None = None
    blocker: str | None = None
    """The event that the task waits for, for people."""
    next_try_at_ms: int = 0
    waits_for: tuple[str, ...] = ()
    """Bookies that were missing at the last attempt."""
    writable: int = 0
    """The number of bookies that took data then."""
    open_fragment: EntryId | None = None
    """The last fragment, which its writer is given time to leave."""
    open_ensemble: tuple[str, ...] = ()
    """Its bookies. If the writer has replaced one of them, the fragment is another one, even if no
    entry was acknowledged in between and it begins at the same entry."""
    open_since_ms: int = 0
    percentage: int = 0
    """The percentage of existing replicas to read in order to find what the auditor found."""
    findings: int = 0
    """How often damage was published. Each time changes the note, so a client with an earlier note
    cannot remove findings that it does not know."""
    suspects: tuple[str, ...] = ()
    """Bookies at which a partial check found damage, which was repaired. The next partial check
    finds nothing there, so only a check of all entries can find the rest."""
    waits_for_event: bool = False
    """Whether no attempt can help before an event that ``protocol/underreplication.blocked``
    recognises; call that before a retry."""
    marked: Marked | None = None
    """The task at the last attempt; ``None`` if it could not be read."""
    refusals: tuple[LocalRefusal, ...] = ()
    """One for each bookie that failed the attempt of the worker next to it."""
    tried_at_ms: int = 0
    """The end of the last attempt that noted why the task stays."""
    whole: Whole | None = None
    """The existing replicas that the last attempt found whole."""

    def is_due(
        self,
        now_ms: int,
        marked: Marked | None,
        registered: Collection[str],
        writable: int,
        most_ms: int,
        local: str | None = None,
    ) -> bool:
        """Return whether to try now: the time has come, the task was published again, or a bookie
        has come that may help.

        Args:
            marked: the task as it is now; ``None`` if it cannot be read.
            registered: bookies that are registered now.
            writable: how many of them take data.
            most_ms: the longest wait; a later time comes from another clock.
            local: the bookie next to the worker that calls this.
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
        """Return whether the worker next to a bookie skips the task because of that bookie."""
        return 0 < self._refusal_until_ms(local) - now_ms <= most_ms

    def waits_until_ms(self, local: str | None) -> int:
        """Return when the task is due for the worker next to a bookie, if no event comes first."""
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
        """Return the notes after a failed attempt: wait twice as long as the last time, at most
        ``most_ms``; ``WAIT_FOR_EVENT_MS`` if only an event can help.

        Args:
            marked: the task as it was then; ``None`` if it could not be read.
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
        """Return the notes after an attempt that failed only because of the bookie next to its
        worker: the event that the task waited for has come.
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
        """Return whether a writer has had its time to leave this very fragment.

        Args:
            jumped_ms: when the clock was found to have jumped ahead: the time begins anew then.
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
        """Return the notes while the writer's time runs: since its earlier start, if the fragment
        is the same and the clock has not jumped since (``grace_over``).
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
        """Return whether these notes give a writer time, but the ledger was closed since, or
        continues in another fragment.
        """
        return self.blocker == _GRACE and (
            metadata.is_closed or not self._is_about(metadata.last_fragment)
        )

    def found_damaged(self, percentage: int) -> TaskNote:
        """Return the notes after a check of this percentage of a replica found damage."""
        closer = max(self.percentage, percentage)
        return replace(self, percentage=closer, findings=self.findings + 1)

    def suspected(self, bookie: str) -> TaskNote:
        """Return the notes after repairs of some of a bookie's entries; the rest needs a check."""
        return replace(self, suspects=tuple(sorted({*self.suspects, bookie})))

    def cleared(self, bookies: Collection[str], whole: Whole | None) -> TaskNote:
        """Return the notes after these bookies were found whole; ``whole`` is stored in them."""
        suspects = tuple(bookie for bookie in self.suspects if bookie not in bookies)
        return replace(self, suspects=suspects, whole=whole)

    def without_grace(self) -> TaskNote:
        """Return the notes without a wait for a writer: the last fragment lacks no bookie."""
        return replace(self, open_fragment=None, open_ensemble=(), open_since_ms=0)


def back_off(attempts: int, first_ms: int, most_ms: int) -> int:
    """Return the wait after so many failed attempts, in milliseconds."""
    return min(most_ms, first_ms << min(attempts - 1, 30))


def next_check_at(last_ms: int | None, interval_ms: int, now_ms: int) -> int | None:
    """Return when a repeated check is due; ``None``: never.

    Source: BookKeeper ``Auditor``: a check that was never done is due now, and one that was done in
    the future, by another clock, an interval from now.
    """
    if interval_ms <= 0:
        return None
    if last_ms is None:
        return now_ms
    return min(last_ms, now_ms) + interval_ms
