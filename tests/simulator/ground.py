"""The cluster of a simulation: memory disks and a memory metadata store, with faults at the doors.

It tells the evidence about every effect as it happens and asks the checkers at once, so that a
broken invariant is reported at the step that broke it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from typing_extensions import override

from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.metadata.store import Cookie, Registration, Versioned
from spark_bookkeeper.metrics import ClientMetrics
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore
from tests.simulator import checkers
from tests.simulator.damage import LOST_LEDGERS, Damage, draw_damages
from tests.simulator.evidence import Evidence
from tests.simulator.faults import Disaster, FaultPlan, Faults
from tests.simulator.history import History
from tests.simulator.removals import Removals
from tests.simulator.runtime import SimRuntime
from tests.simulator.scheduler import Actor, World

_METRICS: Final = ClientMetrics()
"""Of all clients: nobody looks at it here, and to make one takes as long as some storage calls."""


class Life:
    """One ledger of the id: what clients were told of it, and what lies there of it.

    Args:
        history: of this life.
        durable_files: as ``Evidence`` asks for them, of all lives.
        nonce: tells its files and metadata from another life's.
        before: evidence of the life before, which the same bookies held.
    """

    def __init__(
        self,
        history: History,
        durable_files: Callable[[BookieId], Mapping[str, bytes]],
        nonce: bytes = b"",
        before: Evidence | None = None,
    ) -> None:
        self.history = history
        self.nonce = nonce
        self.version = -1
        """The last one that was seen."""

        def own_files(bookie: BookieId) -> Mapping[str, bytes]:
            files = durable_files(bookie)
            return {path: files[path] for path in files if self.owns(path)}

        self.evidence = Evidence(history, own_files)
        if before is not None:  # what became of bookies became of both
            self.evidence.lost = before.lost
            self.evidence.damaged = before.damaged
            self.evidence.is_rereplicated = before.is_rereplicated
            self.evidence.is_compacted = before.is_compacted
        self.removals = Removals(self.evidence)

    def owns(self, path: str) -> bool:
        """Whether a file is of this life, by the name of its ledger's directory."""
        pieces = path.split("/", 2)
        return pieces[0] != "ledgers" or pieces[1].endswith(f"-{self.nonce.decode()}")


class OlderClient(MemoryStore):
    """A session of a client, or a tool, that knows nothing of used ids.

    What it creates it makes in place of the ledger that is there.
    """

    @override
    def create_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        *,
        is_generated: bool = False,
        is_kept: bool = False,
        writer: str | None = None,
    ) -> Versioned[LedgerMetadata]:
        return self.cluster.recreate_by_another_tool(ledger_id, metadata)


class SimCluster:
    """Bookies and metadata of one run, for one ledger id.

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
        self.lives = [Life(world.history, self._durable_files)]
        """Of the ledger id: its ledger, and one that another tool made again under that id."""
        self._ledger_id: LedgerId | None = None
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

    def older_client(self, actor: Actor) -> OlderClient:
        """An actor's session with the metadata store that makes ledgers again."""
        return OlderClient(self.metadata, self.faults.metadata(actor))

    def storage(self, actor: Actor, uri: str) -> MemoryStorage:
        """An actor's handle on the partition at a root URI."""
        bookie = BookieId(uri.removeprefix("memory://"))
        return MemoryStorage(self.disks[bookie], self.faults.storage(actor, bookie))

    @property
    def evidence(self) -> Evidence:
        """Of the first life."""
        return self.lives[0].evidence

    def watch(self, ledger_id: LedgerId) -> None:
        """Judge this ledger from now on; its writer has just learnt that it exists."""
        self._ledger_id = ledger_id
        self._see_metadata()

    def life(self, metadata: LedgerMetadata) -> Life:
        """Whose metadata these are."""
        return next(life for life in self.lives if life.nonce == metadata.nonce)

    def context(
        self, actor: Actor, config: ClientConfig, store: MemoryStore | None = None
    ) -> ClientContext:
        """What an actor needs to be a client of this cluster."""
        runtime = SimRuntime(self._world, actor)
        store = store or self.store(actor)
        store.tell = lambda call: self._world.tell(actor, call)

        def opened(uri: str, bookie_client: BookieClient) -> FileBookie:
            return FileBookie(BoundedStorage(self.storage(actor, uri), bookie_client))

        bookies = Bookies(store, opened, runtime, config)
        writer = WriterInfo(actor.name, 1, "simulation", "lifetime")
        return ClientContext(store, bookies, runtime, config, writer=writer, metrics=_METRICS)

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
            case "hang":
                self.faults.hang(bookie, disaster.seconds)
            case "wipe" | "destroy":
                self._outages[bookie] += 1
                self._lose(bookie, is_all=True)
                disk.wipe()
                if disk.has_directories:  # a bucket takes what arrives late
                    disk.pending.clear()
                self.evidence.damaged.difference_update(
                    [damaged for damaged in self.evidence.damaged if damaged[0] == bookie]
                )
                self._agents[bookie].unregister(bookie)
                if disaster.kind == "wipe":
                    self._world.later(disaster.seconds, lambda: self._format(bookie))
                self._check(checkers.ALWAYS)
            case "damage":
                # What a power cut may take, with all that it tells of what is below, is not there.
                files = {path: data for path, data in disk.files.items() if path in disk.durable}
                if damages := draw_damages(files, self._world.dice, disaster.what):
                    self._damage(bookie, damages)
                    self._check(checkers.ALWAYS)
            case "power cut":
                self._outages[bookie] += 1
                survivors = {path for path in disk.files if self._world.dice.random() < 0.5}
                disk.power_cut(lambda path: path in survivors)
                self._changed(bookie)
                self._check(checkers.ALWAYS)
            case "expire":
                self._agents[bookie].expire()
                self._world.later(disaster.seconds, lambda: self._register(bookie))
            case "read-only":
                self._register(bookie, is_readonly=True)
                self._world.later(disaster.seconds, lambda: self._register(bookie))

    def lost_bookies(self) -> list[BookieId]:
        """Bookies whose storage was destroyed or damaged at some time."""
        return sorted({bookie for bookie, _ in self.evidence.lost})

    def _lose(self, bookie: BookieId, *, is_all: bool) -> None:
        incarnation = (bookie, self._incarnations[bookie])
        for life in self.lives:
            life.evidence.lost.add(incarnation)
            if is_all:
                held = life.evidence.log(bookie).held
                life.evidence.vanished.setdefault(incarnation, frozenset(held))
        self._changed(bookie)

    def _damage(self, bookie: BookieId, damages: list[Damage]) -> None:
        disk = self.disks[bookie]
        for name in sorted({damage.name for damage in damages}):
            self.faults.happened[f"damage: {name}"] += 1
            self._world.history.note("world", "damage", bookie, name)
        self._lose(bookie, is_all=False)
        for damage in damages:
            if damage.content is None:
                del disk.files[damage.path]
                disk.durable.discard(damage.path)
            else:
                disk.files[damage.path] = damage.content
                self.evidence.damaged.add((bookie, damage.path))
        if any(damage.name == LOST_LEDGERS for damage in damages):
            # With what no damage is drawn for: a bucket's witness, and files not durable yet.
            disk.directories -= {d for d in disk.directories if d.split("/")[0] == "ledgers"}
            for path in [path for path in disk.files if path.startswith("ledgers/")]:
                del disk.files[path]
                disk.durable.discard(path)

    def _changed(self, bookie: BookieId) -> None:
        for life in self.lives:
            life.evidence.changed(bookie)

    def took_effect(self, bookie_client: str, operation: str, subject: str) -> None:
        if not bookie_client:
            self._see_metadata()
        elif operation in ("put", "sync", "finish"):
            self._see_file(BookieId(bookie_client), subject)
            self._see_tombstone(subject)
        elif operation in ("delete", "delete_directory"):
            self._see_removal(BookieId(bookie_client))
            self._check(checkers.ALWAYS)

    def land_later(self, bookie_client: str, seconds: float) -> None:
        def land() -> None:
            if bookie_client:
                disk = self.disks[BookieId(bookie_client)]
                if disk.pending:
                    put = disk.pending[0]
                    landed = disk.land(put)
                    self.faults.happened["late put landed"] += landed
                    self._world.history.note("world", "late put", bookie_client, put.path, landed)
                    self._see_file(BookieId(bookie_client), put.path)
            elif self.metadata.pending:
                self.faults.happened["late metadata write landed"] += 1
                self._world.history.note("world", "late metadata write")
                self.metadata.pending.pop(0)()
                self._see_metadata()

        self._world.later(seconds, land)

    def outages(self, bookie_client: str) -> int:
        return self._outages[bookie_client]

    def told(self, life: Life) -> None:
        """A client was told something; called by the actors after they noted it."""
        self._check(checkers.AFTER_TELLING, life)

    def acknowledged(self, life: Life) -> None:
        """A writer was told that something is stored; called after it noted that."""
        self._check(checkers.AFTER_ACKNOWLEDGING, life)

    # Evidence

    def _see_tombstone(self, path: str) -> None:
        if not path.startswith("retired/"):
            return
        for life in self.lives:
            if life.nonce and path.endswith(f"-{life.nonce.decode()}"):
                life.evidence.is_collected = True
                if not life.evidence.is_deleted:
                    error = f"nothing-named-is-deleted: {path}, and the ledger is there"
                    self._world.fail(checkers.InvariantError(error))

    def _see_removal(self, bookie: BookieId) -> None:
        before = [set(life.evidence.log(bookie).held) for life in self.lives]
        self._changed(bookie)
        try:
            for life, held in zip(self.lives, before, strict=True):
                life.removals.removed(bookie, held, life.evidence.log(bookie).held)
        except checkers.InvariantError as error:
            self._world.fail(error)

    def _durable_files(self, bookie: BookieId) -> Mapping[str, bytes]:
        disk = self.disks[bookie]
        return {path: disk.files[path] for path in sorted(disk.durable) if path in disk.files}

    def _see_file(self, bookie: BookieId, path: str) -> None:
        disk = self.disks[bookie]
        if path in disk.durable and path in disk.files:
            for life in self.lives:
                if life.owns(path):
                    life.evidence.landed(bookie, path, disk.files[path])
                    self._check(checkers.AFTER_STORING, life)

    def _see_metadata(self) -> None:
        if self._ledger_id is None:
            return
        found = self.metadata.ledgers.get(self._ledger_id)
        life = None if found is None else self._living(found.value)
        for other in self.lives:
            if other is not life and not other.evidence.is_deleted:
                other.evidence.is_deleted = True
                self.faults.happened["ledger deleted"] += 1
                self._world.history.note("metadata", "deleted")
        if found is None or life is None:
            return
        if life.evidence.is_deleted:
            self._world.fail(checkers.InvariantError("deleted-stays-deleted: it is there again"))
        if found.version != life.version:
            life.version = found.version
            life.evidence.versions.append(found.value)
            ensemble = " ".join(found.value.last_fragment.ensemble)
            self._world.history.note(
                "metadata", found.value.state.name, found.value.last_entry_id, ensemble
            )
            self._check(checkers.AFTER_METADATA, life)
            try:
                life.removals.check()
            except checkers.InvariantError as error:
                self._world.fail(error)

    def _living(self, metadata: LedgerMetadata) -> Life:
        """The life that metadata are of, which may be seen for the first time."""
        nonce = metadata.nonce or b""
        for life in self.lives:
            if life.nonce in (b"", nonce):
                life.nonce = nonce
                return life
        history = History(self._world.history.events)
        self.lives.append(Life(history, self._durable_files, nonce, self.evidence))
        self.faults.happened["id used again"] += 1
        self._world.history.note("metadata", "made again")
        return self.lives[-1]

    def _check(self, which: tuple[checkers.Checker, ...], life: Life | None = None) -> None:
        try:
            for one in self.lives if life is None else (life,):
                checkers.check(one.evidence, which)
        except checkers.InvariantError as error:
            self._world.fail(error)

    # Bookies

    def _format(self, bookie: BookieId) -> None:
        """Give a bookie a new incarnation: marker, cookie, registration."""
        incarnation = f"{self._world.dice.getrandbits(128):032x}"
        has_directories = self.disks[bookie].has_directories
        marker = Marker(bookie, incarnation, self._instance_id, has_witness=not has_directories)
        Partition(MemoryStorage(self.disks[bookie])).furnish(marker)
        self._incarnations[bookie] = incarnation
        # As it would be read: a session would send it through the text format of cookies.
        cookie = Cookie(bookie, self._uri(bookie), incarnation, self._instance_id)
        known = self.metadata.cookies.get(bookie)
        self.metadata.cookies[bookie] = Versioned(cookie, known.version + 1 if known else 0)
        self._register(bookie)

    def _register(self, bookie: BookieId, *, is_readonly: bool = False) -> None:
        """Register a bookie that is formatted, unless it is."""
        incarnation = self._incarnations[bookie]
        registration = Registration(bookie, self._uri(bookie), incarnation, is_readonly=is_readonly)
        there, _ = self.metadata.registrations.get(bookie, (None, 0))
        if MARKER_PATH in self.disks[bookie].files and there != registration:
            self._agents[bookie].register(registration)

    @staticmethod
    def _uri(bookie: BookieId) -> str:
        return f"memory://{bookie}"
