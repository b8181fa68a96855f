"""The channels of one open ledger: one for each bookie of the ensemble, each with its own task.

Channels share groups: the entries that one channel takes first are a group for all. A channel
reports that its bookie stored a group, or why it failed. Other modules decide what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final, Protocol

from spark_bookkeeper.bookie import messages
from spark_bookkeeper.client.write.bookie_channel import BookieChannel, Group
from spark_bookkeeper.client.write.pending import Run
from spark_bookkeeper.errors import AppendFailedError, BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId, EntryId

if TYPE_CHECKING:
    from spark_bookkeeper.client.context import ClientContext
    from spark_bookkeeper.client.ledger import Ledger
    from spark_bookkeeper.client.write.delivery import Delivery
    from spark_bookkeeper.client.write.pending import PendingEntries
    from spark_bookkeeper.metadata.store import Registration
    from spark_bookkeeper.runtime.runtime import Condition


AHEAD_BYTES: Final = 1 << 16
"""The appending thread encodes at most this much, because it holds the writer's lock."""


class Reports(Protocol):
    """Receives the reports of channels. The writer's lock is held during each call."""

    ledger: Ledger

    confirmed_at: float
    """When a bookie's answer last confirmed an entry."""

    @property
    def confirmed(self) -> EntryId:
        """The last add confirmed."""

    @property
    def is_busy(self) -> bool:
        """Whether the ledger is being closed, or rows are appended that no channel knows of."""

    def take(self) -> EntryId:
        """Report that a channel takes the pending entries; return the last add confirmed."""

    def stored(self, channel: BookieChannel, group: Group) -> None:
        """Report that a channel's bookie durably stores its entries of the group."""

    def failed(self, channel: BookieChannel, error: BookKeeperError) -> None:
        """Report that a channel's bookie does not store the group; the channel has stopped."""

    def lose(self, channel: BookieChannel, cause: str) -> None:
        """Give up a channel's bookie."""

    def unfit(self, alive: Mapping[BookieId, Registration]) -> Set[BookieId]:
        """Return bookies that this writer cannot use now, although they may take data."""

    def look_begins(self) -> None:
        """Report that the metadata store is about to be queried for bookies to replace."""

    def looked(self, readonly: Sequence[BookieChannel], gone: Sequence[BookieChannel]) -> None:
        """Report channels whose bookies are read-only or have no agent, if they can be replaced."""


class EnsembleChannels:
    """Decides what each bookie is sent. Methods are called with the writer's lock held.

    Args:
        context: the client's.
        lock: the writer's.
        pending: entries to send.
        delivery: called after every report, outside the lock.
        reports: gets the reports, and decides what follows.
        token: of this writer session, in every record (SLOT-LOG rule R16).
    """

    def __init__(
        self,
        context: ClientContext,
        lock: Condition,
        pending: PendingEntries,
        delivery: Delivery,
        reports: Reports,
        token: str,
    ) -> None:
        self.by_position: dict[int, BookieChannel] = {}
        self._left: dict[BookieId, BookieChannel] = {}
        """The last channels of bookies that were left and are not lost to the writer."""
        self.idle: list[BookieChannel] = []
        """Channels that wait until ``wake`` is called."""
        self._context = context
        self._runtime = context.runtime
        self._config = context.config
        self._lock = lock
        self._pending = pending
        self._delivery = delivery
        self._reports = reports
        self._token = token
        self._groups: dict[EntryId, Group] = {}
        self._ahead: Group | None = None
        """The group that was encoded before channels were woken; they send it if no entry came
        since.
        """
        self._explicit_lac: Group | None = None
        """The explicit LAC that channels without entries put on their bookies, until there are
        entries again."""
        self._time_ms = 0
        """The time of the last group. Within a ledger times never decrease, so that a search by
        time is possible."""

    @property
    def token(self) -> str:
        """The token of this writer session, in every record (SLOT-LOG rule R16)."""
        return self._token

    def open(self, position: int, bookie: BookieId, first: EntryId) -> None:
        """Send a bookie all entries that are striped to its position, from ``first`` on."""
        ledger = self._reports.ledger
        channel = BookieChannel(
            position,
            bookie,
            ledger,
            first,
            lambda bookie, incarnation: self._context.bookies.replica(bookie, ledger, incarnation),
            lambda: self._context.bookies.root_uri(bookie),
            lambda: self._context.bookies.bookie_client(bookie),
            self._runtime,
        )
        before = self.by_position.get(position)
        if before is not None:  # it is not lost, and has served until now
            self.drop(before)
            self._left[before.bookie] = before
        earlier = self._left.pop(bookie, None)
        if earlier is not None and earlier.incarnation == channel.incarnation:
            channel.go_on_from(earlier)
        self.by_position[position] = channel
        self._spawn(channel)

    def not_again(self, first: EntryId) -> dict[BookieId, str]:
        """Return bookies that were left and cannot get entries from ``first`` on, with reasons."""
        reasons = {bookie: channel.why_not_again(first) for bookie, channel in self._left.items()}
        return {bookie: reason for bookie, reason in reasons.items() if reason is not None}

    def wake(self) -> None:
        """Wake the channels, because there is something to send."""
        if self.idle:
            self._encode_ahead(self.idle[0])
        for channel in self.idle:
            channel.wake_up.set()
        self.idle.clear()

    def _encode_ahead(self, channel: BookieChannel) -> None:
        """Encode the channels' next group while they sleep.

        A channel would encode it while the others wake, and would wait again and again for Python's
        global lock.
        """
        pending = self._pending
        most = min(AHEAD_BYTES, self._config.max_group_bytes)
        if channel.next_entry > pending.last or pending.size_bytes > most:
            return
        run = pending.run(channel.next_entry, self._config.max_group_entries, most)
        if run.bulk is not None or self._reports.ledger.metadata.quorum.is_striped:
            return
        group = self._group(run, self._reports.confirmed)
        try:
            channel.encode_ahead(group)
        except Exception:  # noqa: BLE001  (a channel meets it again, and reports it)
            return
        self._ahead = group

    def wake_missed(self) -> None:
        """Wake channels that sleep although there are entries: Ctrl-C may end an append before it
        wakes them.
        """
        last = self._pending.last
        if any(channel.next_entry <= last and channel.is_active() for channel in self.idle):
            self.wake()

    def drop(self, channel: BookieChannel) -> None:
        """Send nothing more on this channel."""
        channel.retire()
        if self.by_position.get(channel.position) is channel:
            del self.by_position[channel.position]

    def end(self) -> None:
        """Stop all channels, for good."""
        for channel in self.by_position.values():
            channel.retire()
        # The channels keep directories open on the bookies; these are freed with them.
        self.by_position.clear()
        self._left.clear()
        self.idle.clear()

    @property
    def is_any_behind(self) -> bool:
        """Whether some bookie has not stored all entries that are striped to it."""
        last = self._pending.last
        return any(channel.next_entry <= last for channel in self.by_position.values())

    def forget(self, confirmed: EntryId) -> None:
        """Drop entries that are not needed any more: acknowledged, and stored by every channel."""
        needed = confirmed + 1
        for channel in self.by_position.values():
            needed = min(needed, channel.next_entry)
        self._pending.forget_below(needed)
        for first in [first for first in self._groups if first < needed]:
            if self._groups[first].last < needed:
                del self._groups[first]

    def tell(self, confirmed: EntryId) -> None:
        """Send bookies the last add confirmed when no channel has entries to send.

        Does so once: nothing happens while channels already send it.
        """
        if self._explicit_lac is None:
            nothing = Run(EntryId(confirmed + 1), confirmed, (), (), None)
            self._explicit_lac = self._group(nothing, confirmed)
            self.wake()

    # Each channel's own task, without the lock

    def _spawn(self, channel: BookieChannel) -> None:
        name = f"channel-{self._reports.ledger.ledger_id}-{channel.position}"
        self._runtime.spawn(name, lambda: self._run(channel))

    def _run(self, channel: BookieChannel) -> None:
        while True:
            with self._lock:
                if not channel.is_active():
                    return
                group = self._take(channel)
                if group is None:
                    self.idle.append(channel)
                else:
                    channel.sending_since = self._runtime.now()
            if group is None:
                channel.wake_up.wait()
                continue
            error: BookKeeperError | None = None
            try:
                channel.store(group)
            except BookKeeperError as caught:
                error = caught
            except Exception as caught:  # noqa: BLE001  (whatever it was, nobody may wait for ever)
                error = AppendFailedError(f"{type(caught).__name__}: {caught}")
            with self._lock:
                channel.sending_since = None
                channel.is_unsure |= error is not None
                if not channel.is_active():
                    if error is None and not group.is_empty:
                        channel.next_entry = EntryId(
                            group.last + 1
                        )  # the bookie was left, but has this too
                    return
                if error is None:
                    if not group.is_empty:
                        self._reports.stored(channel, group)
                else:
                    self._reports.failed(channel, error)
                self._lock.notify_all()
            try:
                self._delivery.deliver()
            except BaseException:  # a callback ended this thread; the channel needs another
                if error is None:
                    self._spawn(channel)
                raise
            if error is not None:
                return

    def _take(self, channel: BookieChannel) -> Group | None:
        """Return what a channel sends next; a group that another channel took first is shared."""
        if channel.next_entry > self._pending.last:
            explicit, told, channel.told = self._explicit_lac, channel.told, self._explicit_lac
            return explicit if explicit is not told else None
        group = self._groups.get(channel.next_entry)
        if group is not None:
            return group
        confirmed = self._reports.take()
        group, self._ahead = self._ahead, None
        if group is None or not group.is_next(channel.next_entry, self._pending.last, confirmed):
            group = self._next_group(channel, confirmed)
        self._groups[group.first] = group
        self._explicit_lac = None  # slots ascend: it must not follow this group
        return group

    def _next_group(self, channel: BookieChannel, confirmed: EntryId) -> Group:
        most = min(self._config.max_group_bytes, messages.MOST_ENTRY_BYTES)
        run = self._pending.run(channel.next_entry, self._config.max_group_entries, most)
        return self._group(run, confirmed)

    def _group(self, run: Run, confirmed: EntryId) -> Group:
        self._time_ms = max(self._time_ms, self._runtime.wall_ms())
        return Group(
            self._reports.ledger, self._token, run, confirmed, self._runtime, self._time_ms
        )
