"""The bookies that count as lost, and since when: the auditor's delay.

A bookie that disappears may be back in a minute. So a single bookie has the whole delay. Several
bookies that are away at once leave fewer copies, and have a tenth of it: a switch was restarted, or
they are gone. Such a cut may just be over, or may have been the auditor's own. So several bookies
that go within a session of each other have at least a session's length, even without a delay
(except the first, if it was lost before another went). So have the bookies that a new auditor does
not find. A bookie in a new incarnation has lost its data, however short it was away.

Source: BookKeeper ``replication/Auditor.submitAuditTask`` and
``submitLostBookieRecoveryDelayChangedEvent``, which do not wait if two are away, and never without
a delay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from spark_bookkeeper.protocol.ids import BookieId

NOBODY: frozenset[BookieId] = frozenset()

SEVERAL_SHARE: Final = 10
"""While several bookies are away, the delay is divided by this, down to a session's length."""


@dataclass(frozen=True, slots=True)
class LostBookies:
    """An auditor's bookies. Each step returns the next value; ``seen`` also the lost bookies."""

    known: frozenset[BookieId] = NOBODY
    """Bookies whose absence is news: seen or with a cookie, and not audited since."""
    away: Mapping[BookieId, float] = field(default_factory=dict)
    """Bookies that are away and have time left, and when their absence was noticed."""
    due_at: float | None = None
    """When the next of them may be lost."""
    not_before: float = 0.0
    """No bookie is lost before this time: a session after a new auditor found some away."""
    went: Mapping[BookieId, float] = field(default_factory=dict)
    """Bookies that were lost or came back, and when they went: others may have gone with them."""
    incarnations: Mapping[BookieId, str] = field(default_factory=dict)
    """The incarnation in which each bookie was seen last."""

    def seen(
        self,
        available: Mapping[BookieId, str],
        delay_seconds: float,
        session_seconds: float,
        now: float,
    ) -> tuple[LostBookies, frozenset[BookieId]]:
        """Return the next value and the lost bookies, given the incarnations of registered bookies.

        Args:
            session_seconds: the time in which a bookie registers again after a short cut that
                affected several.
        """
        before = self.incarnations
        changed = frozenset(b for b, each in available.items() if before.get(b, each) != each)
        after, lost = self._seen(frozenset(available), delay_seconds, session_seconds, now)
        return replace(after, incarnations={**before, **available}), lost | changed

    def _seen(
        self, here: frozenset[BookieId], delay_seconds: float, session_seconds: float, now: float
    ) -> tuple[LostBookies, frozenset[BookieId]]:
        known = self.known | here
        away = {bookie: self.away.get(bookie, now) for bookie in self.known - here}
        first, *others = sorted(away.values()) or [now]
        went = {
            bookie: since
            for bookie, since in (*self.went.items(), *self.away.items())
            if bookie not in away and first - since < session_seconds
        }
        if not away:
            return LostBookies(known, went=went), NOBODY
        is_first = not self.away and not self.incarnations
        not_before = now + session_seconds if is_first else self.not_before
        if others or went:
            delay_seconds = max(delay_seconds, session_seconds)
        several = min(delay_seconds, max(session_seconds, delay_seconds / SEVERAL_SHARE))
        # Since the first: a bookie that comes and goes all the time delays nothing.
        due_at = first + delay_seconds
        if others:
            due_at = min(due_at, others[0] + several)
        due_at = max(due_at, not_before)
        if now < due_at:
            return LostBookies(known, away, due_at, not_before, went), NOBODY
        lost = {bookie: since for bookie, since in away.items() if now >= since + several}
        left = {bookie: since for bookie, since in away.items() if bookie not in lost}
        due_at = min(left.values(), default=now) + several  # then the others are due
        known, went = known - frozenset(lost), {**went, **lost}
        return LostBookies(known, left, due_at if left else None, not_before, went), frozenset(lost)

    def delay_changed(self, now: float) -> LostBookies:
        """Apply a changed delay: bookies that are away have all of it from now on."""
        return replace(self, away=dict.fromkeys(self.away, now))

    def back(self, bookies: Collection[BookieId]) -> LostBookies:
        """Note that bookies were registered while their ledgers were published, so not all ledgers
        were. Their next absence is news, even if they were never seen in between.
        """
        return replace(self, known=self.known | frozenset(bookies))

    def audit_failed(self, lost: Collection[BookieId]) -> LostBookies:
        """Note a failed audit of these bookies: their absence is news again, and due at once."""
        away = {bookie: since for bookie, since in self.went.items() if bookie in lost}
        return replace(
            self,
            known=self.known.union(lost),
            away={**self.away, **away},
            incarnations={**self.incarnations, **dict.fromkeys(lost, "")},
        )
