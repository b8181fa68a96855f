"""Which bookies count as lost, and since when: the auditor's delay.

A bookie that disappears may be back in a minute, so one bookie alone is given some time. Two that
are away at once leave less to spare, and nobody waits for them. One that is back in another
incarnation has lost what it held, however short it was away.

Source: BookKeeper ``replication/Auditor.submitAuditTask`` and
``submitLostBookieRecoveryDelayChangedEvent``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

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
    incarnations: Mapping[BookieId, str] = field(default_factory=dict)
    """In which each was seen last."""

    def seen(
        self, available: Mapping[BookieId, str], delay_seconds: float, now: float
    ) -> tuple[LostBookies, frozenset[BookieId]]:
        """The bookies that are registered now, writable or read-only, and their incarnations."""
        before = self.incarnations
        changed = frozenset(b for b, each in available.items() if before.get(b, each) != each)
        after, lost = self._seen(frozenset(available), delay_seconds, now)
        return replace(after, incarnations={**before, **available}), lost | changed

    def _seen(
        self, here: frozenset[BookieId], delay_seconds: float, now: float
    ) -> tuple[LostBookies, frozenset[BookieId]]:
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
        """There is another delay: the bookie that is waited for has all of it from now on."""
        if self.waiting is None:
            return self
        return replace(self, due_at=now + delay_seconds)

    def back(self, bookies: Collection[BookieId]) -> LostBookies:
        """They were there while their ledgers were to be marked, so not all were: that they go
        again is news, also where nobody has seen them in between.
        """
        return replace(self, known=self.known | frozenset(bookies))

    def audit_failed(self, lost: Collection[BookieId]) -> LostBookies:
        """Their ledgers could not all be marked: their absence is news again."""
        again = {bookie: each for bookie, each in self.incarnations.items() if bookie not in lost}
        unseen = dict.fromkeys(lost, "")
        return replace(self, known=self.known | frozenset(lost), incarnations={**again, **unseen})
