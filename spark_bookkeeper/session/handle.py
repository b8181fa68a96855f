"""A connection to one cluster: its parts, where its jobs run, and its end."""

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
    """The parts of a connection that every call of ``BookKeeper`` uses."""

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
        """Converts to and from DataFrames."""
        # Imported here, because bytes, Arrow tables and most commands do not need it.
        from spark_bookkeeper.spark.frames import SparkFrames

        return SparkFrames(self._spark, self.connection, self._spark_conf, self._metrics)

    @property
    def context(self) -> ClientContext:
        """The stores, clients and settings that calls use.

        Raises ``InvalidArgumentError`` after ``close``, and in a forked child of the process that
        made it.
        """
        self._check_here()
        if self._context is None:
            raise InvalidArgumentError("this BookKeeper was closed; connect() again")
        return self._context

    @property
    def metadata_uri(self) -> str:
        """The URI that ``connect`` was called with; other programs reach the cluster by it."""
        return self.connection.metadata_uri

    @property
    def spark(self) -> SparkSession:
        """The Spark session for DataFrames and jobs; reading it starts one if none is active."""
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

        In a forked child nothing ends: both belong to the parent.
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
        """This connection, through which a call makes other calls, as its class defines them."""
        return self

    def begin(self, name: str, call: Callable[[], T]) -> Future[T]:
        """Make a call in the background, in a thread called ``name``."""
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
        """Run a job and note it among the recent jobs. A dry run only reports what would be done.

        Args:
            looks_on_spark: also run a dry run on Spark, because it reads much.
        """
        runner = self.runner(job, dry_run and not looks_on_spark)
        with told(progress, job) as tell:
            if dry_run:
                report = run(runner, tell)
            else:
                report = noted(self.context, job, about, tell, lambda heard: run(runner, heard))
        return replace(report, frame=self.frames.from_arrow)

    def note_deleted(self, context: ClientContext, gone: Deletion) -> None:
        """Note a deletion among the recent jobs, in one write with those of threads that wait."""
        self._deleted.append(gone)
        with self._noting:
            ledgers = [self._deleted.pop(0) for _ in range(len(self._deleted))]
            if ledgers:
                about = ", ".join(f"ledger {each.ledger_id}" for each in ledgers)
                note_deletion(context, "delete_ledger", about, ledgers)

    def runner(self, job: str, dry_run: bool = False) -> Runner:
        """Return a Spark runner, or a local one for a dry run and if jobs run in this process."""
        if dry_run or self.runs_here:
            return LocalRunner(self.context)
        return self.frames.runner(job, self.context.bookies.hosts)
