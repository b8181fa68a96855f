"""Which bookies count as lost, and since when: the auditor's delay.

A bookie that disappears may be back in a minute, so one bookie alone is given some time. Several
that are away at once leave less to spare, and have a tenth of it: it is a switch that was
restarted, or they are gone. That cut may just be over, or have been the auditor's own. So several
that go within a session of each other have as long as a session lasts, also without a delay (but
the first, if nobody could know yet), and so have those that a new auditor does not find. One that
is back in another incarnation has lost what it held, however short it was away.

Source: BookKeeper ``replication/Auditor.submitAuditTask`` and
``submitLostBookieRecoveryDelayChangedEvent``, which wait for nobody where two are away, and never
without a delay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from spark_bookkeeper.protocol.ids import BookieId

NOBODY: frozenset[BookieId] = frozenset()

SEVERAL_SHARE: Final = 10
"""Several that are away have one in so many seconds of the delay, a session's length at least."""


@dataclass(frozen=True, slots=True)
class LostBookies:
    """What an auditor knows of its bookies. Every step gives the next value, and whom to audit."""

    known: frozenset[BookieId] = NOBODY
    """Those whose going is news: they were there, or have a cookie, and were not audited since."""
    away: Mapping[BookieId, float] = field(default_factory=dict)
    """Those that are away and have time left, with when that was seen."""
    due_at: float | None = None
    """When the time of all of them is over."""
    not_before: float = 0.0
    """Nobody who was away when the auditor began is lost before."""
    went: Mapping[BookieId, float] = field(default_factory=dict)
    """When those went that were lost or are back: within a session of that, others go with them."""
    incarnations: Mapping[BookieId, str] = field(default_factory=dict)
    """In which each was seen last."""

    def seen(
        self,
        available: Mapping[BookieId, str],
        delay_seconds: float,
        session_seconds: float,
        now: float,
    ) -> tuple[LostBookies, frozenset[BookieId]]:
        """The bookies that are registered now, writable or read-only, and their incarnations.

        Args:
            session_seconds: after so long a bookie is registered again that was cut off for a
                moment together with others.
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
        # From the first ones: another that comes and goes all the time puts nothing off.
        due_at = first + delay_seconds
        if others:
            due_at = min(due_at, others[0] + several)
        due_at = max(due_at, not_before)
        if now < due_at:
            return LostBookies(known, away, due_at, not_before, went), NOBODY
        lost = {bookie: since for bookie, since in away.items() if now >= since + several}
        left = {bookie: since for bookie, since in away.items() if bookie not in lost}
        due_at = min(left.values(), default=now) + several  # looked at again then
        known, went = known - frozenset(lost), {**went, **lost}
        return LostBookies(known, left, due_at if left else None, not_before, went), frozenset(lost)

    def delay_changed(self, now: float) -> LostBookies:
        """There is another delay: those that are waited for have all of it from now on."""
        return replace(self, away=dict.fromkeys(self.away, now))

    def back(self, bookies: Collection[BookieId]) -> LostBookies:
        """They were there while their ledgers were to be marked, so not all were: that they go
        again is news, also where nobody has seen them in between.
        """
        return replace(self, known=self.known | frozenset(bookies))

    def audit_failed(self, lost: Collection[BookieId]) -> LostBookies:
        """Their ledgers could not all be marked: their absence is news again, and waits no more."""
        away = {bookie: since for bookie, since in self.went.items() if bookie in lost}
        return replace(
            self,
            known=self.known.union(lost),
            away={**self.away, **away},
            incarnations={**self.incarnations, **dict.fromkeys(lost, "")},
        )
