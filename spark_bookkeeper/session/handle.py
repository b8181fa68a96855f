"""A connection to one cluster: what works there, where its jobs run, and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from typing_extensions import Self

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.replication.recent_jobs import note_deletion, noted
from spark_bookkeeper.replication.report import Report
from spark_bookkeeper.replication.runner import LocalRunner, Progress, Runner
from spark_bookkeeper.runtime import process
from spark_bookkeeper.runtime.progress import told
from spark_bookkeeper.runtime.public_names import PublicNames
from spark_bookkeeper.runtime.runtime import begin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
    from spark_bookkeeper.spark.frames import SparkFrames

T = TypeVar("T")
ReportT = TypeVar("ReportT", bound=Report)


class ClusterHandle(PublicNames):
    """What every call of ``BookKeeper`` has in its hand."""

    _INTERNALS = frozenset(
        {"connection", "context", "frames", "begin", "calls", "reported", "runner"}
        | {"note_deleted", "runs_here"}
    )

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
        self.runs_here = runs_jobs_here
        self._process = process.here
        self._context: ClientContext | None = connection.open()
        self._spark = spark
        self._spark_conf = spark_conf
        self._noting = self._context.runtime.condition()
        self._deleted: list[Deletion] = []
        self._metrics = self._context.metrics

    @cached_property
    def frames(self) -> SparkFrames:
        """DataFrames in and out."""
        # Bytes, Arrow tables and most commands need none.
        from spark_bookkeeper.spark.frames import SparkFrames

        return SparkFrames(self._spark, self.connection, self._spark_conf, self._metrics)

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
        return self.frames.session

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

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def calls(self) -> Any:
        """This connection, to make another of its calls: as its class has it, or overrides it."""
        return self

    def begin(self, name: str, call: Callable[[], T]) -> Future[T]:
        """Make a call beside the caller; ``name`` is its thread's."""
        return begin(self.context.runtime, name, call)

    def reported(
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
        runner = self.runner(job, dry_run and not looks_on_spark)
        with told(progress, job) as tell:
            if dry_run:
                report = run(runner, tell)
            else:
                report = noted(self.context, job, about, tell, lambda heard: run(runner, heard))
        return replace(report, frame=self.frames.from_arrow)

    def note_deleted(self, context: ClientContext, gone: Deletion) -> None:
        """Note a ledger among the last jobs, together with those of threads that wait meanwhile."""
        self._deleted.append(gone)
        with self._noting:
            ledgers = [self._deleted.pop(0) for _ in range(len(self._deleted))]
            if ledgers:
                about = ", ".join(f"ledger {each.ledger_id}" for each in ledgers)
                note_deletion(context, "delete_ledger", about, ledgers)

    def runner(self, job: str, dry_run: bool = False) -> Runner:
        """A Spark job, unless jobs run here, or there is nothing to run."""
        if dry_run or self.runs_here:
            return LocalRunner(self.context)
        return self.frames.runner(job, self.context.bookies.hosts)
