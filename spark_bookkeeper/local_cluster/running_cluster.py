"""The parts of a running local cluster, and the start and end of each."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.agent.formatting import format_bookie
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.connection import Connection, open_root
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    InvalidArgumentError,
    NoClusterError,
)
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.local_cluster.leftovers import mark, temporary_directory
from spark_bookkeeper.local_cluster.local_state import (
    LocalBookie,
    LocalState,
    make_directory,
    new_bookie,
    new_state,
    read_state,
    write_state,
)
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.metadata.uri import MetadataUri
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import Runtime, Task

log = logging.getLogger(__name__)


SESSION_TIMEOUT_MS = 6_000
"""After a process was killed, its bookies can be registered again when its session has expired:
short, so that a new start is quick, and long enough for a busy machine."""


_SUPERVISION_SECONDS = 1.0
"""The interval of the checks whether ZooKeeper still runs."""


class RunningCluster:
    """The parts of a running cluster; it does not refer to the ``LocalCluster`` that owns it."""

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
        self._partitions: dict[BookieId, Partition] = {}
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
        """Whether this process runs it, and not a process that this one was forked from."""
        return self._owner == os.getpid()

    def start(self) -> None:
        self.zookeeper.start()
        self._save(replace(self.state, zookeeper_port=self.zookeeper.port))
        mark(self.directory, is_temporary=self._is_temporary)
        self._store = Connection(self.metadata_uri).open_store(
            self._runtime, session_timeout_ms=SESSION_TIMEOUT_MS
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
            return  # a forked child must not close its parent's cluster
        with self._changing:
            self._closing.set()
            supervisor, self._supervisor = self._supervisor, None
            if supervisor is not None:
                supervisor.join()
            try:
                if self._store is not None and not self.zookeeper.is_running:
                    self._store.close()  # no answer can come: do not wait for one
                self._runtime.map(lambda bookie: bookie.stop(), list(self.agents.values()))
                self.agents.clear()
                while self._partitions:
                    self._partitions.popitem()[1].close()
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
            except BookKeeperError as failure:  # it is stopped now, so no retry follows
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
                    agent.pause()  # the loss of its storage is intended, so it must not report it
                self._save_bookie(replace(bookie, is_destroyed=True))
                root = self.directory / bookie.directory
                # A writer may be adding files at this moment. The marker goes first, so none of
                # them counts; the loop removes files that come after a directory was listed.
                with suppress(BookieUnavailableError):
                    self._partition(bookie).wipe()
                while root.exists():
                    shutil.rmtree(root, ignore_errors=True)
            if agent is not None:
                agent.stop()
            partition = self._partitions.pop(bookie.bookie_id, None)
            if partition is not None:
                partition.close()

    def start_bookie(self, bookie_id: str, replaced: bool) -> None:
        with self._changing:
            bookie = self.bookie(bookie_id)
            if bookie.bookie_id in self.agents:
                return
            if bookie.is_destroyed:
                partition = self._partition(bookie)
                if partition.marker() is None:  # no other process has formatted it
                    format_bookie(
                        self.store,
                        partition,
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
            self._partition(bookie),
            bookie.bookie_id,
            self._runtime,
            self._config,
            # ZooKeeper's data and the bookies' move as one, so a new root is no stale copy.
            moved_from=partial(open_root, runtime=self._runtime),
        )
        agent.start()
        self.agents[bookie.bookie_id] = agent

    def _partition(self, bookie: LocalBookie) -> Partition:
        partition = self._partitions.get(bookie.bookie_id)
        if partition is None:
            root = self.directory / bookie.directory
            root.mkdir(parents=True, exist_ok=True)
            partition = self._partitions[bookie.bookie_id] = open_root(str(root), self._runtime)
        return partition

    def _save_bookie(self, changed: LocalBookie) -> None:
        bookies = (changed if b.bookie_id == changed.bookie_id else b for b in self.state.bookies)
        self._save(replace(self.state, bookies=tuple(bookies)))

    def _save(self, state: LocalState) -> None:
        write_state(self.directory, state)
        self.state = state
