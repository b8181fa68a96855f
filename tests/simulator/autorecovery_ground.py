"""The cluster of a simulation with auditors and replication workers, and what it demands of them.

It judges several ledgers, and every step of a process of autorecovery at the moment it is taken.
What each of these rules is for is said where it is asked; their names are in PROTOCOL.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from typing_extensions import override

from spark_bookkeeper.bookie.schema import LEDGERS, MARKER_PATH, WITNESS_PATH
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Changed, Holder
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.testing import memory_storage, memory_store
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore
from spark_bookkeeper.testing.memory_underreplication import MemoryUnderreplication
from tests.simulator import checkers
from tests.simulator.checkers import InvariantError
from tests.simulator.evidence import Evidence, write_set
from tests.simulator.faults import Disaster, FaultPlan
from tests.simulator.ground import Life, SimCluster
from tests.simulator.history import History
from tests.simulator.runtime import EPOCH_MS
from tests.simulator.scheduler import Actor, World

PROBE_SECONDS: Final = 15.0
"""After which an agent notices that its bookie is not what it was."""

_RECENT_SECONDS: Final = 120.0
"""Longer than a check takes to read one ledger, whatever hangs."""

_WRITES: Final = frozenset({"put", "create"})
"""Operations with which a file begins."""


class ProcessStore(MemoryStore):
    """The session of one process of autorecovery. Its servers may end it while it is frozen.

    What it watches is told to the process in a task of its own, when it can hear it.
    """

    def __init__(
        self, ground: AutorecoveryCluster, actor: Actor, faults: memory_store.Faults
    ) -> None:
        super().__init__(ground.metadata, faults)
        self.ground = ground
        self.actor = actor
        self.excused: set[LedgerId] = set()
        """Ledgers whose locks went with a session of this process, which may not know it."""
        self.underreplication = _ProcessTree(self, ground.metadata)

    @override
    def watch_registrations(self, changed: Callable[[], None]) -> Callable[[], None]:
        return super().watch_registrations(self.ground.told_to(self.actor, changed))

    @override
    def on_session_lost(self, lost: Callable[[], None]) -> Callable[[], None]:
        return super().on_session_lost(self.ground.told_to(self.actor, lost))

    @override
    def expire(self) -> None:
        self.excused.update(self.held())
        super().expire()

    def held(self) -> set[LedgerId]:
        """The ledgers that it has locked."""
        locks = self.ground.metadata.tasks.locks
        return {i for i, (_, session) in locks.items() if session == self.session_number}

    @override
    def write_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, known: Versioned[LedgerMetadata]
    ) -> Versioned[LedgerMetadata]:
        self.ground.judge_lock(self, ledger_id, "changes its metadata")
        if known.value.state is LedgerState.OPEN and metadata.state is LedgerState.IN_RECOVERY:
            self.ground.judge_grace(ledger_id, known.value)
        return super().write_ledger(ledger_id, metadata, known)


class _ProcessTree(MemoryUnderreplication):
    def __init__(self, store: ProcessStore, cluster: MemoryCluster) -> None:
        super().__init__(
            cluster.tasks,
            store._call,
            lambda: store.session_number,
            cluster.number,
        )
        self._store = store
        self._taken: dict[Holder, set[LedgerId]] = {}

    def _told(self, changed: Changed | None) -> Changed | None:
        return None if changed is None else self._store.ground.told_to(self._store.actor, changed)

    @override
    def mark(
        self, ledger_id: LedgerId, missing: Iterable[str], now_ms: int, *, anew: bool = False
    ) -> bool:
        named = tuple(missing)
        self._store.ground.judge_mark(self._store, ledger_id, named)
        return super().mark(ledger_id, named, now_ms, anew=anew)

    @override
    def lock(self, ledger_id: LedgerId, holder: Holder) -> bool:
        is_taken = super().lock(ledger_id, holder)
        if is_taken:
            self._store.excused.discard(ledger_id)
            self._taken.setdefault(holder, set()).add(ledger_id)
        return is_taken

    @override
    def unlock(self, holder: Holder) -> None:
        super().unlock(holder)
        self._store.excused -= self._taken.pop(holder, set())

    @override
    def ledger_ids(self, changed: Changed | None = None):  # type: ignore[no-untyped-def]
        return super().ledger_ids(self._told(changed))

    @override
    def locks(self, changed: Changed | None = None):  # type: ignore[no-untyped-def]
        return super().locks(self._told(changed))

    @override
    def is_enabled(self, changed: Changed | None = None) -> bool:
        return super().is_enabled(self._told(changed))

    @override
    def delay_seconds(self, changed: Changed | None = None) -> Versioned[int] | None:
        return super().delay_seconds(self._told(changed))

    @override
    def stand(self, name: str, changed: Changed) -> bool:
        return super().stand(name, self._store.ground.told_to(self._store.actor, changed))


def _is_copy(path: str) -> bool:
    """Of what a worker waits for. Once enough bookies have a fence, it waits for no other's."""
    return path.startswith("ledgers/") and path.split("/")[2] in ("copies", "parts")


class AutorecoveryCluster(SimCluster):
    """Bookies, metadata and any number of ledgers that are judged.

    Args:
        grace_seconds: how long the writer of an open ledger has to leave a lost bookie.
    """

    def __init__(
        self,
        world: World,
        bookies: int,
        plan: FaultPlan,
        *,
        grace_seconds: float,
        has_directories: bool = True,
    ) -> None:
        self._ids: dict[bytes, LedgerId] = {}
        """Of the ledgers that are judged, by nonce."""
        self._last: dict[LedgerId, tuple[tuple[object, ...], float]] = {}
        """The last fragment of each, and since when it is that one."""
        self._went: dict[BookieId, list[float]] = {}
        """When the registration of each went."""
        self._came: dict[BookieId, float] = {}
        """When each bookie came that was not there from the beginning."""
        self._markers: dict[BookieId, bytes] = {}
        """As each was formatted last."""
        self._grace_seconds = grace_seconds
        self._told: dict[tuple[str, Callable[[], None]], Callable[[], None]] = {}
        self._landed: dict[tuple[bytes, BookieId], tuple[float, frozenset[str]]] = {}
        """When something of each ledger landed last on each bookie that it lacked until then, or
        before it was to have anything; and which processes had asked it for something of that
        ledger shortly before. What compaction writes is there already."""
        self._asked: dict[tuple[str, BookieId, str], float] = {}
        """When each process last asked each bookie for something in the directory of a ledger."""
        self.stores: dict[str, ProcessStore] = {}
        """The sessions of the processes that were started, by name."""
        self.acts = 0
        """What processes of autorecovery did to a bookie, a ledger's metadata or the tree."""
        super().__init__(world, bookies, plan, has_directories=has_directories)
        self.metadata.clock_ms = lambda: EPOCH_MS + int(world.now * 1000)

    # Sessions

    def process_store(self, actor: Actor) -> ProcessStore:
        """The session of a process of autorecovery."""
        return ProcessStore(self, actor, self.faults.metadata(actor))

    def told_to(self, actor: Actor, changed: Callable[[], None]) -> Callable[[], None]:
        """A callback that is called in a task of its actor; always the same one for the same."""
        key = (actor.name, changed)
        if key not in self._told:
            self._told[key] = lambda: self._world.tell(actor, changed)
        return self._told[key]

    @override
    def storage(self, actor: Actor, uri: str) -> MemoryStorage:
        bookie = BookieId(uri.removeprefix("memory://"))
        hook = self.faults.storage(actor, bookie)
        store = self.stores.get(actor.name)
        if store is None:
            return MemoryStorage(self.disks[bookie], hook)

        def judging(operation: str, path: str, moment: memory_storage.Moment) -> None:
            if moment == "before" and path.startswith(f"{LEDGERS}/"):
                directory = path.split("/")[1]
                self._asked[store.actor.name, bookie, directory] = self._world.now
            if moment == "before" and operation in _WRITES and _is_copy(path):
                ledger_id = LedgerId(int(path.split("/")[1].split("-")[0]))
                self.judge_lock(store, ledger_id, f"writes {path} to {bookie}")
            hook(operation, path, moment)

        return MemoryStorage(self.disks[bookie], judging)

    # What is demanded of a process

    def judge_lock(self, store: ProcessStore, ledger_id: LedgerId, what: str) -> None:
        """workers-hold-their-locks: nobody works on a ledger that another one may take.

        Except when its session has ended since it took the lock: nothing tells it at that moment,
        and nothing that is safe rests on it (SLOT-LOG rule R17).
        """
        self.acts += 1
        if ledger_id not in store.held() and ledger_id not in store.excused:
            self._fail(
                f"workers-hold-their-locks: {store.actor} {what}, and the lock of ledger "
                f"{ledger_id} is {self.metadata.tasks.locks.get(ledger_id, 'free')}"
            )

    def judge_mark(
        self, store: ProcessStore, ledger_id: LedgerId, missing: tuple[str, ...]
    ) -> None:
        """healthy-replicas-are-not-marked: only for who was away, or lacked something then."""
        self.acts += 1
        life = next((x for x in self.lives if self._ids.get(x.nonce) == ledger_id), None)
        if life is None or not life.evidence.versions:
            return
        for name in missing:
            bookie = BookieId(name)
            named = life.evidence.named(bookie, life.evidence.metadata)
            if bookie in self._went or named in life.evidence.lost:
                continue
            landed_at, asked_by = self._landed.get((life.nonce, bookie), (0.0, frozenset()))
            now = self._world.now
            if now - landed_at < _RECENT_SECONDS and store.actor.name in asked_by:
                continue  # it may have lacked that when it was asked
            if now - self._came.get(bookie, -_RECENT_SECONDS) < _RECENT_SECONDS:
                continue  # it may not have been there when the bookies were listed
            if not self.lacking(life.evidence, bookie):
                self._fail(
                    f"healthy-replicas-are-not-marked: {bookie} was never away, and has all that "
                    f"it is to have of ledger {ledger_id}"
                )

    def judge_grace(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """open-ledgers-get-their-grace: no writer is fenced before its time to leave is over."""
        fragment, since = self._last.get(ledger_id, ((), 0.0))
        last = metadata.last_fragment
        if fragment != (last.first_entry_id, last.ensemble):
            return  # this change will be refused, or the ledger is not judged
        times = [max(at, since) for bookie in last.ensemble for at in self._went.get(bookie, ())]
        first = min(times, default=None)
        now = self._world.now
        if first is None and (ledger_id, (metadata.nonce or b"").decode()) not in (
            self.metadata.writers
        ):
            return  # a replica is damaged, and whoever wrote it is gone
        if first is None or now - first < self._grace_seconds - 0.002:  # clocks count milliseconds
            self._fail(
                f"open-ledgers-get-their-grace: ledger {ledger_id} is fenced at {now}, a bookie of "
                f"{last.ensemble} went at {first}, and its writer has {self._grace_seconds} s"
            )

    def lacking(self, evidence: Evidence, bookie: BookieId) -> list[int]:
        """The entries that a closed ledger has on a bookie, and are not there; of another one those
        that are anywhere.
        """
        metadata = evidence.metadata
        last = metadata.last_entry_id if metadata.is_closed else max(evidence.content, default=-1)
        held = evidence.log(bookie).held
        return [
            entry_id
            for entry_id in range((-1 if last is None else last) + 1)
            if bookie in write_set(metadata, entry_id) and entry_id not in held
        ]

    def _fail(self, text: str) -> None:
        self._world.fail(InvariantError(text))

    # The ledgers

    def judge(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> Life:
        """Judge this ledger from now on; its writer has just learnt that it exists."""
        nonce = metadata.nonce or b""
        life = Life(
            History(self._world.history.events), self._durable_files, nonce, self.lives[0].evidence
        )
        life.evidence.is_rereplicated = True
        self._ids[nonce] = ledger_id
        self.lives.append(life)
        self._see_metadata()
        return life

    def id_of(self, life: Life) -> LedgerId:
        """Of a ledger that is judged."""
        return self._ids[life.nonce]

    @property
    def judged(self) -> list[Life]:
        """Ledgers that are judged, and were not deleted."""
        return [life for life in self.lives[1:] if not life.evidence.is_deleted]

    @override
    def _see_file(self, bookie: BookieId, path: str) -> None:
        owners = [life for life in self.judged if life.owns(path) and life.evidence.versions]
        before = [self.lacking(life.evidence, bookie) for life in owners]
        super()._see_file(bookie, path)
        for life, lacked in zip(owners, before, strict=True):
            is_new = bookie not in life.evidence.metadata.bookies()
            if is_new or self.lacking(life.evidence, bookie) != lacked:
                self._landed[life.nonce, bookie] = self._world.now, self._askers(life, bookie)

    def _askers(self, life: Life, bookie: BookieId) -> frozenset[str]:
        """The processes that asked a bookie for something of a ledger shortly before."""
        since = self._world.now - _RECENT_SECONDS
        return frozenset(
            process
            for (process, asked, directory), at in self._asked.items()
            if asked == bookie and at > since and life.owns(f"{LEDGERS}/{directory}/")
        )

    @override
    def _see_metadata(self) -> None:
        for life in self.judged:
            ledger_id = self._ids[life.nonce]
            found = self.metadata.ledgers.get(ledger_id)
            if found is None:
                life.evidence.is_deleted = True
                self.faults.happened["ledger deleted"] += 1
                self._world.history.note("metadata", "deleted", ledger_id)
            elif found.version != life.version:
                life.version = found.version
                life.evidence.versions.append(found.value)
                last = found.value.last_fragment
                fragment = (last.first_entry_id, last.ensemble)
                if self._last.get(ledger_id, (None, 0.0))[0] != fragment:
                    self._last[ledger_id] = fragment, self._world.now
                self._world.history.note(
                    "metadata",
                    found.value.state.name,
                    ledger_id,
                    found.value.last_entry_id,
                    " | ".join(
                        f"{f.first_entry_id}: {' '.join(f.ensemble)}" for f in found.value.fragments
                    ),
                )
                self._check(checkers.AFTER_METADATA, life)
                try:
                    life.removals.check()
                except InvariantError as error:
                    self._world.fail(error)

    # Bookies

    @override
    def strike(self, disaster: Disaster) -> None:
        before = set(self.metadata.registrations)
        super().strike(disaster)
        self._note_who_went(before)
        bookie = self.bookies[disaster.bookie % len(self.disks)]
        if not self._is_sound(bookie):  # its agent looks now and then, and takes it away
            self._world.later(PROBE_SECONDS, lambda: self._look_at(bookie))

    def _look_at(self, bookie: BookieId) -> None:
        if not self._is_sound(bookie):
            before = set(self.metadata.registrations)
            self._agents[bookie].unregister(bookie)
            self._note_who_went(before)

    def _note_who_went(self, before: set[BookieId]) -> None:
        for bookie in before - set(self.metadata.registrations):
            self._went.setdefault(bookie, []).append(self._world.now)

    @override
    def _format(self, bookie: BookieId) -> None:
        super()._format(bookie)
        self._markers[bookie] = self.disks[bookie].files[MARKER_PATH]
        self._register(bookie)

    @override
    def _register(self, bookie: BookieId, *, is_readonly: bool = False) -> None:
        if self._is_sound(bookie):
            super()._register(bookie, is_readonly=is_readonly)

    def _is_sound(self, bookie: BookieId) -> bool:
        """As an agent sees it: the marker is what it was, and there is what holds the ledgers."""
        disk = self.disks[bookie]
        there = disk.files.get(MARKER_PATH)
        has_ledgers = (
            LEDGERS in disk.directories if disk.has_directories else (WITNESS_PATH in disk.files)
        )
        return there is not None and there == self._markers.get(bookie) and has_ledgers

    def add_bookie(self) -> BookieId:
        """One more, of a new name."""
        bookie = BookieId(f"bookie-{len(self.disks)}:3181")
        model = next(iter(self.disks.values()))
        disk = type(model)(bookie, has_directories=model.has_directories)
        self.disks[bookie] = disk
        self._agents[bookie] = self.metadata.session()
        self._outages[bookie] = 0
        self._came[bookie] = self._world.now
        self._format(bookie)
        return bookie

    def is_here(self, bookie: BookieId, life: Life) -> bool:
        """Whether a bookie is registered in the incarnation that a ledger means."""
        held, _ = self.metadata.registrations.get(bookie, (None, 0))
        if held is None:
            return False
        return life.evidence.named(bookie, life.evidence.metadata)[1] in ("", held.incarnation)
