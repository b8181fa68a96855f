"""A whole cluster on this machine: an embedded ZooKeeper, and bookies in a directory.

Everything is in one directory, so that a cluster can be stopped, killed, moved and started
again with all its ledgers::

    <directory>/
      cluster.json        see ``local_state.py``
      zookeeper/          see ``zookeeper.py``
      bookies/1/ ...      one storage partition each

The bookies' agents are threads of this process. Other processes use the cluster through its
metadata URI.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from spark_bookkeeper.bookie.marker import read_marker
from spark_bookkeeper.bookie.partition import wipe_partition
from spark_bookkeeper.bookie.storage.local import LocalStorage
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.cluster.agent import BookieAgent
from spark_bookkeeper.cluster.formatting import format_bookie
from spark_bookkeeper.cluster.java import java_home
from spark_bookkeeper.cluster.leftovers import mark, temporary_directory
from spark_bookkeeper.cluster.local_state import (
    LocalBookie,
    LocalState,
    make_directory,
    new_bookie,
    new_state,
    read_state,
    write_state,
)
from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.config import MIB, BookieConfig
from spark_bookkeeper.connection import Connection, open_root
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    InvalidArgumentError,
    NoClusterError,
)
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.metadata.uri import MetadataUri
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.public_names import PublicNames
from spark_bookkeeper.runtime.runtime import Runtime, Task, ThreadRuntime

log = logging.getLogger(__name__)

LOCAL_CONFIG = BookieConfig(
    probe_interval_ms=2_000,
    readonly_below_free_bytes=64 * MIB,
    writable_above_free_bytes=128 * MIB,
)
"""A playground shares its disk with everything else: it stops late and notices soon."""

_SESSION_TIMEOUT_MS = 6_000
"""After a process was killed, its bookies can be registered again when its session has ended:
short, so that starting again is quick, and long enough for a machine that is busy."""

_SUPERVISION_SECONDS = 1.0
"""Between two looks whether ZooKeeper still runs."""


class LocalCluster(PublicNames):
    """A ZooKeeper and bookies on this machine. Use it in ``with``, or ``start`` and ``close``.

    It also closes when the interpreter ends. However it ends, no process stays behind. A
    ZooKeeper that dies meanwhile is started again; clients find it by themselves.

    Args:
        directory: where everything is kept; a directory that holds a cluster starts that one
            again. ``None`` makes a temporary one, which ``close`` removes.
        bookies: how many, in a new cluster.
        config: how the agents look after the bookies.
        runtime: clock and threads.
    """

    _INTERNALS = frozenset({"agent"})

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        bookies: int = 4,
        *,
        config: BookieConfig = LOCAL_CONFIG,
        runtime: Runtime | None = None,
    ) -> None:
        bookies = whole_number("bookies", bookies, 1)
        if not isinstance(directory, (str, os.PathLike, type(None))):
            raise InvalidArgumentError(
                f"directory={directory!r} is no path; give one, or None for a temporary directory"
            )
        self._given = None if directory is None else Path(directory).expanduser().absolute()
        self._wanted = bookies
        self._config = config
        self._runtime = runtime or ThreadRuntime()
        self._running: _Running | None = None

    def __repr__(self) -> str:
        running = self._running
        if running is None:
            return f"LocalCluster({str(self._given or 'temporary')!r}, not running)"
        return (
            f"LocalCluster({str(running.directory)!r}, {running.metadata_uri}, "
            f"{len(running.agents)} of {len(running.state.bookies)} bookies running)"
        )

    def _repr_html_(self) -> str:
        running = self._running
        if running is None:
            return fields_table({"cluster": self._given or "temporary", "state": "not running"})
        count = f"{len(running.agents)} of {len(running.state.bookies)} running"
        where = {"cluster": running.directory, "metadata": running.metadata_uri}
        return fields_table({**where, "bookies": count})

    def __enter__(self) -> LocalCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> LocalCluster:
        """Start ZooKeeper and every bookie whose storage is there; return the cluster itself.

        A bookie that cannot be started (its storage is gone) stays down and is logged: the
        rest of the cluster is needed to recover what it held.

        Raises:
            MissingRequirementError: no Java on this machine; the text says how to get one.
            MetadataUnavailableError: another process runs the cluster in this directory, or
                ZooKeeper does not start.
            BookKeeperError: no bookie could be started at all.
        """
        if self._running is None:
            java_home()  # none on this machine: say so before anything is made
            running = _Running(self._given, self._wanted, self._config, self._runtime)
            # Also when this object is dropped, and at the interpreter's end.
            finalizer = weakref.finalize(self, running.close)
            try:
                running.start()
            except BaseException:
                running.close()
                finalizer.detach()
                raise
            self._running = running
        return self

    def close(self) -> None:
        """Stop the bookies and ZooKeeper; a temporary directory is removed. Idempotent."""
        if self._running is not None:
            self._running.close()
            self._running = None

    @property
    def directory(self) -> Path:
        """Where everything is kept."""
        return self._require().directory

    @property
    def metadata_uri(self) -> str:
        """What other processes connect to."""
        return self._require().metadata_uri

    @property
    def bookie_ids(self) -> list[BookieId]:
        """Every bookie whose storage was not destroyed, running or not, in order."""
        return [b.bookie_id for b in self._require().state.bookies if not b.is_destroyed]

    @property
    def running_bookie_ids(self) -> list[BookieId]:
        """Every bookie whose agent runs, in order."""
        running = self._require()
        return [b.bookie_id for b in running.state.bookies if b.bookie_id in running.agents]

    @property
    def zookeeper(self) -> EmbeddedZooKeeper:
        """The server under it."""
        return self._require().zookeeper

    def agent(self, bookie_id: str) -> BookieAgent:
        """The agent of a running bookie."""
        running = self._require()
        agent = running.agents.get(running.bookie(bookie_id).bookie_id)
        if agent is None:
            raise InvalidArgumentError(
                f"bookie {bookie_id} does not run; start_bookie({bookie_id!r}) starts it"
            )
        return agent

    def root_of(self, bookie_id: str) -> Path:
        """The directory that is a bookie's storage partition."""
        running = self._require()
        return running.directory / running.bookie(bookie_id).directory

    def stop_bookie(self, bookie_id: str, destroy: bool = False) -> None:
        """Stop a bookie; nothing happens when it does not run.

        Args:
            bookie_id: one of ``bookie_ids``.
            destroy: its storage is lost first, while it still is registered, as when a disk
                dies: writers meet the loss before the cluster knows of it.

        Raises:
            InvalidArgumentError: there is no such bookie.
        """
        self._require().stop_bookie(bookie_id, destroy)

    def start_bookie(self, bookie_id: str, replaced: bool = False) -> None:
        """Start a bookie again. One that was destroyed begins anew, empty.

        Args:
            bookie_id: one of ``bookie_ids``.
            replaced: also while ledgers count on what was destroyed; ``refill_bookie`` brings it
                back.

        Raises:
            InvalidArgumentError: there is no such bookie, or it was destroyed and a ledger
                still counts on what it held; the text says how to recover that first.
            CookieMismatchError: its storage is not what it was.
        """
        self._require().start_bookie(bookie_id, replaced)

    def add_bookie(self) -> BookieId:
        """Make and start one more bookie; return its id, which was never used before."""
        return self._require().add_bookie()

    def _require(self) -> _Running:
        if self._running is None:
            raise InvalidArgumentError("the local cluster does not run; call start() first")
        if not self._running.is_ours():
            raise InvalidArgumentError(
                "this local cluster runs in the process that this one was forked from; nothing was "
                f"done. Connect to it: spark_bookkeeper.connect({self._running.metadata_uri!r})"
            )
        return self._running


class _Running:
    """The parts of a cluster that runs; knows nothing of the ``LocalCluster`` it belongs to."""

    def __init__(
        self, given: Path | None, wanted: int, config: BookieConfig, runtime: Runtime
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._owner = os.getpid()
        self._changing = threading.RLock()
        self._closing = threading.Event()
        self._supervisor: Task | None = None
        self._is_temporary = given is None
        self.directory = given or temporary_directory()
        make_directory(self.directory)
        self.agents: dict[BookieId, BookieAgent] = {}
        self._storages: dict[BookieId, LocalStorage] = {}
        self._store: MetadataStore | None = None
        self.state = read_state(self.directory) or new_state(wanted)
        self.zookeeper = EmbeddedZooKeeper(self.directory / "zookeeper", self.state.zookeeper_port)

    @property
    def metadata_uri(self) -> str:
        return str(MetadataUri((self.zookeeper.address,)))

    @property
    def store(self) -> MetadataStore:
        assert self._store is not None
        return self._store

    def is_ours(self) -> bool:
        """Whether this process runs it, and not one that this was forked from."""
        return self._owner == os.getpid()

    def start(self) -> None:
        self.zookeeper.start()
        self._save(replace(self.state, zookeeper_port=self.zookeeper.port))
        mark(self.directory, is_temporary=self._is_temporary)
        self._store = Connection(self.metadata_uri).open_store(
            self._runtime, session_timeout_ms=_SESSION_TIMEOUT_MS
        )
        try:
            self._store.instance_id()
        except NoClusterError:
            self._store.initialize_cluster()
        present = [b.bookie_id for b in self.state.bookies if not b.is_destroyed]
        failures = [f for f in self._runtime.map(self._try_to_start, present) if f is not None]
        if not self.agents:
            raise (
                failures[0]
                if failures
                else InvalidArgumentError(
                    f"every bookie of the cluster in {self.directory} was destroyed; "
                    "use another directory"
                )
            )
        for failure in failures:
            log.warning("%s", failure)
        self._supervisor = self._runtime.spawn("local-cluster", self._supervise)

    def close(self) -> None:
        if not self.is_ours():
            return  # a forked child has no say over its parent's cluster
        with self._changing:
            self._closing.set()
            supervisor, self._supervisor = self._supervisor, None
            if supervisor is not None:
                supervisor.join()
            try:
                if self._store is not None and not self.zookeeper.is_running:
                    self._store.close()  # nobody would answer: let nobody wait for an answer
                self._runtime.map(lambda bookie: bookie.stop(), list(self.agents.values()))
                self.agents.clear()
                while self._storages:
                    self._storages.popitem()[1].close()
                if self._store is not None:
                    self._store.close()
                    self._store = None
            finally:
                self.zookeeper.stop()
                if self._is_temporary:
                    shutil.rmtree(self.directory, ignore_errors=True)

    def _supervise(self) -> None:
        while not self._closing.wait(_SUPERVISION_SECONDS):
            if not self.zookeeper.has_died:
                continue
            log.warning("ZooKeeper in %s ended; it is started again", self.zookeeper.directory)
            try:
                self.zookeeper.start()
            except BookKeeperError as failure:  # it is stopped now, so nobody tries again
                log.error("%s. Close the cluster and start it again", failure)  # noqa: TRY400

    def bookie(self, bookie_id: str) -> LocalBookie:
        for bookie in self.state.bookies:
            if bookie.bookie_id == bookie_id:
                return bookie
        raise InvalidArgumentError(
            f"bookie {bookie_id!r} is not in this cluster; it has "
            f"{', '.join(b.bookie_id for b in self.state.bookies)}"
        )

    def stop_bookie(self, bookie_id: str, destroy: bool) -> None:
        with self._changing:
            bookie = self.bookie(bookie_id)
            agent = self.agents.pop(bookie.bookie_id, None)
            if destroy:
                if agent is not None:
                    agent.pause()  # it is about to lose its storage, and that is meant
                self._save_bookie(replace(bookie, is_destroyed=True))
                root = self.directory / bookie.directory
                # A writer may be adding files to it at this moment. The marker goes first, so none
                # of them counts; the loop takes what comes after the listing of a directory.
                with suppress(BookieUnavailableError):
                    wipe_partition(self._storage(bookie))
                while root.exists():
                    shutil.rmtree(root, ignore_errors=True)
            if agent is not None:
                agent.stop()
            storage = self._storages.pop(bookie.bookie_id, None)
            if storage is not None:
                storage.close()

    def start_bookie(self, bookie_id: str, replaced: bool) -> None:
        with self._changing:
            bookie = self.bookie(bookie_id)
            if bookie.bookie_id in self.agents:
                return
            if bookie.is_destroyed:
                storage = self._storage(bookie)
                if read_marker(storage) is None:  # nobody formatted it meanwhile
                    format_bookie(
                        self.store,
                        storage,
                        bookie.bookie_id,
                        token=self._runtime.token,
                        is_replaced=replaced,
                    )
                self._save_bookie(replace(bookie, is_destroyed=False))
            self._start_agent(bookie)

    def add_bookie(self) -> BookieId:
        with self._changing:
            bookie = new_bookie(len(self.state.bookies))
            self._save(replace(self.state, bookies=(*self.state.bookies, bookie)))
            self._start_agent(bookie)
            return bookie.bookie_id

    def _try_to_start(self, bookie_id: BookieId) -> BookKeeperError | None:
        try:
            self._start_agent(self.bookie(bookie_id))
        except BookKeeperError as failure:
            return failure
        return None

    def _start_agent(self, bookie: LocalBookie) -> None:
        agent = BookieAgent(
            self.store,
            self._storage(bookie),
            bookie.bookie_id,
            self._runtime,
            self._config,
            # ZooKeeper's data and the bookies' move together.
            moved_from=partial(open_root, runtime=self._runtime),
        )
        agent.start()
        self.agents[bookie.bookie_id] = agent

    def _storage(self, bookie: LocalBookie) -> LocalStorage:
        storage = self._storages.get(bookie.bookie_id)
        if storage is None:
            root = self.directory / bookie.directory
            root.mkdir(parents=True, exist_ok=True)
            storage = self._storages[bookie.bookie_id] = LocalStorage(str(root))
        return storage

    def _save_bookie(self, changed: LocalBookie) -> None:
        bookies = (changed if b.bookie_id == changed.bookie_id else b for b in self.state.bookies)
        self._save(replace(self.state, bookies=tuple(bookies)))

    def _save(self, state: LocalState) -> None:
        write_state(self.directory, state)
        self.state = state
