"""The cluster of a simulation: memory disks and a memory metadata store, with faults at the doors.

It tells the evidence about every effect as it happens and asks the checkers at once, so that a
broken invariant is reported at the step that broke it.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_bookkeeper.bookie.format import furnish
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.memory import MemoryDisk, MemoryStorage
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.client.bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.metadata.memory import MemoryCluster, MemoryStore
from spark_bookkeeper.metadata.store import Cookie, Registration, Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.testing.simulation import checkers
from spark_bookkeeper.testing.simulation.evidence import Evidence
from spark_bookkeeper.testing.simulation.faults import Disaster, FaultPlan, Faults
from spark_bookkeeper.testing.simulation.runtime import SimRuntime
from spark_bookkeeper.testing.simulation.scheduler import Actor, World


class SimCluster:
    """Bookies and metadata of one run, for one ledger.

    Args:
        world: in which it stands.
        bookies: how many there are; every one is formatted and registered.
        plan: what goes wrong.
        has_directories: whether bookies are like disks, or else like buckets.
    """

    def __init__(
        self, world: World, bookies: int, plan: FaultPlan, *, has_directories: bool = True
    ) -> None:
        self._world = world
        self.metadata = MemoryCluster()
        self._agents: dict[BookieId, MemoryStore] = {}
        """The sessions that hold the registrations."""
        self.disks: dict[BookieId, MemoryDisk] = {}
        self._incarnations: dict[BookieId, str] = {}
        self._outages: dict[str, int] = {}
        self.faults = Faults(world, plan, self)
        self.evidence = Evidence(world.history, self._durable_files)
        self._ledger_id: LedgerId | None = None
        self._seen_version = -1
        self._instance_id = self.metadata.session().initialize_cluster()
        for number in range(bookies):
            bookie = BookieId(f"bookie-{number}:3181")
            self.disks[bookie] = MemoryDisk(bookie, has_directories=has_directories)
            self._agents[bookie] = self.metadata.session()
            self._outages[bookie] = 0
            self._format(bookie)

    @property
    def bookies(self) -> list[BookieId]:
        return list(self.disks)

    def store(self, actor: Actor) -> MemoryStore:
        """An actor's session with the metadata store."""
        return self.metadata.session(self.faults.metadata(actor))

    def storage(self, actor: Actor, uri: str) -> MemoryStorage:
        """An actor's handle on the partition at a root URI."""
        bookie = BookieId(uri.removeprefix("memory://"))
        return MemoryStorage(self.disks[bookie], self.faults.storage(actor, bookie))

    def watch(self, ledger_id: LedgerId) -> None:
        """Judge this ledger from now on; its writer has just learnt that it exists."""
        self._ledger_id = ledger_id
        self._see_metadata()

    def context(self, actor: Actor, config: ClientConfig) -> ClientContext:
        """What an actor needs to be a client of this cluster."""
        runtime = SimRuntime(self._world, actor)
        store = self.store(actor)
        bookies = Bookies(store, lambda uri: self.storage(actor, uri), runtime, config)
        return ClientContext(store, bookies, runtime, config)

    def heal(self) -> None:
        """Faults stop, and every bookie answers and is registered."""
        self.faults.stop()
        for bookie in self.disks:
            self._register(bookie)

    # What faults do (``faults.Ground``)

    def strike(self, disaster: Disaster) -> None:
        bookie = self.bookies[disaster.bookie % len(self.disks)]
        disk = self.disks[bookie]
        match disaster.kind:
            case "down":
                self.faults.down.add(bookie)
                self._world.later(disaster.seconds, lambda: self.faults.down.discard(bookie))
            case "wipe" | "destroy":
                self._outages[bookie] += 1
                self._lose(bookie, is_all=True)
                disk.wipe()
                if disk.has_directories:  # a bucket takes what arrives late
                    disk.pending.clear()
                self.evidence.damaged -= {(bookie, path) for _, path in self.evidence.damaged}
                self._agents[bookie].unregister(bookie)
                if disaster.kind == "wipe":
                    self._world.later(disaster.seconds, lambda: self._format(bookie))
                self._check(checkers.ALWAYS)
            case "damage":
                self._lose(bookie, is_all=False)
                for path in [path for path in disk.files if self._world.dice.random() < 0.5]:
                    disk.corrupt(path, self._damage)
                    self.evidence.damaged.add((bookie, path))
                self._check(checkers.ALWAYS)
            case "power cut":
                self._outages[bookie] += 1
                survivors = {path for path in disk.files if self._world.dice.random() < 0.5}
                disk.power_cut(lambda path: path in survivors)
                self.evidence.changed(bookie)
                self._check(checkers.ALWAYS)
            case "expire":
                self._agents[bookie].expire()
                self._world.later(disaster.seconds, lambda: self._register(bookie))

    def lost_bookies(self) -> list[BookieId]:
        """Bookies whose storage was destroyed or damaged at some time."""
        return sorted({bookie for bookie, _ in self.evidence.lost})

    def _lose(self, bookie: BookieId, *, is_all: bool) -> None:
        incarnation = (bookie, self._incarnations[bookie])
        self.evidence.lost.add(incarnation)
        if is_all:
            held = self.evidence.log(bookie).held
            self.evidence.vanished.setdefault(incarnation, frozenset(held))
        self.evidence.changed(bookie)

    def _damage(self, data: bytes) -> bytes:
        """One bit flipped, or the end cut off."""
        if not data:
            return b"?"
        at = self._world.dice.randrange(len(data))
        if self._world.dice.random() < 0.3:
            return data[:at]
        return data[:at] + bytes([data[at] ^ 1 << self._world.dice.randrange(8)]) + data[at + 1 :]

    def took_effect(self, door: str, operation: str, subject: str) -> None:
        if not door:
            self._see_metadata()
        elif operation in ("put", "sync", "finish"):
            self._see_file(BookieId(door), subject)
        elif operation in ("delete", "delete_directory"):
            self.evidence.changed(BookieId(door))
            self._check(checkers.ALWAYS)

    def land_later(self, door: str, seconds: float) -> None:
        def land() -> None:
            if door:
                disk = self.disks[BookieId(door)]
                if disk.pending:
                    put = disk.pending[0]
                    landed = disk.land(put)
                    self._world.history.note("world", "late put", door, put.path, landed)
                    self._see_file(BookieId(door), put.path)
            elif self.metadata.pending:
                self._world.history.note("world", "late metadata write")
                self.metadata.pending.pop(0)()
                self._see_metadata()

        self._world.later(seconds, land)

    def outages(self, door: str) -> int:
        return self._outages[door]

    def told(self) -> None:
        """A client was told something; called by the actors after they noted it."""
        self._check(checkers.AFTER_TELLING)

    def acknowledged(self) -> None:
        """A writer was told that something is stored; called after it noted that."""
        self._check(checkers.AFTER_ACKNOWLEDGING)

    # Evidence

    def _durable_files(self, bookie: BookieId) -> Mapping[str, bytes]:
        disk = self.disks[bookie]
        return {path: disk.files[path] for path in sorted(disk.durable) if path in disk.files}

    def _see_file(self, bookie: BookieId, path: str) -> None:
        disk = self.disks[bookie]
        if path in disk.durable and path in disk.files:
            self.evidence.landed(bookie, path, disk.files[path])
            self._check(checkers.AFTER_STORING)

    def _see_metadata(self) -> None:
        if self._ledger_id is None:
            return
        found = self.metadata.ledgers.get(self._ledger_id)
        if found is None:
            if not self.evidence.is_deleted:
                self.evidence.is_deleted = True
                self._world.history.note("metadata", "deleted")
            return
        if self.evidence.is_deleted:
            self._world.fail(checkers.InvariantError("deleted-stays-deleted: it is there again"))
        if found.version != self._seen_version:
            self._seen_version = found.version
            self.evidence.versions.append(found.value)
            ensemble = " ".join(found.value.last_fragment.ensemble)
            self._world.history.note(
                "metadata", found.value.state.name, found.value.last_entry_id, ensemble
            )
            self._check(checkers.AFTER_METADATA)

    def _check(self, which: tuple[checkers.Checker, ...]) -> None:
        try:
            checkers.check(self.evidence, which)
        except checkers.InvariantError as error:
            self._world.fail(error)

    # Bookies

    def _format(self, bookie: BookieId) -> None:
        """Give a bookie a new incarnation: marker, cookie, registration."""
        incarnation = f"{self._world.dice.getrandbits(128):032x}"
        marker = Marker(bookie, incarnation, self._instance_id)
        furnish(MemoryStorage(self.disks[bookie]), marker)
        self._incarnations[bookie] = incarnation
        # As it would be read: a session would send it through the text format of cookies.
        cookie = Cookie(bookie, self._uri(bookie), incarnation, self._instance_id)
        known = self.metadata.cookies.get(bookie)
        self.metadata.cookies[bookie] = Versioned(cookie, known.version + 1 if known else 0)
        self._register(bookie)

    def _register(self, bookie: BookieId) -> None:
        """Register a bookie that is formatted, unless it is."""
        incarnation = self._incarnations[bookie]
        there, _ = self.metadata.registrations.get(bookie, (None, 0))
        is_registered = there is not None and there.incarnation == incarnation
        if MARKER_PATH in self.disks[bookie].files and not is_registered:
            registration = Registration(bookie, self._uri(bookie), incarnation)
            self._agents[bookie].register(registration)

    @staticmethod
    def _uri(bookie: BookieId) -> str:
        return f"memory://{bookie}"

