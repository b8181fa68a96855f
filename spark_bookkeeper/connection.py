"""The connection to a cluster: the only module that chooses back ends.

``Connection`` is sent between processes: a frozen value from which each builds its own context.
Library, agents and command line open their metadata stores and storages here, so that each obeys
the same options.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, cast

import spark_bookkeeper
from spark_bookkeeper.bookie.bookie import Bookie
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.client.bookies.known_bookies import TABLE_ROOT, Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    MissingRequirementError,
)
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.metrics import ClientMetrics, Metrics
from spark_bookkeeper.protocol.arguments import check_filled
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import Condition, Runtime, ThreadRuntime
from spark_bookkeeper.secrecy import without_passwords
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage, bounded
from spark_bookkeeper.storage.retry_policy import Patience
from spark_bookkeeper.storage.roots import open_storage
from spark_bookkeeper.storage.storage import Storage

METADATA_URI_VARIABLE: Final = "SPARK_BOOKKEEPER_METADATA_URI"


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster. Frozen and picklable; tasks build their own context from it."""

    metadata_uri: str
    config: ClientConfig = field(default_factory=ClientConfig)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Passed to fsspec for every root that is not on local disk (endpoint, credentials)."""
    zk_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Passed to kazoo. Both may hold secrets, so neither is in the ``repr``."""
    application: str | None = None
    """The writer's name that other clients see in new ledgers; ``None`` is the program's name."""

    def __repr__(self) -> str:
        uri = self.metadata_uri if "://" in self.metadata_uri else f"zk://{self.metadata_uri}"
        return f"Connection({without_passwords(uri)!r}, {self.config!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the version of this library: tasks that get its values need the same one.

        Spark compares the Pythons of driver and executors itself.
        """
        values = tuple(getattr(self, each.name) for each in fields(self))
        return _received, (spark_bookkeeper.__version__, pickle.dumps(values))

    def open(self) -> ClientContext:
        """Connect. Raises as ``open_store``."""
        runtime, metrics = ThreadRuntime(), ClientMetrics()
        return self._context(runtime, self.open_store(runtime, metrics), metrics)

    def open_lazily(self) -> ClientContext:
        """Connect, but begin the session with ZooKeeper at the first use of metadata.

        For tasks that get the bookies as arguments, and need no metadata unless something fails.
        """
        runtime, metrics = ThreadRuntime(), ClientMetrics()
        lazy = _LazyStore(lambda: self.open_store(runtime, metrics), runtime.condition())
        return self._context(runtime, cast(MetadataStore, lazy), metrics)

    def open_store(
        self,
        runtime: Runtime,
        metrics: Metrics | None = None,
        *,
        session_timeout_ms: int | None = None,
    ) -> MetadataStore:
        """Open a session with the metadata store.

        Args:
            runtime: makes its tokens.
            metrics: the counters to use; ``None``: none.
            session_timeout_ms: the silence after which the session ends; ``None`` is
                ``metadata_timeout_ms`` of the config.

        Raises:
            MetadataUnavailableError: it gives no answer. Nothing was changed.
            MetadataError: every server refuses permanently. Nothing was changed.
            InvalidArgumentError: the URI or an option is wrong.
        """
        # Kazoo and BookKeeper's messages: a third of a task's imports, even without metadata.
        from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore

        return ZooKeeperStore(
            self.metadata_uri,
            token=runtime.token,
            session_timeout_ms=session_timeout_ms or self.config.metadata_timeout_ms,
            patience_ms=self.config.metadata_timeout_ms,
            options=self.zk_options,
            metrics=metrics,
            reads_in_flight=self.config.metadata_reads_in_flight,
        )

    def _context(
        self, runtime: ThreadRuntime, store: MetadataStore, metrics: ClientMetrics
    ) -> ClientContext:
        options = dict(self.storage_options)

        def open_bookie(uri: str, bookie_client: BookieClient) -> Bookie:
            root = uri.removeprefix(TABLE_ROOT)
            opened = open_storage(root, options, bookie_client.bookie_id, is_table=root != uri)
            storage = BoundedStorage(opened, bookie_client)
            if root == uri:
                return FileBookie(storage)
            # Parquet and Delta's log: only for ledgers that were released to a table.
            from spark_bookkeeper.table.table_bookie import TableBookie

            return TableBookie(storage, bookie_client.bookie_id)

        bookies = Bookies(store, open_bookie, runtime, self.config)
        return ClientContext(
            store,
            bookies,
            runtime,
            self.config,
            self.metadata_uri,
            writer=WriterInfo.of_this_process(self.application),
            metrics=metrics,
            on_deleted=_note_deletion,
        )


def _note_deletion(*what: Any) -> None:
    from spark_bookkeeper.replication.recent_jobs import note_deletion  # few processes delete

    note_deletion(*what)


def open_root(
    uri: str,
    runtime: Runtime,
    config: ClientConfig | None = None,
    options: Mapping[str, Any] | None = None,
) -> Partition:
    """Open the partition at a root, to format, serve or examine it.

    Each of its calls times out: after ``bookie_timeout_ms`` of silence it raises
    ``BookieUnavailableError``.

    Raises:
        InvalidArgumentError, MissingRequirementError: as ``open_storage``.
    """
    patience = Patience.of(config or ClientConfig())
    return Partition(bounded(open_storage(uri, options), runtime, patience))


def partition_of(context: ClientContext, bookie_id: BookieId) -> Partition:
    """Return the partition of a bookie; each of its calls times out.

    Raises:
        BookieUnavailableError: as ``storage_of``.
    """
    return Partition(storage_of(context, bookie_id))


def storage_of(context: ClientContext, bookie_id: BookieId) -> Storage:
    """Return the files of a bookie, for a backup, which keeps files of its own next to them.

    Raises:
        BookieUnavailableError: its place is unknown, or it does not keep files.
    """
    bookie = context.bookies.bookie(bookie_id)
    if not isinstance(bookie, FileBookie):
        raise BookieUnavailableError(
            f"bookie {bookie_id} keeps no files that could be looked at", bookie_id=bookie_id
        )
    return bookie.storage


def _received(version: str, values: bytes) -> Connection:
    """Rebuild a connection that another process sent.

    Raises:
        MissingRequirementError: this process has another version of the library. The check comes
            before any other part is unpickled.
    """
    here = spark_bookkeeper.__version__
    if version != here:
        raise MissingRequirementError(
            f"the driver has spark_bookkeeper {version}, and this process on "
            f"{socket.gethostname()} has {here}: an executor must have the driver's version, for "
            "they hand each other its values. Nothing was done. Run `pip install "
            f"spark-bookkeeper=={version}` for the executors' Python ({sys.executable}), or send "
            "it along with spark.archives"
        )
    return Connection(*pickle.loads(values))


class _LazyStore:
    """A metadata store that is opened by the first call of any of its methods."""

    def __init__(self, open_store: Callable[[], MetadataStore], lock: Condition) -> None:
        self._open_store = open_store
        self._lock = lock
        self._store: MetadataStore | None = None

    def close(self) -> None:
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        with self._lock:
            if self._store is None:
                self._store = self._open_store()
        return getattr(self._store, name)


def metadata_uri(given: str | None) -> str:
    """Return the given URI, or the one in the environment.

    Raises:
        InvalidArgumentError: there is neither, or it is empty or no text.
    """
    if given is not None:
        check_filled("metadata_uri", given)
    uri = given or os.environ.get(METADATA_URI_VARIABLE)
    if not uri:
        raise InvalidArgumentError(
            "no metadata URI: pass one, for example zk+hierarchical://zk1:2181/ledgers, or set "
            f"{METADATA_URI_VARIABLE}; `spark-bookkeeper local start` makes a cluster to play with"
        )
    return uri
