"""A whole cluster on this machine: an embedded ZooKeeper, and bookies in a directory.

Everything is in one directory, so that a cluster can be stopped, killed, moved and started again
with all its ledgers::

    <directory>/
      cluster.json        see ``local_state.py``
      zookeeper/          see ``embedded_zookeeper.py``
      bookies/1/ ...      one storage partition each

The bookies' agents are threads of this process. Other processes use the cluster through its
metadata URI.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.config import MIB, BookieConfig
from spark_bookkeeper.errors import (
    InvalidArgumentError,
)
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.local_cluster.java import java_home
from spark_bookkeeper.local_cluster.running_cluster import RunningCluster
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.public_names import PublicNames
from spark_bookkeeper.runtime.runtime import Runtime, ThreadRuntime

LOCAL_CONFIG = BookieConfig(
    probe_interval_ms=2_000,
    readonly_below_free_bytes=256 * MIB,
    writable_above_free_bytes=512 * MIB,
)
"""A cluster for trials shares its disk with other data, so its limits are low and its probes
frequent. Lower limits would refuse a full group of a writer (``Reserve``)."""


class LocalCluster(PublicNames):
    """A ZooKeeper and bookies on this machine. Use it in ``with``, or ``start`` and ``close``.

    It also closes when the interpreter ends. However it ends, no process stays behind. A ZooKeeper
    that dies meanwhile is started again; clients reconnect by themselves.

    Args:
        directory: the cluster's directory; a directory that holds a cluster starts that one
            again. ``None`` makes a temporary one, which ``close`` removes.
        bookies: the number of bookies of a new cluster.
        config: the configuration of the agents.
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
        self._running: RunningCluster | None = None

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
        """Start ZooKeeper and every bookie whose storage exists; return the cluster itself.

        A bookie that cannot be started (its storage is gone) stays down and is logged: the rest of
        the cluster is needed to recover its data.

        Raises:
            MissingRequirementError: no Java on this machine; the text says how to get one.
            MetadataUnavailableError: another process runs the cluster in this directory, or
                ZooKeeper does not start.
            BookKeeperError: no bookie could be started at all.
        """
        if self._running is None:
            java_home()  # without Java, it raises before anything is made
            running = RunningCluster(self._given, self._wanted, self._config, self._runtime)
            # Runs also when this object is dropped, and at the interpreter's end.
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
        """Stop the bookies and ZooKeeper; remove a temporary directory. Idempotent."""
        if self._running is not None:
            self._running.close()
            self._running = None

    @property
    def directory(self) -> Path:
        """The directory of the cluster."""
        return self._require().directory

    @property
    def metadata_uri(self) -> str:
        """The URI that other processes connect to."""
        return self._require().metadata_uri

    @property
    def bookie_ids(self) -> list[BookieId]:
        """The bookies whose storage was not destroyed, running or not, in order."""
        return [b.bookie_id for b in self._require().state.bookies if not b.is_destroyed]

    @property
    def running_bookie_ids(self) -> list[BookieId]:
        """The bookies whose agent runs, in order."""
        running = self._require()
        return [b.bookie_id for b in running.state.bookies if b.bookie_id in running.agents]

    @property
    def zookeeper(self) -> EmbeddedZooKeeper:
        """The ZooKeeper server of the cluster."""
        return self._require().zookeeper

    def agent(self, bookie_id: str) -> BookieAgent:
        """Return the agent of a running bookie."""
        running = self._require()
        agent = running.agents.get(running.bookie(bookie_id).bookie_id)
        if agent is None:
            raise InvalidArgumentError(
                f"bookie {bookie_id} does not run; start_bookie({bookie_id!r}) starts it"
            )
        return agent

    def root_of(self, bookie_id: str) -> Path:
        """Return the directory of a bookie's storage partition."""
        running = self._require()
        return running.directory / running.bookie(bookie_id).directory

    def stop_bookie(self, bookie_id: str, destroy: bool = False) -> None:
        """Stop a bookie; do nothing if it does not run.

        Args:
            bookie_id: one of ``bookie_ids``.
            destroy: destroy its storage first, while it still is registered, as when a disk
                dies: writers notice the loss before the cluster does.

        Raises:
            InvalidArgumentError: there is no such bookie.
        """
        self._require().stop_bookie(bookie_id, destroy)

    def start_bookie(self, bookie_id: str, replaced: bool = False) -> None:
        """Start a bookie again. A destroyed one begins anew, empty.

        Args:
            bookie_id: one of ``bookie_ids``.
            replaced: also while ledgers count on the destroyed data; ``refill_bookie`` copies it
                back.

        Raises:
            InvalidArgumentError: there is no such bookie, or it was destroyed and a ledger
                still counts on its data; the text says how to recover that first.
            CookieMismatchError: its storage is not what it was.
        """
        self._require().start_bookie(bookie_id, replaced)

    def add_bookie(self) -> BookieId:
        """Make and start one more bookie; return its id, which was never used before."""
        return self._require().add_bookie()

    def _require(self) -> RunningCluster:
        if self._running is None:
            raise InvalidArgumentError("the local cluster does not run; call start() first")
        if not self._running.is_ours():
            raise InvalidArgumentError(
                "this local cluster runs in the process that this one was forked from; nothing was "
                f"done. Connect to it: spark_bookkeeper.connect({self._running.metadata_uri!r})"
            )
        return self._running
