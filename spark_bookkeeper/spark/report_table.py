"""Reports of jobs, kept in a Delta table: the health of a cluster over time, to be queried."""

from __future__ import annotations

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


def open_report_table(path: str, **conf: str) -> ReportTable:
    """The table at ``path``, in the session of ``session_with_delta``.

    Raises:
        MissingRequirementError: the session has no Delta, or it cannot be had. Nothing was done.
    """
    return ReportTable(session_with_delta(**conf), path)


class ReportTable:
    """A Delta table of reports: one row for each row of a report.

    Columns: ``job string, reported_at timestamp, dry_run boolean, duration_ms long``, then those
    of a report. A plan has more columns than a run: they are added to the table when the first
    such row is, and the rows of others have none of them.

    Args:
        path: where the table is, or is to be made.

    Raises:
        MissingRequirementError: this Spark has no Delta. Nothing was done.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        check_has_delta(spark, path, f"the report cannot be appended to {path}")

    def append(self, report: Report) -> None:
        """Append the rows of a report; of a very long one, some at a time.

        Raises:
            BookKeeperError: the table did not take them. What the job did stays done.
        """
        from pyspark.sql import functions

        schema = report.columns.SCHEMA
        try:
            for table in _tables(report):
                rows: Any = self._spark.createDataFrame(table, schema=spark_schema(schema))
                rows.select(
                    functions.lit(report.job).alias("job"),
                    functions.current_timestamp().alias("reported_at"),
                    functions.lit(report.dry_run).alias("dry_run"),
                    functions.lit(report.duration_ms).cast("long").alias("duration_ms"),
                    *schema.names,
                ).write.format("delta").mode("append").option("mergeSchema", True).save(self._path)
        except spark_errors() as error:
            raise BookKeeperError(
                f"the job is finished, but its report could not be appended to {self._path}: "
                f"{first_line(error)}"
            ) from error


def _tables(report: Report) -> Iterator[pa.Table]:
    """The rows of a report in tables that fit in memory; at least one, so that there is a table."""
    batches = report.batches()
    some = list(islice(batches, BATCHES_AT_ONCE))
    yield pa.Table.from_batches(some, schema=report.columns.SCHEMA)
    while some := list(islice(batches, BATCHES_AT_ONCE)):
        yield pa.Table.from_batches(some, schema=report.columns.SCHEMA)
