"""A Delta table of job reports, to query the health of a cluster over time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.replication.report import Report
from spark_bookkeeper.spark.delta_tables import check_has_delta, session_with_delta
from spark_bookkeeper.spark.job import first_line, spark_errors
from spark_bookkeeper.spark.schemas import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BATCHES_AT_ONCE: Final = 16
"""Number of batches of a report's rows that one commit of the table appends."""

RUN: Final = "run"
"""The ``action`` of the row that summarises a whole report."""


def open_report_table(path: str, cluster: str | None = None, **conf: str) -> ReportTable:
    """Return the table at ``path``, in the session of ``session_with_delta``.

    Args:
        path: location of the table, which may not exist yet.
        cluster: name of the cluster that the rows of appended reports show.
        conf: settings of a session that has to be started.

    Raises:
        MissingRequirementError: the session has no Delta, or cannot get it. Nothing was done.
    """
    return ReportTable(session_with_delta(**conf), path, cluster)


class ReportTable:
    """A Delta table of reports: one row for each report, and one for each of its rows.

    Columns: ``job string, reported_at timestamp, dry_run boolean, duration_ms long``, then those of
    a report, and after them ``run string`` (the same in all rows of a report), ``cluster string``
    and ``complete boolean`` (whether the report left nothing undone). The row of the report itself
    has the action ``run``, no ledger, the sums of entries and bytes, and as reason its counts of
    rows by status. It exists also when nothing was found. A plan has more columns than a run. The
    first plan adds them to the table; in other rows they are null. ``docs/delta.md`` has the query
    for the history of a cluster's health.

    Args:
        path: location of the table, which may not exist yet.
        cluster: name of the cluster whose reports are appended.

    Raises:
        MissingRequirementError: this Spark has no Delta. Nothing was done.
    """

    def __init__(self, spark: SparkSession, path: str, cluster: str | None = None) -> None:
        self._spark = spark
        self._path = path
        self._cluster = cluster
        check_has_delta(spark, path, f"the report cannot be appended to {path}")

    def append(self, report: Report) -> None:
        """Append a report, in one commit; a very long one in several commits with the same ``run``.

        Raises:
            BookKeeperError: the table could not be written. The job's work stays done.
        """
        from pyspark.sql import functions

        number = uuid.uuid4().hex
        try:
            for table in _tables(report):
                rows: Any = self._spark.createDataFrame(table, schema=spark_schema(table.schema))
                rows.select(
                    functions.lit(report.job).alias("job"),
                    functions.current_timestamp().alias("reported_at"),
                    functions.lit(report.dry_run).alias("dry_run"),
                    functions.lit(report.duration_ms).cast("long").alias("duration_ms"),
                    *table.schema.names,
                    functions.lit(number).alias("run"),
                    functions.lit(self._cluster).cast("string").alias("cluster"),
                    functions.lit(report.is_complete).alias("complete"),
                ).write.format("delta").mode("append").option("mergeSchema", True).save(self._path)
        except spark_errors() as error:
            raise BookKeeperError(
                f"the job is finished, but its report could not be appended to {self._path}: "
                f"{first_line(error)}"
            ) from error


def _tables(report: Report) -> Iterator[pa.Table]:
    """Yield the summary row of a report, and then its rows, in tables that fit in memory."""
    columns = report.columns.SCHEMA
    schema = pa.schema([field.with_nullable(True) for field in columns])
    sums = report.to_dict()
    counts = ", ".join(f"{status} {count}" for status, count in report.counts.items())
    run = {
        "action": RUN,
        "entries": sums["entries"],
        "bytes": sums["bytes"],
        "status": "complete" if report.is_complete else "incomplete",
        "reason": counts or None,
    }
    batches = report.batches()
    first = pa.Table.from_batches(islice(batches, BATCHES_AT_ONCE), schema=columns)
    yield pa.concat_tables([pa.Table.from_pylist([run], schema=schema), first.cast(schema)])
    while some := list(islice(batches, BATCHES_AT_ONCE)):
        yield pa.Table.from_batches(some, schema=columns).cast(schema)
