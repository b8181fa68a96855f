"""Reports of jobs, kept in a Delta table: the health of a cluster over time, to be queried."""

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
"""So many batches of a report's rows are one commit of the table."""

RUN: Final = "run"
"""The ``action`` of the row that stands for a whole report."""


def open_report_table(path: str, cluster: str | None = None, **conf: str) -> ReportTable:
    """The table at ``path``, in the session of ``session_with_delta``.

    Args:
        path: where it is, or is to be made.
        cluster: whose reports are appended, as their rows will say.
        conf: settings of a session that has to be made.

    Raises:
        MissingRequirementError: the session has no Delta, or it cannot be had. Nothing was done.
    """
    return ReportTable(session_with_delta(**conf), path, cluster)


class ReportTable:
    """A Delta table of reports: one row for each report, and one for each of its rows.

    Columns: ``job string, reported_at timestamp, dry_run boolean, duration_ms long``, then those
    of a report, and behind them ``run string`` (the same in all rows of a report), ``cluster
    string`` and ``complete boolean`` (whether the report left nothing undone). The row of the
    report itself has the action ``run``, no ledger, the sums of entries and bytes, and its rows by
    status as reason; it is there also when nothing was found. A plan has more columns than a run:
    they are added to the table when the first such row is, and the rows of others have none of
    them. ``docs/delta.md`` has the query for how the health of a cluster has developed.

    Args:
        path: where the table is, or is to be made.
        cluster: whose reports are appended.

    Raises:
        MissingRequirementError: this Spark has no Delta. Nothing was done.
    """

    def __init__(self, spark: SparkSession, path: str, cluster: str | None = None) -> None:
        self._spark = spark
        self._path = path
        self._cluster = cluster
        check_has_delta(spark, path, f"the report cannot be appended to {path}")

    def append(self, report: Report) -> None:
        """Append a report, in one commit; a very long one in several, of one ``run``.

        Raises:
            BookKeeperError: the table did not take them. What the job did stays done.
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
    """The row that stands for a report, and its rows behind it, in tables that fit in memory."""
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
