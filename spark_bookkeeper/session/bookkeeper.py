"""``BookKeeper``, the class that users call: ledgers to write and read, tables, and jobs.

Most methods are functions of other modules, one for each noun, which have their signatures and
docstrings. Methods that return or register a part of the connection itself are defined here:
``track``, ``metrics``, ``metrics_registry``, ``autorecovery`` and ``register_sql``.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import unwrap
from types import FunctionType
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

import spark_bookkeeper.session.backups as _backups
import spark_bookkeeper.session.cluster as _cluster
import spark_bookkeeper.session.ledgers as _ledgers
import spark_bookkeeper.session.logs as _logs
import spark_bookkeeper.session.replication as _replication
import spark_bookkeeper.session.upkeep as _upkeep
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.replication.track import Track
from spark_bookkeeper.runtime.progress import told
from spark_bookkeeper.session.handle import ClusterHandle

if TYPE_CHECKING:
    from spark_bookkeeper.autorecovery.control import AutorecoveryControl


_reading = told(None, "reading ledger metadata")
"""Shows progress while a listing reads metadata."""


class BookKeeper(ClusterHandle):
    """A connection to one cluster, which ``connect`` or ``local`` makes.

    A context manager; ``close`` is idempotent.

    Bytes and Arrow tables are written and read without Spark. Only DataFrames and jobs need a
    session; in local use, the first of them starts one.

    Long calls show their progress, as a bar in a terminal or a notebook and as lines on stderr
    elsewhere. They show nothing if the environment has ``SPARK_BOOKKEEPER_PROGRESS=off``. If
    ``progress`` is given, they call it instead.

    Args:
        connection: how the cluster is reached, here and in tasks.
        spark: the session to use; ``None`` takes the active one, or starts one, when needed.
        cluster: the embedded cluster, which ends with this connection.
        spark_conf: settings of a session that has to be started.
        runs_jobs_here: run jobs in this process instead of on Spark; suits small jobs.
    """

    # Ledgers

    create_ledger = _ledgers.create_ledger
    open_ledger = _ledgers.open_ledger
    open_ledger_no_recovery = _ledgers.open_ledger_no_recovery
    open_ledger_async = _ledgers.open_ledger_async
    open_ledger_no_recovery_async = _ledgers.open_ledger_no_recovery_async
    create_ledger_async = _ledgers.create_ledger_async
    delete_ledger_async = _ledgers.delete_ledger_async
    delete_ledger = _ledgers.delete_ledger
    fence_ledger = _ledgers.fence_ledger

    # Logs

    create_log = _logs.create_log
    open_log = _logs.open_log
    delete_log = _logs.delete_log

    # Looking

    logs = _logs.logs
    logs_arrow = _reading(_logs.logs_arrow)
    consumers = _logs.consumers
    consumers_arrow = _reading(_logs.consumers_arrow)
    show_lag = _logs.show_lag
    ledger = _ledgers.ledger
    ledgers = _ledgers.ledgers
    ledgers_arrow = _reading(_ledgers.ledgers_arrow)
    bookies = _cluster.bookies
    bookies_arrow = _reading(_cluster.bookies_arrow)
    underreplicated = _cluster.underreplicated
    underreplicated_arrow = _reading(_cluster.underreplicated_arrow)
    jobs = _cluster.jobs
    jobs_arrow = _reading(_cluster.jobs_arrow)

    def track(self, also: Progress = no_progress) -> Track:
        """Return a recorder of progress, to pass to a job as ``progress``.

        Args:
            also: another function to call with each report.
        """
        return Track(self.context.runtime, self.frames.from_arrow, also)

    doctor = told(None, "looking at the cluster")(_cluster.doctor)
    safe_to_lose = _reading(_cluster.safe_to_lose)
    space = _cluster.space
    space_arrow = told(None, "looking at bookies")(_cluster.space_arrow)
    orphans = _cluster.orphans
    orphans_arrow = _reading(_cluster.orphans_arrow)
    history = _ledgers.history
    history_arrow = _reading(_ledgers.history_arrow)
    diff_replicas = _ledgers.diff_replicas
    diff_replicas_arrow = told(None, "reading every replica")(_ledgers.diff_replicas_arrow)

    def metrics(self) -> dict[str, float]:
        """Return counters and gauges of this connection by Prometheus name; see ``metrics.py``.

        They begin at 0 with the connection. They count the work of this process, and that of the
        tasks of its appends, reads and jobs, once these have ended. Over Spark Connect they lack
        the tasks of ``reader.read()``. They lack ``format("bookkeeper")`` in any session, because
        it knows no connection.
        """
        return self.context.metrics.as_dict()

    @property
    def metrics_registry(self) -> CollectorRegistry:
        """The same as a ``prometheus_client`` registry, to serve with a program's own metrics."""
        return self.context.metrics.registry

    lost_entries = _ledgers.lost_entries
    lost_entries_arrow = told(None, "reading ledgers")(_ledgers.lost_entries_arrow)

    # SQL

    def register_sql(self, spark: Any = None) -> Sequence[str]:
        """Set up a session for SQL: the data source knows this cluster, and SQL functions exist.

        Afterwards ``spark.read.format("bookkeeper").option("log", "orders")`` needs no
        ``metadataUri``, and ``SELECT * FROM bk_ledgers()`` works; so do ``bk_fragments``,
        ``bk_entries``, ``bk_slots`` (all three take ``ledger => 7``), ``bk_bookies``, ``bk_logs``,
        ``bk_underreplicated`` and ``bk_consumers('orders')``. Spark 4.0 gets only the functions:
        there each read must name its cluster.

        Args:
            spark: ``None`` is the session of this connection.

        Returns:
            the names of the functions.
        """
        from spark_bookkeeper.source.functions import register_sql

        chosen = self.spark if spark is None else spark
        connection = self.connection
        options = {
            **{f"zk.{name}": str(value) for name, value in connection.zk_options.items()},
            **{f"storage.{name}": str(value) for name, value in connection.storage_options.items()},
        }
        return register_sql(chosen, self.metadata_uri, options)

    # Replication work

    recover_ledgers = _replication.recover_ledgers
    recover_bookie = _replication.recover_bookie
    refill_bookie = _replication.refill_bookie
    check_ledgers = _replication.check_ledgers
    repair_ledgers = _replication.repair_ledgers
    archive_to_delta = _backups.archive_to_delta
    backup = _backups.backup
    restore = _backups.restore
    forget_restores = _backups.forget_restores

    # Work that keeps all replicas complete

    @property
    def autorecovery(self) -> AutorecoveryControl:
        """The control of autorecovery, and the auditor and worker to run in this process."""
        from spark_bookkeeper.autorecovery.control import AutorecoveryControl

        return AutorecoveryControl(self.context, self.runner)

    audit = _replication.audit
    rereplicate = _replication.rereplicate
    decommission_bookie = _upkeep.decommission_bookie
    drain_bookie = _upkeep.drain_bookie
    rebalance = _upkeep.rebalance
    collect_garbage = _upkeep.collect_garbage
    delete_orphans = _upkeep.delete_orphans
    compact = _upkeep.compact
    scrub = _upkeep.scrub


# ``help`` and Python's errors then show each call as a method of this class.
for _name, _call in vars(BookKeeper).items():
    if isinstance(_call, FunctionType) and _call.__module__ != __name__:
        for _each in (_call, unwrap(_call)):
            _each.__module__, _each.__qualname__ = __name__, f"BookKeeper.{_name}"
        del _call.__annotations__["self"]
