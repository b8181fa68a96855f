"""``BookKeeper``, as its users hold it: ledgers to write and read, tables to look at, jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pyarrow as pa
from prometheus_client import CollectorRegistry
from typing_extensions import Self

from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.autorecovery.losses import Losses, losses
from spark_bookkeeper.autorecovery.names import process_name
from spark_bookkeeper.autorecovery.publishing import AuditReport, audit_bookies
from spark_bookkeeper.autorecovery.table import underreplicated_table
from spark_bookkeeper.autorecovery.worker import ReplicationWorker, rereplicate
from spark_bookkeeper.backup.restoring import restore
from spark_bookkeeper.backup.saving import BackupReport, backup
from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA
from spark_bookkeeper.client import lifecycle, views
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.client.history import history_table
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.ledger import DEFAULT_ENTRY_TARGET_BYTES
from spark_bookkeeper.client.names import ledger_called
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.cluster.collection import Collection, GarbageReport, collect_garbage
from spark_bookkeeper.cluster.compaction import (
    FILES_LEAST,
    CompactionWish,
    CompactReport,
    compact_ledgers,
)
from spark_bookkeeper.cluster.decommission import (
    DecommissionReport,
    decommission_bookie,
    drain_bookie,
)
from spark_bookkeeper.cluster.diagnosis import Diagnoses
from spark_bookkeeper.cluster.examination import cluster_diagnoses
from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.cluster.machine import machine_diagnoses
from spark_bookkeeper.cluster.orphans import orphans_table
from spark_bookkeeper.cluster.scrubbing import Scrubbing, ScrubReport, scrub
from spark_bookkeeper.cluster.space import space_table
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.delta.archive import PLACE_COLUMNS, Archive, ArchiveReport
from spark_bookkeeper.delta.release import check_release, release_archived
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.logs import consumers, logs
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.arguments import check_text, whole_number
from spark_bookkeeper.protocol.ids import BookieId, LedgerId, parse_bookie_id, parse_ledger_id
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.lost_entries import lost_entries
from spark_bookkeeper.replication.rebalance import (
    SPARE_BYTES,
    Rebalance,
    RebalanceReport,
    rebalance,
)
from spark_bookkeeper.replication.recent_jobs import jobs_table, noted
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.recover_ledgers import recover_ledgers
from spark_bookkeeper.replication.refill_bookie import Refill, refill_bookie
from spark_bookkeeper.replication.repair_ledgers import repair_ledgers
from spark_bookkeeper.replication.report import CheckReport, RecoveryReport, Report
from spark_bookkeeper.replication.runner import LocalRunner, Progress, Runner, no_progress
from spark_bookkeeper.replication.track import Track
from spark_bookkeeper.runtime import process
from spark_bookkeeper.runtime.beside import begin
from spark_bookkeeper.runtime.progress import told
from spark_bookkeeper.runtime.public_names import PublicNames
from spark_bookkeeper.source.functions import register_sql
from spark_bookkeeper.spark.frames import SparkFrames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
ReportT = TypeVar("ReportT", bound=Report)


class BookKeeper(PublicNames):
    """A connection to one cluster. A context manager; ``close`` is idempotent.

    Bytes and Arrow tables are written and read without Spark; a session is needed (and
    started, in local use) only when a DataFrame or a job is asked for.

    What takes long shows how far it is, as a bar in a terminal or a notebook and as lines on stderr
    elsewhere, unless ``SPARK_BOOKKEEPER_PROGRESS=off`` is in the environment, or ``progress`` is
    given, which is told instead.

    Args:
        connection: how the cluster is reached, here and in tasks.
        spark: the session to use; ``None`` takes the active one, or starts one, when needed.
        cluster: the embedded cluster, which ends with this connection.
        spark_conf: settings of a session that has to be started.
        runs_jobs_here: jobs run in this process instead of on Spark, for what is small.
    """

    _INTERNALS = frozenset({"connection", "context"})

    def __init__(
        self,
        connection: Connection,
        spark: SparkSession | None = None,
        cluster: LocalCluster | None = None,
        *,
        spark_conf: Mapping[str, str] | None = None,
        runs_jobs_here: bool = False,
    ) -> None:
        self.connection = connection
        self.cluster = cluster
        """The embedded cluster of ``local``; ``None`` after ``connect``."""
        self._runs_jobs_here = runs_jobs_here
        self._process = process.here
        self._context: ClientContext | None = connection.open()
        self._frames = SparkFrames(spark, connection, spark_conf, self._context.metrics)

    @property
    def context(self) -> ClientContext:
        """The parts that do the work.

        Raises ``InvalidArgumentError`` after ``close``, and in a forked child of the process that
        made it.
        """
        self._check_here()
        if self._context is None:
            raise InvalidArgumentError("this BookKeeper was closed; connect() again")
        return self._context

    @property
    def metadata_uri(self) -> str:
        """What ``connect`` was given: the cluster, for other programs."""
        return self.connection.metadata_uri

    @property
    def spark(self) -> SparkSession:
        """The Spark session that DataFrames and jobs use; started when there is none."""
        self._check_here()
        return self._frames.session

    def __repr__(self) -> str:
        state = "closed" if self._context is None else "connected"
        return f"BookKeeper({self.metadata_uri!r}, {state})"

    def _repr_html_(self) -> str:
        rows = {"metadata": self.metadata_uri, "cluster": "embedded" if self.cluster else "remote"}
        return fields_table(rows)

    def close(self) -> None:
        """End the connection, and the embedded cluster if there is one.

        In a forked child there is nothing to end: both are the parent's.
        """
        if self._process is not process.here:
            return
        context, self._context = self._context, None
        if context is not None:
            context.bookies.close()
            context.store.close()
        if self.cluster is not None:
            self.cluster.close()

    def __reduce__(self) -> NoReturn:
        process.refuse_pickling("BookKeeper", self._connecting())

    def _check_here(self) -> None:
        process.check_here(self._process, "BookKeeper", self._connecting())

    def _connecting(self) -> str:
        return f"spark_bookkeeper.connect({self.metadata_uri!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Ledgers

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        schema: Any = None,
        password: bytes = b"",
        digest_type: str = "CRC32C",
        custom_metadata: Mapping[str, bytes] | None = None,
        name: str | None = None,
        owner: str | None = None,
        ledger_id: int | None = None,
        compression: str | None = None,
        entry_target_bytes: int = DEFAULT_ENTRY_TARGET_BYTES,
    ) -> LedgerWriter:
        """Create a ledger and return its writer.

        Args:
            ensemble_size, write_quorum_size, ack_quorum_size: E >= Qw >= Qa >= 1, in bookies.
            schema: a Spark or Arrow schema; ``None`` is one column ``payload binary``.
            password: needed to open it again; also the key of ``digest_type="MAC"``.
            digest_type: ``CRC32C``, ``CRC32``, ``MAC`` or ``DUMMY`` (none).
            custom_metadata: kept with the ledger, seen by every tool.
            name, owner: labels to find it by.
            ledger_id: a chosen id, never used before; ``None`` takes the next one.
            compression: ``None``, ``"lz4"`` or ``"zstd"``.
            entry_target_bytes: about how large the entries of a bulk append get.

        Raises:
            InvalidArgumentError, NotEnoughBookiesError, LedgerExistsError. Nothing was created.
        """
        labels = lifecycle.labels_of(custom_metadata, name=name, owner=owner)
        return lifecycle.create_ledger(
            self.context,
            Quorum(ensemble_size, write_quorum_size, ack_quorum_size),
            schema=None if schema is None else self._frames.arrow_schema(schema),
            password=password,
            digest_type=_digest_type(digest_type),
            labels=labels,
            ledger_id=ledger_id,
            compression=compression,
            entry_target_bytes=entry_target_bytes,
            frames=self._frames,
        )

    def open_ledger(self, ledger_id: int | str, password: bytes = b"") -> LedgerReader:
        """Open a ledger to read all of it; one that is not closed is fenced, recovered, closed.

        Args:
            ledger_id: its id, or its name where no other ledger has the same. To find a name all
                metadata are read.
            password: as at ``create_ledger``.
        """
        called = ledger_called(self.context, ledger_id)
        return lifecycle.open_ledger(self.context, called, password, self._frames)

    def open_ledger_no_recovery(self, ledger_id: int | str, password: bytes = b"") -> LedgerReader:
        """Open a ledger to read up to its last add confirmed; never disturbs its writer."""
        called = ledger_called(self.context, ledger_id)
        return lifecycle.open_ledger_no_recovery(self.context, called, password, self._frames)

    def open_ledger_async(
        self, ledger_id: int | str, password: bytes = b""
    ) -> Future[LedgerReader]:
        """``open_ledger`` without waiting for it."""
        return self._begin("open-ledger", lambda: self.open_ledger(ledger_id, password))

    def open_ledger_no_recovery_async(
        self, ledger_id: int | str, password: bytes = b""
    ) -> Future[LedgerReader]:
        """``open_ledger_no_recovery`` without waiting for it."""
        return self._begin("open-ledger", lambda: self.open_ledger_no_recovery(ledger_id, password))

    def create_ledger_async(self, **options: Any) -> Future[LedgerWriter]:
        """``create_ledger`` without waiting for it."""
        return self._begin("create-ledger", lambda: self.create_ledger(**options))

    def delete_ledger_async(
        self, ledger_id: int, *, even_if_alive: bool = False
    ) -> Future[Deletion]:
        """``delete_ledger`` without waiting for it."""
        return self._begin(
            "delete-ledger", lambda: self.delete_ledger(ledger_id, even_if_alive=even_if_alive)
        )

    def delete_ledger(self, ledger_id: int, *, even_if_alive: bool = False) -> Deletion:
        """Delete a ledger for ever; idempotent. One that is not closed is fenced before.

        Args:
            even_if_alive: also when its writer lives, or when that is not known, or when too few
                of its bookies could be fenced to be certain that it is stopped.

        Returns:
            the state it was found in, and which bookies could not be fenced.

        Raises:
            InvalidArgumentError: its writer lives, or may live; the message says who that is.
            RecoveryUndecidedError: too few bookies could be fenced; it was not deleted.
        """
        return lifecycle.delete_ledger(self.context, ledger_id, even_if_alive=even_if_alive)

    def _begin(self, name: str, call: Callable[[], T]) -> Future[T]:
        return begin(self.context.runtime, name, call)

    # Logs

    def create_log(
        self,
        name: str,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        schema: Any = None,
        password: bytes = b"",
        digest_type: str = "CRC32C",
        compression: str | None = None,
        entry_target_bytes: int = DEFAULT_ENTRY_TARGET_BYTES,
        roll_bytes: int | None = None,
        roll_seconds: int | None = None,
        retain_seconds: int | None = None,
        retain_for: Sequence[str] = (),
    ) -> Log:
        """Make an empty log; every ledger of it is made as is said here, see ``create_ledger``.

        Args:
            roll_bytes, roll_seconds: its writer goes on in a new ledger when the old one has so
                many bytes, or was written for so long; ``None`` leaves that to ``roll()``.
            retain_seconds: after rolling, ledgers that ended longer ago are truncated.
            retain_for: named followers, see ``consumers``: what one of them has still to read is
                kept, however old it is. Who has not published a position yet has all to read.

        Raises:
            LogExistsError: there is one of that name. Nothing was changed.
            InvalidArgumentError: no log can have that name, or no ledger these sizes or columns.
        """
        options = LogOptions(
            Quorum(ensemble_size, write_quorum_size, ack_quorum_size),
            PAYLOAD_SCHEMA if schema is None else self._frames.arrow_schema(schema),
            password,
            _digest_type(digest_type),
            compression,
            entry_target_bytes,
            roll_bytes,
            roll_seconds,
            retain_seconds,
            tuple(_several("retain_for", retain_for)),
        )
        return logs.create_log(self.context, name, options, self._frames)

    def open_log(self, name: str) -> Log:
        """A log to read, follow, truncate or write. Raises ``NoSuchLogError``."""
        return logs.open_log(self.context, name, self._frames)

    def delete_log(self, name: str) -> None:
        """Delete a log with all its ledgers, its writer fenced first; idempotent."""
        logs.delete_log(self.context, name)

    # Looking

    def logs(self) -> Any:
        """All logs, a row for each of their ledgers, as a DataFrame (``logs.LOGS``)."""
        return self._frames.from_arrow(self.logs_arrow())

    def logs_arrow(self) -> pa.Table:
        """All logs, as an Arrow table: no Spark."""
        return logs.logs_table(self.context)

    def consumers(self, log: str) -> Any:
        """Who follows a log under a name, and how far behind, as a DataFrame (``CONSUMERS``)."""
        return self._frames.from_arrow(self.consumers_arrow(log))

    def consumers_arrow(self, log: str) -> pa.Table:
        """The same as an Arrow table (``logs.consumers.CONSUMERS``): no Spark.

        Raises:
            NoSuchLogError: there is no log of that name.
        """
        return consumers.consumers_table(self.context, log)

    def show_lag(self, log: str) -> None:
        """From now on ``metrics()`` has gauges for the named followers of a log.

        ``bookkeeper_log_consumer_entries_behind{consumer="etl",log="orders"}``, and the same for
        bytes and seconds: what ``consumers`` tells, looked up each time. A follower that publishes
        by ``Log.publish`` here is shown without being asked for.
        """
        consumers.show_lag(self.context, log)

    def ledger(self, ledger_id: int) -> views.LedgerInfo:
        """One ledger as its metadata tells it now. Raises ``NoSuchLedgerError``."""
        wanted = parse_ledger_id(ledger_id)
        found = self.context.store.read_ledger(wanted)
        return views.LedgerInfo.of(wanted, found.value, self.context, self._frames.from_arrow)

    def ledgers(self, *, ask_bookies: bool = False) -> Any:
        """All ledgers, as a DataFrame (``views.LEDGERS``).

        One whose metadata cannot be decoded has the state ``UNREADABLE`` and nothing else to tell.
        ``writer_state`` of one that is not closed is ``lives``, ``gone`` or ``unknown``.

        Args:
            ask_bookies: fill ``last_add_confirmed`` and ``newest_entry_at`` also for ledgers that
                are not closed; their bookies are asked, and nothing is fenced.
        """
        return self._frames.from_arrow(self.ledgers_arrow(ask_bookies=ask_bookies))

    def ledgers_arrow(self, *, ask_bookies: bool = False) -> pa.Table:
        """All ledgers, as an Arrow table: no Spark."""
        return views.ledgers_table(self.context, ask_bookies=ask_bookies)

    def bookies(self) -> Any:
        """All bookies that are known, alive or not, as a DataFrame (``views.BOOKIES``)."""
        return self._frames.from_arrow(self.bookies_arrow())

    def bookies_arrow(self) -> pa.Table:
        """All bookies, as an Arrow table: no Spark."""
        return views.bookies_table(self.context)

    def underreplicated(self) -> Any:
        """Ledgers that lack replicas, and why still, as a DataFrame (``UNDERREPLICATED``)."""
        return self._frames.from_arrow(self.underreplicated_arrow())

    def underreplicated_arrow(self) -> pa.Table:
        """The same as an Arrow table (``autorecovery.table.UNDERREPLICATED``): no Spark."""
        return underreplicated_table(self.context)

    def jobs(self) -> Any:
        """What was done lately, and what is being done, as a DataFrame (``recent_jobs.JOBS``).

        Recoveries, repairs, checks and replication work of every client and agent, the newest
        first; a job that runs gives a sign of life every few seconds.
        """
        return self._frames.from_arrow(self.jobs_arrow())

    def jobs_arrow(self) -> pa.Table:
        """The same as an Arrow table: no Spark."""
        return jobs_table(self.context)

    def track(self, also: Progress = no_progress) -> Track:
        """Something to give a job as ``progress``, which keeps how the job came forward.

        Args:
            also: hears what the job tells, too.
        """
        return Track(self.context.runtime, self._frames.from_arrow, also)

    def doctor(self) -> Diagnoses:
        """Is everything set up right, and what to do: this machine, the cluster, every bookie.

        True when nothing is a problem: ``if bk.doctor(): ...``; ``print`` shows what needs care.
        Changes nothing; a small file is written to every bookie and removed again.

        Raises:
            MetadataUnavailableError: ZooKeeper does not answer.
        """
        context = self.context
        findings = (*machine_diagnoses(), *cluster_diagnoses(context))
        return Diagnoses(findings, frame=self._frames.from_arrow)

    def safe_to_lose(self, bookie_ids: str | Sequence[str]) -> Losses:
        """Which ledgers would have fewer than Qa live copies without these bookies.

        True when there are none: ``if bk.safe_to_lose("10.0.0.3:3181"): ...``. Asks the metadata
        only, and changes nothing.

        Raises:
            InvalidArgumentError: no bookie is named, or one that nobody knows.
        """
        names = [bookie_ids] if isinstance(bookie_ids, str) else _several("bookie_ids", bookie_ids)
        return losses(self.context, [parse_bookie_id(name) for name in names])

    def space(self) -> Any:
        """What takes space on each bookie, ledger by ledger, as a DataFrame (``SPACE``).

        Live bytes are those of ledgers that somebody owns, orphan bytes those of ``orphans()``;
        garbage is what was deleted, or is left of copies that no metadata name. Every file of
        every bookie is looked at, so it takes a while; nothing is changed.
        """
        return self._frames.from_arrow(self.space_arrow())

    def space_arrow(self) -> pa.Table:
        """The same as an Arrow table (``cluster.space.SPACE``): no Spark."""
        return space_table(self.context)

    def orphans(self) -> Any:
        """Ledgers that nobody owns, and why it seems so, as a DataFrame (``ORPHANS``).

        Those that nobody writes, no log names, and that have no label of a user. Whether somebody
        misses them only people know: ``delete_ledger`` is theirs to call.
        """
        return self._frames.from_arrow(self.orphans_arrow())

    def orphans_arrow(self) -> pa.Table:
        """The same as an Arrow table (``cluster.orphans.ORPHANS``): no Spark."""
        return orphans_table(self.context)

    def history(self, ledger_id: int) -> Any:
        """What happened to a ledger, as far as anybody kept it, as a DataFrame (``HISTORY``).

        Who created it and when, where its ensemble changed, its fences and its end. Times of
        changes are not kept, nor the names of bookies that a recovery replaced.

        Raises:
            NoSuchLedgerError: there is no such ledger.
        """
        return self._frames.from_arrow(self.history_arrow(ledger_id))

    def history_arrow(self, ledger_id: int) -> pa.Table:
        """The same as an Arrow table (``client.history.HISTORY``): no Spark."""
        return history_table(self.context, parse_ledger_id(ledger_id))

    def diff_replicas(self, ledger_id: int) -> Any:
        """Every entry on every bookie of its write set, side by side, as a DataFrame."""
        return self._frames.from_arrow(self.diff_replicas_arrow(ledger_id))

    def diff_replicas_arrow(self, ledger_id: int) -> pa.Table:
        """The same as an Arrow table (``views.REPLICAS``): no Spark."""
        return views.replicas_table(self.context, parse_ledger_id(ledger_id))

    def metrics(self) -> dict[str, float]:
        """Counters and gauges of this connection by their Prometheus names; see ``metrics.py``.

        They begin at 0 with the connection, and hold what this process did, and what the tasks of
        its appends, reads and jobs did when these have ended. Over Spark Connect the tasks of
        ``reader.read()`` do not say it; nor does ``format("bookkeeper")`` in any session, which
        knows no connection.
        """
        return self.context.metrics.as_dict()

    @property
    def metrics_registry(self) -> CollectorRegistry:
        """The same as a registry of ``prometheus_client``, to be served with a program's own."""
        return self.context.metrics.registry

    def lost_entries(
        self, ledger_ids: Iterable[int] | None = None, *, progress: Progress | None = None
    ) -> Any:
        """Entries that can be read from no bookie, and why from none, as a DataFrame.

        Everything acknowledged is read and verified by a Spark job; nothing is changed. The same
        entries are passed over by ``read(skip_lost=True)`` and ``failOnDataLoss=false``.

        Args:
            ledger_ids: ``None`` is all ledgers.
            progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

        Returns:
            a row for each run of entries and each bookie that should have them
            (``lost.LOST``): none when all can be read.
        """
        runner = self._runner("lost_entries")
        with told(progress, "lost_entries") as tell:
            table = lost_entries(self.context, runner, _ids(ledger_ids), tell)
        return self._frames.from_arrow(table)

    def lost_entries_arrow(self, ledger_ids: Iterable[int] | None = None) -> pa.Table:
        """The same as an Arrow table: no Spark."""
        return lost_entries(self.context, LocalRunner(self.context), _ids(ledger_ids))

    # SQL

    def register_sql(self, spark: Any = None) -> Sequence[str]:
        """Set up a session for SQL: the data source knows this cluster, and there are functions.

        Afterwards ``spark.read.format("bookkeeper").option("log", "orders")`` needs no
        ``metadataUri``, and ``SELECT * FROM bk_ledgers()`` works; so do ``bk_fragments``,
        ``bk_entries``, ``bk_slots`` (all three take ``ledger => 7``), ``bk_bookies``, ``bk_logs``,
        ``bk_underreplicated`` and ``bk_consumers('orders')``. Spark 4.0 takes the functions alone:
        there each read names its cluster.

        Args:
            spark: ``None`` is the session of this connection.

        Returns:
            the names of the functions.
        """
        chosen = self.spark if spark is None else spark
        connection = self.connection
        options = {
            **{f"zk.{name}": str(value) for name, value in connection.zk_options.items()},
            **{f"storage.{name}": str(value) for name, value in connection.storage_options.items()},
        }
        return register_sql(chosen, self.metadata_uri, options)

    # Replication work

    def recover_ledgers(
        self,
        ledger_ids: Iterable[int] | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """Fence, recover and close ledgers as one Spark job; ``None`` is every one not closed."""
        wanted = _ids(ledger_ids)
        return self._reported(
            "recover_ledgers",
            _named("ledger", wanted),
            dry_run,
            progress,
            lambda runner, tell: recover_ledgers(
                self.context, runner, wanted, dry_run=dry_run, progress=tell
            ),
        )

    def recover_bookie(
        self,
        bookie_ids: str | Sequence[str],
        target: str | None = None,
        *,
        ledger_ids: Iterable[int] | None = None,
        skip_open_ledgers: bool = False,
        even_if_alive: bool = False,
        dry_run: bool = False,
        bytes_per_second: int | None = None,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """Make the data of lost bookies again on others, as a Spark job.

        Args:
            bookie_ids: one lost bookie, or several at once.
            target: where to copy to; ``None`` chooses a random suitable bookie per fragment.
            ledger_ids: only these.
            skip_open_ledgers: leave ledgers alone that would have to be fenced and closed.
            even_if_alive: also for a bookie that is registered.
            dry_run: show what would be done; nothing is changed.
            bytes_per_second: limit for the whole job.
            progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

        Raises:
            InvalidArgumentError: a bookie is alive or unknown, or the target does not fit.
        """
        names = [bookie_ids] if isinstance(bookie_ids, str) else _several("bookie_ids", bookie_ids)
        if not names:
            raise InvalidArgumentError("no bookie was named; bookies() shows which are lost")
        wish = BookieRecovery(
            bookies=tuple(parse_bookie_id(name) for name in names),
            target=None if target is None else parse_bookie_id(target),
            ledger_ids=None if ledger_ids is None else tuple(_ids(ledger_ids) or ()),
            skip_open_ledgers=skip_open_ledgers,
            even_if_alive=even_if_alive,
            bytes_per_second=_rate(bytes_per_second),
        )
        return self._reported(
            "recover_bookie",
            _named("bookie", wish.bookies),
            dry_run,
            progress,
            lambda runner, tell: recover_bookie(
                self.context, runner, wish, dry_run=dry_run, progress=tell
            ),
        )

    def refill_bookie(
        self,
        bookie_id: str,
        *,
        ledger_ids: Iterable[int] | None = None,
        skip_open_ledgers: bool = False,
        dry_run: bool = False,
        bytes_per_second: int | None = None,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """Copy back to a bookie whose disk was replaced what it should hold, as a Spark job.

        It was formatted again (``bookie format --replaced``) and is registered. For each ledger it
        is in limbo, and its word counts for nothing, until all that it should hold is there.

        Args:
            bookie_id: the bookie.
            ledger_ids: only these.
            skip_open_ledgers: leave ledgers alone that would have to be fenced and closed.
            dry_run: show what would be done; nothing is changed.
            bytes_per_second: limit for the whole job.
            progress: called with phase, items done, items in all, bytes so far.

        Raises:
            InvalidArgumentError: the bookie is not registered, or a ledger does not exist.
        """
        wish = Refill(
            bookie=parse_bookie_id(bookie_id),
            ledger_ids=None if ledger_ids is None else tuple(_ids(ledger_ids) or ()),
            skip_open_ledgers=skip_open_ledgers,
            bytes_per_second=_rate(bytes_per_second),
        )
        return self._reported(
            "refill_bookie",
            f"bookie {bookie_id}",
            dry_run,
            progress,
            lambda runner, tell: refill_bookie(
                self.context, runner, wish, dry_run=dry_run, progress=tell
            ),
        )

    def check_ledgers(
        self,
        ledger_ids: Iterable[int] | None = None,
        *,
        percentage: int = 0,
        progress: Progress | None = None,
    ) -> CheckReport:
        """Which shares of which fragments are missing or damaged, as a Spark job.

        Args:
            percentage: of the entries that are read and verified, besides the first and the last
                of every share; 100 verifies every digest.
        """
        wanted, share = _ids(ledger_ids), _percentage(percentage)
        return self._reported(
            "check_ledgers",
            _named("ledger", wanted),
            False,
            progress,
            lambda runner, tell: check_ledgers(self.context, runner, wanted, share, progress=tell),
        )

    def repair_ledgers(
        self,
        ledger_ids: Iterable[int] | None = None,
        *,
        percentage: int = 100,
        dry_run: bool = False,
        bytes_per_second: int | None = None,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """Make missing and damaged copies again where they belong, as a Spark job.

        Bookies that are lost are not its business: ``recover_bookie`` replaces those.

        Args:
            ledger_ids: which; ``None`` is all.
            percentage: of the entries that are looked at, as in ``check_ledgers``. What is wrong
                with the others stays as it is, so the default reads every replica of every entry.
            dry_run: only say what would be copied.
            bytes_per_second: limit for the whole job.
            progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.
        """
        wanted, share, rate = _ids(ledger_ids), _percentage(percentage), _rate(bytes_per_second)
        return self._reported(
            "repair_ledgers",
            _named("ledger", wanted),
            dry_run,
            progress,
            lambda runner, tell: repair_ledgers(
                self.context,
                runner,
                wanted,
                percentage=share,
                dry_run=dry_run,
                bytes_per_second=rate,
                progress=tell,
            ),
            looks_on_spark=True,
        )

    def archive_to_delta(
        self,
        path: str,
        ledger_ids: Iterable[int] | None = None,
        log: str | None = None,
        *,
        release: bool = False,
        keep: int = 1,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ArchiveReport:
        """Put the rows of closed ledgers into a Delta table, each exactly once, and verify them.

        Repeat it as often as you like, also after a kill at any point and at the same time as
        another: no ledger is added twice. Small ledgers share commits of the table. It has the
        columns of the ledgers behind ``_ledger_id``, ``_entry_id`` and ``_row``.

        Args:
            path: of the table; made when there is none.
            ledger_ids: which ledgers; without them and without ``log``, all there are.
            log: the ledgers of this log, in its order, as far as they are closed.
            release: have bookies drop copies of what is in the table, once every entry was made
                again of it and compared byte for byte. Reads then come from the table where no
                copy is left, and nothing else changes for who reads. One row more for each ledger.
            keep: with ``release``, copies of every entry that stay on bookies; 0 is none.
            dry_run: only say what there is to do.
            progress: called with phase, ledgers done, ledgers in all, bytes so far; ``None`` shows
                it.

        Raises:
            InvalidArgumentError: both ledgers and a log were given; or ``release``, and readers
                could not find the table at ``path``.
            NoSuchLogError: there is no such log.
            MissingRequirementError: the session has no Delta; ``spark_session(delta=True)`` has.
        """
        chosen = _either(ledger_ids, log)
        context = self.context
        if release:
            check_release(context, path, keep)
        if log is not None:
            wanted = list(self.open_log(log).ledgers())
        else:
            wanted = sorted(context.store.ledger_ids()) if chosen is None else list(chosen)
        archive = Archive(
            context,
            self.spark,
            lambda ranges, schema: self._frames.read_placed(context, schema, ranges, PLACE_COLUMNS),
            path,
        )

        def run(runner: Runner, tell: Progress) -> ArchiveReport:
            report = archive.add(wanted, log=log, dry_run=dry_run, progress=tell)
            if release:
                report = release_archived(context, runner, path, report, keep, progress=tell)
            return report

        return self._reported("archive_to_delta", path, dry_run, progress, run, looks_on_spark=True)

    def backup(
        self,
        uri: str,
        ledger_ids: Iterable[int] | None = None,
        log: str | None = None,
        *,
        verify: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BackupReport:
        """Copy ledgers, a log or the whole cluster to a directory, as a Spark job; repeatable.

        Each run copies what is new, and ends with a snapshot of what there is. A ledger that is
        not closed is copied up to its last add confirmed, and its writer goes on.

        Args:
            uri: a path or an fsspec URI; made when it is not there. It will hold what the ledgers
                hold, and their passwords.
            ledger_ids: which; without them and without ``log`` all, with logs and consumers.
            log: the ledgers of this log, with its list and consumers.
            verify: read again also what earlier runs copied, and mend it.
            dry_run: only say what would be copied.
            progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

        Raises:
            InvalidArgumentError: both ledgers and a log, or something else is at ``uri``.
            NoSuchLogError: there is no such log.
        """
        wanted = _either(ledger_ids, log)
        return self._reported(
            "backup",
            uri,
            dry_run,
            progress,
            lambda runner, tell: backup(
                self.context,
                runner,
                uri,
                wanted,
                log,
                verify=verify,
                dry_run=dry_run,
                progress=tell,
            ),
        )

    def restore(
        self,
        uri: str,
        ledger_ids: Iterable[int] | None = None,
        log: str | None = None,
        *,
        snapshot: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BackupReport:
        """Put ledgers and logs of a backup into this cluster, as a Spark job; repeatable.

        Ids, entries, positions, labels, digests and passwords are those that they were. What was
        not closed is closed at the last entry that the backup has. The cluster should be empty:
        an id that it has used is not taken.

        Args:
            uri: of the backup.
            ledger_ids: which; without them and without ``log``, all of the snapshot.
            log: this log and its ledgers.
            snapshot: its number; ``None`` is the newest.
            dry_run: only say what would be restored.
            progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

        Raises:
            InvalidArgumentError: there is no such backup, snapshot, ledger or log.
        """
        wanted = _either(ledger_ids, log)
        return self._reported(
            "restore",
            uri,
            dry_run,
            progress,
            lambda runner, tell: restore(
                self.context,
                runner,
                uri,
                wanted,
                log,
                snapshot=snapshot,
                dry_run=dry_run,
                progress=tell,
            ),
        )

    # A cluster that keeps itself whole

    @property
    def autorecovery(self) -> AutorecoveryControl:
        """The switch, the delay, the auditor; and auditor and worker to run in this process."""
        return AutorecoveryControl(self.context, self._runner)

    def audit(self, *, dry_run: bool = False, progress: Progress | None = None) -> AuditReport:
        """One round of the auditor: publish every ledger that counts on a bookie that is away.

        Raises:
            InvalidArgumentError: autorecovery is disabled. What was published before stays.
        """
        with told(progress, "audit") as tell:
            report = audit_bookies(self.context, dry_run=dry_run, progress=tell)
        return replace(report, frame=self._frames.from_arrow)

    def rereplicate(
        self,
        *,
        config: AutorecoveryConfig | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """One round of replication work, as Spark jobs: whatever was published and can be repaired.

        A ledger that is open where a bookie is lost is left until the grace period of its writer
        is over; a round after that closes it.

        Raises:
            InvalidArgumentError: autorecovery is disabled, before or meanwhile.
        """

        def run(runner: Runner, tell: Progress) -> RecoveryReport:
            name = process_name()
            worker = ReplicationWorker(self.context, runner, config or AutorecoveryConfig(), name)
            return rereplicate(self.context, worker, dry_run=dry_run, progress=tell)

        return self._reported("rereplicate", None, dry_run, progress, run)

    def decommission_bookie(
        self,
        bookie_id: str,
        drain: bool = False,
        *,
        dry_run: bool = False,
        bytes_per_second: int | None = None,
        progress: Progress | None = None,
    ) -> DecommissionReport:
        """Make all that a bookie holds again on others, and then remove its cookie.

        Args:
            drain: also while it is alive; its cookie stays then, until it is stopped and this is
                called again.

        Raises:
            InvalidArgumentError: it is alive and not to be drained, or unknown.
        """
        bookie, rate = parse_bookie_id(bookie_id), _rate(bytes_per_second)
        return self._reported(
            "decommission_bookie",
            _named("bookie", [bookie]),
            dry_run,
            progress,
            lambda runner, tell: decommission_bookie(
                self.context,
                runner,
                bookie,
                drain=drain,
                dry_run=dry_run,
                bytes_per_second=rate,
                progress=tell,
            ),
        )

    def drain_bookie(
        self,
        bookie_id: str,
        *,
        dry_run: bool = False,
        bytes_per_second: int | None = None,
        progress: Progress | None = None,
    ) -> DecommissionReport:
        """Make a bookie read-only, and make all that it holds again on others, as a Spark job.

        It stays in the cluster; the report says what remains on it, and what is in the way.
        """
        bookie, rate = parse_bookie_id(bookie_id), _rate(bytes_per_second)
        return self._reported(
            "drain_bookie",
            _named("bookie", [bookie]),
            dry_run,
            progress,
            lambda runner, tell: drain_bookie(
                self.context,
                runner,
                bookie,
                dry_run=dry_run,
                bytes_per_second=rate,
                progress=tell,
            ),
        )

    def rebalance(
        self,
        targets: str | Sequence[str] | None = None,
        *,
        max_bytes: int | None = None,
        tolerance_percent: int = 10,
        spare_bytes: int = SPARE_BYTES,
        dry_run: bool = False,
        bytes_per_second: int | None = None,
        progress: Progress | None = None,
    ) -> RebalanceReport:
        """Move shares of closed ledgers to bookies that have room, as a Spark job.

        Each bookie's part of all bytes follows the size of its disk. Copies on the bookies that
        shares were moved from are garbage, and take space there until it is collected.

        Args:
            targets: only these bookies get more; ``None`` is every one that has too little.
            max_bytes: so much is moved at the most.
            tolerance_percent: a bookie with so much more than its part, and no more, is left alone.
            spare_bytes: what is left free on a target's disk, at the least.
            dry_run: show the plan; nothing is changed.
            bytes_per_second: limit for the whole job.
            progress: called with phase, items done, items in all, bytes so far.

        Raises:
            InvalidArgumentError: a target is not registered, or read-only.
        """
        names = [targets] if isinstance(targets, str) else targets
        wish = Rebalance(
            None if names is None else tuple(map(parse_bookie_id, _several("targets", names))),
            None if max_bytes is None else whole_number("max_bytes", max_bytes, 1),
            whole_number("tolerance_percent", tolerance_percent, 0),
            whole_number("spare_bytes", spare_bytes, 0),
            _rate(bytes_per_second),
        )
        return self._reported(
            "rebalance",
            None,
            dry_run,
            progress,
            lambda runner, tell: rebalance(
                self.context, runner, wish, dry_run=dry_run, progress=tell
            ),
        )

    def collect_garbage(
        self,
        dry_run: bool = True,
        *,
        bookie_ids: Sequence[str] | None = None,
        leftovers_after_s: int = 86_400,
        bytes_per_second: int | None = None,
        progress: Progress | None = None,
    ) -> GarbageReport:
        """Remove from bookies what nothing needs. In this process; agents do it by themselves.

        What is not certain stays, and a row says why.

        Args:
            dry_run: only say what would go; the default.
            bookie_ids: only from these; ``None`` is all that are registered.
            leftovers_after_s: what is left of unfinished writes goes when it is older.
            bytes_per_second: limit on reading other replicas of copies that nothing names.
        """
        wish = Collection(
            dry_run,
            leftovers_after_ms=1000 * whole_number("leftovers_after_s", leftovers_after_s, 0),
            bytes_per_second=_rate(bytes_per_second),
        )
        wanted = _bookie_ids(bookie_ids)
        return self._reported(
            "collect_garbage",
            _named("bookie", wanted),
            dry_run,
            progress,
            lambda _, tell: collect_garbage(self.context, wanted, wish, progress=tell),
        )

    def compact(
        self,
        ledger_ids: Iterable[int] | None = None,
        *,
        bookie_ids: Sequence[str] | None = None,
        dry_run: bool = False,
        files_least: int = FILES_LEAST,
        bytes_per_second: int | None = None,
        progress: Progress | None = None,
    ) -> CompactReport:
        """Make few large files of the many small ones of closed ledgers, on each bookie.

        In this process; agents do it by themselves. Reads go on meanwhile.

        Args:
            ledger_ids: only these; ``None`` is all.
            bookie_ids: only on these; ``None`` is all that are registered.
            files_least: leave ledgers that have fewer files on a bookie.
            bytes_per_second: limit on what is moved.
        """
        wish = CompactionWish(
            dry_run,
            whole_number("files_least", files_least, 2),
            _rate(bytes_per_second),
        )
        wanted, bookies = _ids(ledger_ids), _bookie_ids(bookie_ids)
        return self._reported(
            "compact",
            _named("ledger", wanted),
            dry_run,
            progress,
            lambda _, tell: compact_ledgers(self.context, wanted, bookies, wish, progress=tell),
        )

    def scrub(
        self,
        bookie_id: str,
        *,
        from_start: bool = False,
        bytes_per_second: int | None = None,
        progress: Progress | None = None,
    ) -> ScrubReport:
        """Read everything that a bookie should have, and compare it with its digests.

        What is damaged or missing is published to autorecovery. In this process; agents do it by
        themselves, and whoever goes on does so where the last one ended.

        Raises:
            BookieUnavailableError: the bookie gives no answer; nothing was published for that.
        """
        wish = Scrubbing(_rate(bytes_per_second), from_start)
        bookie = parse_bookie_id(bookie_id)
        return self._reported(
            "scrub",
            _named("bookie", [bookie]),
            False,
            progress,
            lambda _, tell: scrub(self.context, bookie, wish, progress=tell),
        )

    def _reported(
        self,
        job: str,
        about: str | None,
        dry_run: bool,
        progress: Progress | None,
        run: Callable[[Runner, Progress], ReportT],
        *,
        looks_on_spark: bool = False,
    ) -> ReportT:
        """Run a job and note it among the last ones; a dry run only shows what it would do.

        Args:
            looks_on_spark: also a dry run is worth a Spark job.
        """
        runner = self._runner(job, dry_run and not looks_on_spark)
        with told(progress, job) as tell:
            if dry_run:
                report = run(runner, tell)
            else:
                report = noted(self.context, job, about, tell, lambda heard: run(runner, heard))
        return replace(report, frame=self._frames.from_arrow)

    def _runner(self, job: str, dry_run: bool = False) -> Runner:
        """A Spark job, unless jobs run here, or there is nothing to run."""
        if dry_run or self._runs_jobs_here:
            return LocalRunner(self.context)
        return self._frames.runner(job)


def _digest_type(name: str) -> DigestType:
    check_text("digest_type", name)
    try:
        return DigestType[name.upper()]
    except KeyError:
        raise InvalidArgumentError(
            f"digest_type {name!r} is unknown; use one of "
            f"{', '.join(kind.name for kind in DigestType)}"
        ) from None


def _either(ledger_ids: Iterable[int] | None, log: str | None) -> list[LedgerId] | None:
    """The ids, if there are any; not with a log as well."""
    if ledger_ids is not None and log is not None:
        raise InvalidArgumentError("give either ledger_ids or log, not both; see bk.logs()")
    return _ids(ledger_ids)


def _ids(ledger_ids: Iterable[int] | None) -> list[Any] | None:
    """Each once, in order."""
    if ledger_ids is None:
        return None
    return list(dict.fromkeys(parse_ledger_id(i) for i in _several("ledger_ids", ledger_ids)))


def _named(what: str, ids: Sequence[Any] | None) -> str | None:
    """What a job is about, in a few words; ``None`` is all there is."""
    if ids is None:
        return None
    shown = ", ".join(map(str, ids[:3]))
    return f"{what}{'s' if len(ids) > 1 else ''} {shown}" + (", ..." if len(ids) > 3 else "")


def _bookie_ids(bookie_ids: Sequence[str] | None) -> list[BookieId] | None:
    if bookie_ids is None:
        return None
    return [parse_bookie_id(each) for each in _several("bookie_ids", bookie_ids)]


def _rate(bytes_per_second: int | None) -> int | None:
    return (
        None if bytes_per_second is None else whole_number("bytes_per_second", bytes_per_second, 1)
    )


def _percentage(percentage: int) -> int:
    if not 0 <= whole_number("percentage", percentage) <= 100:
        raise InvalidArgumentError(
            f"percentage={percentage} is not between 0 and 100; 100 looks at every entry"
        )
    return percentage


def _several(name: str, values: Any) -> list[Any]:
    if not isinstance(values, Iterable):
        example = "a list of some" if values is None else f"[{values!r}]"
        raise InvalidArgumentError(f"{name}={values!r} is not a list of ids; give {example}")
    return list(values)
