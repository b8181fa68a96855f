"""Every time-out, pause and limit that governs calls to a bookie.

``BookieClient`` applies the limits of one call, ``Gather`` and ``BatchClient`` those of several
bookies, ``BookieChannel``, ``SilenceTimer`` and the ensemble change those of a writer.
``ClientConfig`` has the ones that users set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.config import ClientConfig

# One call

SLOWEST_BYTES_PER_SECOND: Final = 4 << 20
"""A call that moves bytes gets the time for them at this rate before its silence begins."""

CALLS_AT_ONCE: Final = 64
"""The most calls to one bookie, each in its own task; more calls wait. This bounds a hang."""

TRIALS: Final = 8
"""More calls that may hang while they test whether a bookie answers again."""

PLACE_SECONDS: Final = 0.05
"""Seconds between two attempts to start a call at a bookie that has too many calls."""

# Several bookies at once

GRACE_SECONDS: Final = 2.0
"""How long to wait for other bookies after the first answer; then only their ledgers fail."""

FENCE_GRACE_SECONDS: Final = 2.0
"""After enough other bookies are fenced, a bookie that stays silent for this time has timed out. A
slightly slower bookie stays in the ensemble."""

# A writer

PAUSES_SECONDS: Final = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Pauses before each repeat of a call with unknown outcome; then the bookie is given up."""

AWAY_SECONDS: Final = 10.0
"""A bookie without an agent for this long is left. Its agent may have restarted sooner, and
autorecovery takes a ledger that stays on a lost bookie (``open_ledger_grace_ms``) much later."""

SHORTEST_SECONDS: Final = 0.001
"""The shortest wait: a rounded clock may show a time just before the one that is waited for."""

SETTLE_SECONDS: Final = 60.0
"""How long the writer queries whether a change was made, if its answer is lost and the writer could
go on without it."""

SETTLE_PAUSE_SECONDS: Final = 1.0
"""Pause between two such queries."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The time-outs for a bookie, in seconds of silence."""

    give_up: float
    """After this time the call times out: the bookie hangs."""
    hedge: float
    """After this time another bookie with the same entries is asked as well."""
    retry: float
    """The time without calls to a bookie that hangs. Then one call is a trial."""
    pages: float = 60.0
    """Added to ``give_up`` for a call that sends many requests without showing progress: a
    listing of a bucket has a page for each thousand names."""

    @classmethod
    def of(cls, config: ClientConfig) -> Patience:
        return cls(
            config.bookie_timeout_ms / 1000,
            config.read_hedge_ms / 1000,
            config.bookie_retry_ms / 1000,
        )
