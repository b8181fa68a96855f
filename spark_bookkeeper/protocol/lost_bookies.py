"""Which bookies count as lost, and since when: the auditor's delay.

A bookie that disappears may be back in a minute, so one bookie alone is given some time. Two that
are away at once leave less to spare, and nobody waits for them.

Source: BookKeeper ``replication/Auditor.submitAuditTask`` and
``submitLostBookieRecoveryDelayChangedEvent``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from spark_bookkeeper.protocol.ids import BookieId

NOBODY: frozenset[BookieId] = frozenset()


@dataclass(frozen=True, slots=True)
class LostBookies:
    """What an auditor knows of its bookies. Every step gives the next value, and whom to audit."""

    known: frozenset[BookieId] = NOBODY
    """Those whose going is news: they were there, or have a cookie, and were not audited since."""
    waiting: BookieId | None = None
    """The one that is away and has time left."""
    due_at: float | None = None
    """When its time is over."""

    def seen(
        self, available: Collection[BookieId], delay_seconds: float, now: float
    ) -> tuple[LostBookies, frozenset[BookieId]]:
        """The bookies that are registered now, writable or read-only."""
        here = frozenset(available)
        away = self.known - here
        known = self.known | here
        if not away:
            return LostBookies(known), NOBODY
        if delay_seconds <= 0 or len(away) > 1:
            return LostBookies(known - away), away
        (waiting,) = away
        if waiting == self.waiting:
            return replace(self, known=known).due(now)
        return LostBookies(known, waiting, now + delay_seconds), NOBODY

    def due(self, now: float) -> tuple[LostBookies, frozenset[BookieId]]:
        """Time has passed."""
        if self.waiting is None or self.due_at is None or now < self.due_at:
            return self, NOBODY
        lost = frozenset({self.waiting})
        return LostBookies(self.known - lost), lost

    def delay_changed(self, delay_seconds: float, now: float) -> LostBookies:
        """The delay is another one: it begins anew for who is waited for."""
        if self.waiting is None:
            return self
        return replace(self, due_at=now + delay_seconds)

    def audit_failed(self, lost: Collection[BookieId]) -> LostBookies:
        """Their ledgers could not all be marked: their absence is news again."""
        return replace(self, known=self.known | frozenset(lost))
