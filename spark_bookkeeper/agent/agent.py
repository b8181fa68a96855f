"""The agent of one bookie: it keeps a storage partition registered while the storage is well.

No data passes through it. Every few seconds it probes the storage. The latest observation alone
decides what it registers in the cluster (``health.py``). It remembers nothing but the registration
itself, so a restarted agent makes the same decisions.

Source: BookKeeper ``bookie/BookieStateManager`` (registering again after a lost session).
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from spark_bookkeeper.agent.cookies import has_cookie, touch_cookie
from spark_bookkeeper.agent.duties import Duties, Duty, DutyStatus
from spark_bookkeeper.agent.health import (
    Observation,
    Published,
    Register,
    Stay,
    Unregister,
    decide,
    observe,
)
from spark_bookkeeper.agent.readonly import read_order
from spark_bookkeeper.agent.takeover import OpenRoot, check_claim, claim_partition
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.client.cluster_clock import SAME_CLOCK_SECONDS, ClusterClock
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CookieMismatchError,
    MetadataError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata.store import READONLY_BELOW, MetadataStore, Registration
from spark_bookkeeper.metrics import BookieMetrics
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.runtime.runtime import Runtime, Task

log = logging.getLogger(__name__)

_PATIENCE_INTERVALS = 3
"""The number of probe intervals after which an unanswered probe counts as failed."""

_EARLIEST = 0.1
"""The least time between two early compactions for many files, as a share of the usual interval."""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The last observations of an agent, and its state."""

    bookie_id: BookieId
    root_uri: str
    incarnation: str
    published: Published | None
    """``None`` while the bookie is not registered."""
    problem: str | None
    """Why the bookie is not registered."""
    seconds_since_good_probe: float | None = None
    """``None`` before the first successful probe of the storage."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    seconds_since_zookeeper_answered: float | None = None
    """``None`` before the first answer."""
    zookeeper_problem: str | None = None
    """Why the last call to the metadata store failed; ``None`` if it succeeded."""
    clock_ahead_s: int = 0
    """How far this machine's clock is ahead of ZooKeeper's; negative if it is behind."""
    free_inodes: int | None = None
    total_inodes: int | None = None
    duties: tuple[DutyStatus, ...] = ()

    @property
    def state(self) -> str:
        """``writable``, ``readonly`` or ``unregistered``."""
        if self.published is None:
            return "unregistered"
        return "readonly" if self.published.is_readonly else "writable"

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``/health``: state, reason, storage, clock and duties."""
        return {
            "bookie_id": self.bookie_id,
            "state": self.state,
            "reason": self.published.readonly_reason if self.published else self.problem,
            "root_uri": self.root_uri,
            "incarnation": self.incarnation,
            "seconds_since_good_probe": self.seconds_since_good_probe,
            "zookeeper_problem": self.zookeeper_problem,
            "seconds_since_zookeeper_answered": self.seconds_since_zookeeper_answered,
            "clock_ahead_seconds": self.clock_ahead_s,
            "free_bytes": self.free_bytes,
            "total_bytes": self.total_bytes,
            "free_inodes": self.free_inodes,
            "total_inodes": self.total_inodes,
            "duties": [asdict(duty) for duty in self.duties],
        }


class BookieAgent:
    """Serves one partition. Call ``start``, later ``stop``; both are idempotent.

    Args:
        store: the cluster; stays open when the agent stops.
        partition: the partition; stays open when the agent stops.
        bookie_id: the id of the bookie.
        runtime: clock and threads.
        config: how often to probe, and when space is short.
        rack: the rack of the bookie, for placement.
        moved_from: see ``claim_partition``.
        duties: background work while the bookie is registered or tries to be.
        metrics: the counters to use; ``None`` makes new ones.
    """

    def __init__(
        self,
        store: MetadataStore,
        partition: Partition,
        bookie_id: BookieId,
        runtime: Runtime,
        config: BookieConfig | None = None,
        *,
        rack: str = "/default-rack",
        moved_from: OpenRoot | None = None,
        duties: Sequence[Duty] = (),
        metrics: BookieMetrics | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self.metrics = metrics or BookieMetrics()
        self._store = store
        self._partition = partition
        self._runtime = runtime
        self._config = config or BookieConfig()
        self._rack = rack
        self._moved_from = moved_from
        self._marker: Marker | None = None
        self._published: Published | None = None
        self._is_unsure = False
        self._problem: str | None = None
        self._lacks_cookie = False
        self._owes_cookie = False
        """Whether the cookie must still be written again after a registration."""
        self._sessions_lost = 0
        self._is_listening = False
        self._is_stopping = False
        self._changed = runtime.condition()
        self._wake_up = AutoResetEvent(runtime)
        """Set to make the next probe start at once."""
        self._loop: Task | None = None
        self._look: Task | None = None
        self._looks = 0
        """The number of the current probe; results of earlier ones are ignored."""
        self._seen: Observation | None = None
        self._good: tuple[float, Observation] | None = None
        """The time and the result of the last successful probe."""
        self._is_well = False
        self._answered: float | None = None
        self._silence: str | None = None
        self._clock = ClusterClock(asked_seconds=3600)
        self._clock_ahead_s = 0
        self._files: int | None = None
        """The lowest number of used inodes since room was made for many files the last time."""
        self._many_after = 0.0
        """The time before which no further room is made for many files."""
        self._order: str | None = None
        """Why an operator made the bookie read-only, as last read from the metadata store."""
        self._duties = Duties(runtime, str(bookie_id), duties, self.metrics)
        self.metrics.show_bookie(lambda: self.status.as_dict())

    def __repr__(self) -> str:
        state = "not registered"
        if self._published is not None:
            state = "read-only" if self._published.is_readonly else "writable"
        return f"BookieAgent({self.bookie_id}, {self._partition.uri}, {state})"

    @property
    def status(self) -> AgentStatus:
        """The last observations of the agent, and its state."""
        # Between two probes the loop may wait for the metadata store. The storage is not to blame
        # for that time, so the last probe counts as fresh.
        is_well = self._is_well and self._look is None
        at, seen = self._good or (None, Observation())
        free_inodes, total_inodes = seen.inodes or (None, None)
        return AgentStatus(
            bookie_id=self.bookie_id,
            root_uri=self._partition.uri,
            incarnation=self._marker.incarnation if self._marker else "",
            published=self._published,
            problem=self._problem,
            seconds_since_good_probe=0.0 if is_well else self._since(at),
            free_bytes=seen.free_bytes,
            total_bytes=seen.total_bytes,
            seconds_since_zookeeper_answered=self._since(self._answered),
            zookeeper_problem=self._silence,
            clock_ahead_s=self._clock_ahead_s,
            free_inodes=free_inodes,
            total_inodes=total_inodes,
            duties=self._duties.status(),
        )

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else self._runtime.now() - moment

    def start(self) -> None:
        """Format the partition if it is new, check it, register it, and go on serving it.

        Raises:
            CookieMismatchError: this is not the partition of that bookie, or another agent
                serves it; nothing was changed.
            BookieUnavailableError: the storage does not answer.
            UnsuitableStorageError: a new partition on a file system that cannot fence.
            MetadataUnavailableError, NoClusterError: the metadata store does not answer, or
                holds no cluster.
        """
        if self._loop is not None:
            return
        self._is_stopping = False
        self._look = None
        self._looks += 1  # a probe of an earlier run may still end; its result is ignored
        self._marker = claim_partition(
            self._store,
            self._partition,
            self.bookie_id,
            token=self._runtime.token,
            moved_from=self._moved_from,
        )
        self._lacks_cookie = False
        if not self._is_listening:
            self._store.on_session_lost(self._session_lost)
            self._is_listening = True
        seen = observe(self._partition, self._marker, self._runtime.token)
        self._count_probe(seen)
        self._problem = seen.problem
        if seen.problem is not None:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id} was not registered: {seen.problem}",
                bookie_id=self.bookie_id,
            )
        try:
            self._ask_cluster()
            self._carry_out(decide(None, self._with_orders(seen), self._config))
        except CookieMismatchError:
            self._is_unsure = False  # another agent holds the registration, so this one has none
            raise
        except BaseException:
            self._take_back("the agent could not start")
            raise
        self._remove_old_probes()
        self._loop = self._runtime.spawn(f"agent-{self.bookie_id}", self._run)
        self._duties.start()

    def stop(self) -> None:
        """Stop probing and unregister; the partition stays as it is."""
        self.pause()
        if self._published is not None or self._is_unsure:
            self._take_back("the agent stops")

    def pause(self) -> None:
        """Stop probing and stop the duties, but keep the registration: from now on no change of the
        storage is noticed.
        """
        self._duties.stop()
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        loop, self._loop = self._loop, None
        if loop is not None:
            self._wake_up.set()
            loop.join()

    def step(self) -> None:
        """Probe once, decide, and carry out the decision. Raises no ``BookKeeperError``."""
        seen = self._look_with_patience()
        if seen is None:
            return
        self._count_probe(seen)
        self._ask_cluster()
        try:
            if seen.other is not None and self._published is None and not self._is_unsure:
                seen = self._formatted_again(seen, seen.other)
            elif seen.problem is None and self._published is None and not self._lacks_cookie:
                # Time has passed since the claim was checked: the cluster may have been formatted,
                # or the bookie removed and its cookie deleted.
                assert self._marker is not None
                check_claim(self._store, self._partition, self.bookie_id, self._marker)
            elif seen.problem is None:
                seen = self._with_cookie(seen)
            action = decide(self._published, self._with_orders(seen), self._config)
            if isinstance(action, Stay) and seen.problem is not None and self._is_unsure:
                action = Unregister(seen.problem)
            self._carry_out(action)
        except BookKeeperError as error:
            seen = Observation(error.message)
            if isinstance(error, MetadataUnavailableError):  # it failed after _ask_cluster
                self._silence = error.message
        if seen.problem != self._problem and seen.problem is not None:
            log.warning("bookie %s is not registered: %s", self.bookie_id, seen.problem)
        self._problem = seen.problem

    def _run(self) -> None:
        while True:
            self._wake_up.wait(self._config.probe_interval_ms / 1000)
            if self._is_stopping:
                return
            try:
                self.step()
            except Exception:
                # An error of our own must not end the loop: the bookie would stay registered
                # whatever happens to its storage.
                log.exception("bookie %s: the agent made a mistake", self.bookie_id)
                self._take_back("the agent made a mistake")

    def _look_with_patience(self) -> Observation | None:
        """Return the result of ``observe``, or a problem if it times out: storage that hangs is not
        well.

        A probe that hangs is left running, and no other begins before it ends.

        Returns:
            ``None`` when the agent stops during the probe: there is no result to act on.
        """
        patience = _PATIENCE_INTERVALS * self._config.probe_interval_ms / 1000
        if self._look is None:
            self._seen = None
            self._looks += 1
            number = self._looks
            self._look = self._runtime.spawn(
                f"probe-{self.bookie_id}", lambda: self._observe(number)
            )
        deadline = self._runtime.now() + patience
        with self._changed:
            while self._seen is None and not self._is_stopping:
                left = deadline - self._runtime.now()
                if left <= 0:
                    return Observation(f"the storage has not answered for {patience:.0f} s")
                self._changed.wait(left)
            seen = self._seen
        if seen is not None:
            self._look = None
        return seen

    def _observe(self, number: int) -> None:
        assert self._marker is not None
        try:
            seen = observe(self._partition, self._marker, self._runtime.token)
        except Exception as error:
            log.exception("bookie %s: looking at its storage failed", self.bookie_id)
            seen = Observation(f"{type(error).__name__}: {error}")
        with self._changed:
            if number == self._looks:
                self._seen = seen
                self._changed.notify_all()

    def _formatted_again(self, seen: Observation, found: Marker) -> Observation:
        """Serve the new incarnation if the partition was formatted again for this bookie, as after
        a replacement of the disk. Return what ``observe`` finds. If the claim fails, return
        ``seen``.
        """
        assert self._marker is not None
        try:
            check_claim(self._store, self._partition, self.bookie_id, found)
        except CookieMismatchError:
            return seen
        log.warning(
            "bookie %s was formatted again: it is served as incarnation %s, and as %s no more",
            self.bookie_id,
            found.incarnation,
            self._marker.incarnation,
        )
        self._marker, self._lacks_cookie = found, False
        return observe(self._partition, found, self._runtime.token)

    def _with_cookie(self, seen: Observation) -> Observation:
        """Return the observation, extended by whether the bookie's cookie was deleted."""
        assert self._marker is not None
        before = self._lacks_cookie
        try:
            self._lacks_cookie = not has_cookie(self._store, self._marker)
        except CookieMismatchError as error:
            return Observation(error.message)
        except MetadataError as error:
            log.info("the cookie of bookie %s could not be read: %s", self.bookie_id, error)
        if self._lacks_cookie and not before:
            log.warning(
                "bookie %s takes no new data: its cookie was deleted while this agent runs. If "
                "the bookie is to stay, `spark-bookkeeper bookie cookie create --bookie-id %s "
                "--root %s` writes it again, and the bookie goes on. If it was given up, stop this "
                "agent",
                self.bookie_id,
                self.bookie_id,
                shlex.quote(self._partition.uri),
            )
        return replace(seen, lacks_cookie=self._lacks_cookie)

    def _ask_cluster(self) -> None:
        """Read the read-only order and the cluster's time; without an answer the last values stay.
        Every probe calls it, to know whether the metadata store answers.
        """
        try:
            order = read_order(self._store, self.bookie_id)
            self._order = None if order is None else order.reason
            told_ms = self._clock.now_ms(self._store, self._runtime)
            ahead = round((self._runtime.wall_ms() - told_ms) / 1000)
            if abs(ahead - self._clock_ahead_s) > SAME_CLOCK_SECONDS:  # the clock was set, or slept
                told_ms = self._clock.asked_ms(self._store, self._runtime) or told_ms
                ahead = round((self._runtime.wall_ms() - told_ms) / 1000)
            self._clock_ahead_s = ahead if abs(ahead) > SAME_CLOCK_SECONDS else 0
        except MetadataError as error:
            log.info("orders for bookie %s could not be read: %s", self.bookie_id, error)
            if isinstance(error, MetadataUnavailableError):
                self._silence = error.message
                return
        self._answered, self._silence = self._runtime.now(), None

    def _with_orders(self, seen: Observation) -> Observation:
        """Return the observation, extended by the results of ``_ask_cluster``."""
        return replace(seen, order=self._order, clock_ahead_s=self._clock_ahead_s)

    def _count_probe(self, seen: Observation) -> None:
        self.metrics.probes.inc()
        self._is_well = seen.problem is None
        if self._is_well:
            self._good = self._runtime.now(), seen
            self._count_files(seen)
        else:
            self.metrics.failed_probes.inc()

    def _count_files(self, seen: Observation) -> None:
        """Make room if many files were created, at most once in ``_EARLIEST`` of the interval. The
        file system's inode count needs no walk, but other programs change it every minute, too.
        """
        if seen.inodes is None:
            return
        free, total = seen.inodes
        count, most, now = total - free, self._config.compact_after_files, self._runtime.now()
        self._files = min(count, count if self._files is None else self._files)
        if most and count - self._files >= most and now >= self._many_after:
            self._files = count
            self._many_after = now + self._config.compact_interval_s * _EARLIEST
            self._duties.make_room()

    def _carry_out(self, action: Stay | Register | Unregister) -> None:
        if isinstance(action, Register):
            self._publish(action.state)
        elif isinstance(action, Unregister):
            self._take_back(action.reason)
        if self._owes_cookie and self._published is not None:
            self._touch_cookie()

    def _touch_cookie(self) -> None:
        """Write the cookie again, so that a removal of the bookie that began before it registered
        fails. Without an answer each later probe tries again.
        """
        try:
            is_there = touch_cookie(self._store, self.bookie_id)
        except MetadataError as error:
            log.info("the cookie of %s could not be written again: %s", self.bookie_id, error)
            return
        self._owes_cookie = False
        if not is_there:
            self._wake_up.set()  # just removed: probe at once, so that it takes no new data

    def _publish(self, state: Published) -> None:
        assert self._marker is not None
        free_inodes, total_inodes = state.seen.inodes or (None, None)
        sessions_lost = self._sessions_lost
        before, self._published = self._published, None
        self._is_unsure = True  # until the store has answered for certain
        self._owes_cookie |= before is None
        self._store.register(
            Registration(
                bookie_id=self.bookie_id,
                root_uri=self._partition.uri,
                incarnation=self._marker.incarnation,
                is_readonly=state.is_readonly,
                rack=self._rack,
                free_bytes=state.seen.free_bytes,
                total_bytes=state.seen.total_bytes,
                free_inodes=free_inodes,
                total_inodes=total_inodes,
                properties={
                    **state.properties,
                    READONLY_BELOW: str(self._config.readonly_below_free_bytes),
                },
            )
        )
        with self._changed:
            if sessions_lost == self._sessions_lost:  # else it ended with its session
                self._published = state
        self._is_unsure = False
        if state.is_short and not (before is not None and before.is_short):
            self._duties.make_room()
        if before is None or before.is_readonly != state.is_readonly:
            log.info(
                "bookie %s is registered as %s",
                self.bookie_id,
                f"read-only: {state.readonly_reason}" if state.is_readonly else "writable",
            )

    def _take_back(self, reason: str) -> None:
        try:
            self._store.unregister(self.bookie_id)
        except BookKeeperError as error:
            # The registration ends with the session at the latest, and the next step tries again.
            level = logging.INFO if self._is_stopping else logging.WARNING
            log.log(level, "bookie %s could not be unregistered: %s", self.bookie_id, error)
            return
        self._published = None
        self._is_unsure = False
        log.info("bookie %s is unregistered: %s", self.bookie_id, reason)

    def _session_lost(self) -> None:
        """Note that the registration ended with its session; called from any thread."""
        with self._changed:
            self._sessions_lost += 1
            self._published = None
        self._wake_up.set()

    def _remove_old_probes(self) -> None:
        """Remove probe files of a killed agent, after registering: then no other agent runs."""
        try:
            self._partition.remove_old_probes()
        except BookKeeperError as error:
            log.info("old probes of bookie %s stay: %s", self.bookie_id, error)
