"""Check the channels of one open ledger now and then; a channel that waits for its bookie cannot.

The timer finds bookies that are silent, are read-only or have no agent. If the writer pauses, it
sends the last add confirmed to the bookies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import NO_ENTRY
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.storage import retry_policy

if TYPE_CHECKING:
    from spark_bookkeeper.client.context import ClientContext
    from spark_bookkeeper.client.write.bookie_channel import BookieChannel
    from spark_bookkeeper.client.write.delivery import Delivery
    from spark_bookkeeper.client.write.ensemble_channels import EnsembleChannels, Reports
    from spark_bookkeeper.client.write.pending import PendingEntries
    from spark_bookkeeper.metadata.store import Registration
    from spark_bookkeeper.protocol.ids import BookieId
    from spark_bookkeeper.runtime.runtime import Condition


class SilenceTimer:
    """A task of its own, from ``start`` to ``end``.

    Args:
        context: the client's.
        lock: the writer's.
        channels: the channels to check.
        pending: entries to send.
        delivery: resolves futures, outside the lock, when there is news.
        reports: gets the reports, and decides what follows.
    """

    def __init__(
        self,
        context: ClientContext,
        lock: Condition,
        channels: EnsembleChannels,
        pending: PendingEntries,
        delivery: Delivery,
        reports: Reports,
    ) -> None:
        self._context = context
        self._runtime = context.runtime
        self._lock = lock
        self._channels = channels
        self._pending = pending
        self._delivery = delivery
        self._reports = reports
        self._pause = context.config.explicit_lac_ms / 1000
        self._away_since: dict[BookieId, float] = {}
        """When each bookie without an agent was first found so."""
        self._is_over = False
        self._over = AutoResetEvent(self._runtime)

    def start(self) -> None:
        """Start the task. The lock is held."""
        self._runtime.spawn("writer-watch", self._run)

    def end(self) -> None:
        """End the task. The lock is held."""
        self._is_over = True
        self._over.set()

    def _run(self) -> None:
        """Give up a bookie whose put takes longer than ``add_timeout_ms``.

        If the process was stopped and goes on, all calls seem to have taken long. Then every put
        gets its full time again.
        """
        limit = self._context.config.add_timeout_ms / 1000
        pause = self._pause
        looked_at = self._runtime.now()
        look_pause = min(limit, retry_policy.AWAY_SECONDS) / 4
        next_look = looked_at + look_pause
        while True:
            wait = min(
                limit / 4, max(next_look - self._runtime.now(), retry_policy.SHORTEST_SECONDS)
            )
            with self._lock:
                if self._is_over:
                    return
                now = self._runtime.now()
                stood_still = now - looked_at > limit / 2
                looked_at = now
                for channel in list(self._channels.by_position.values()):
                    if channel.sending_since is None:
                        continue
                    if stood_still:
                        channel.sending_since = now
                    elif now - channel.sending_since > limit:
                        self._reports.lose(channel, f"no answer for {limit:g} seconds")
                        self._lock.notify_all()
                if pause:
                    wait = min(wait, self.tell_if_idle())
                self._delivery.deliver_in_background()
            self._over.wait(wait)
            if self._runtime.now() >= next_look:
                next_look = self._runtime.now() + look_pause
                self.look_at_registrations()

    def tell_if_idle(self) -> float:
        """Send the bookies the last add confirmed, if nothing was confirmed for a while.

        Entries carry the LAC from before them, so followers would not see the last one. No caller
        waits for this, and each pause of the writer sends one. An append does not wake this task: a
        look finds the append, and the next look is when the pause has lasted long enough.

        Returns:
            seconds until the next look.

        Source: BookKeeper ``client/ExplicitLacUpdateFlow``, which sends it at its next tick
        instead.
        """
        confirmed = self._reports.confirmed
        is_all = confirmed == self._pending.last and confirmed != NO_ENTRY
        if not is_all or self._channels.is_any_behind or self._reports.is_busy:
            return self._pause
        left = self._reports.confirmed_at + self._pause - self._runtime.now()
        if left > 0:
            return max(left, retry_policy.SHORTEST_SECONDS)
        self._channels.tell(confirmed)
        return self._pause

    def look_at_registrations(self) -> None:
        """Report bookies to be left, if there is a bookie that could replace them.

        On a read-only bookie, adds still succeed, and would fill the space that fences and recovery
        need. They also succeed if its agent is gone and its storage answers. But autorecovery
        counts that bookie as lost. It takes the ledger from its writer after a time that does not
        depend on ``add_timeout_ms``, so the time between calls has a limit of its own.

        The metadata store is read only after it reported a change. While it is slow to answer, no
        bookie is left, because none could be replaced. Acknowledgements go on meanwhile.
        """
        with self._lock:
            if self._is_over:
                return
            self._reports.look_begins()
            self._delivery.deliver_in_background()
        try:
            alive = self._context.bookies.last_registrations()
        except BookKeeperError:
            return  # other users of the store report this; the next look comes soon
        with self._lock:
            if not self._is_over:
                self._reports.looked(*self._to_be_left(alive))
                self._delivery.deliver_in_background()

    def _to_be_left(
        self, alive: Mapping[BookieId, Registration]
    ) -> tuple[list[BookieChannel], list[BookieChannel]]:
        """Return the channels of read-only bookies, and of bookies whose agents are gone."""
        channels = list(self._channels.by_position.values())
        inside = {channel.bookie for channel in channels}
        now, since = self._runtime.now(), self._away_since
        self._away_since = {b: since.get(b, now) for b in inside if b not in alive}
        unfit = inside | self._reports.unfit(alive)
        if not any(not r.is_readonly for b, r in alive.items() if b not in unfit):
            return [], []
        readonly = [x for x in channels if x.bookie in alive and alive[x.bookie].is_readonly]
        away = self._away_since
        gone = [x for x in channels if now - away.get(x.bookie, now) >= retry_policy.AWAY_SECONDS]
        return readonly, gone
