"""Reports of jobs, kept in a Delta table: the health of a cluster over time, to be queried."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from spark_bookkeeper.errors import BookKeeperError, MissingRequirementError
from spark_bookkeeper.replication.report import Report
from spark_bookkeeper.spark.job import first_line, spark_errors
from spark_bookkeeper.spark.schemas import spark_schema
from spark_bookkeeper.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_report_table(path: str, **conf: str) -> ReportTable:
    """The table at ``path``, in the active session, that of ``spark-submit``, or one of our own.

    Only to one of our own Delta can be added; ``conf`` are settings of it.

    Raises:
        MissingRequirementError: the session has no Delta, or it cannot be had. Nothing was done.
    """
    from pyspark.sql import SparkSession

    is_ours = SparkSession.getActiveSession() is None and "PYSPARK_GATEWAY_PORT" not in os.environ
    return ReportTable(spark_session(delta=is_ours, **conf), path)


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
        try:
            spark.read.format("delta").load(path)
        except spark_errors() as error:
            if "DATA_SOURCE_NOT_FOUND" in str(error):
                raise MissingRequirementError(
                    f"the report cannot be appended to {path}: this Spark has no Delta Lake. Start "
                    "it with its jars: spark-submit --packages io.delta:delta-spark_2.13:4.4.0 "
                    "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension --conf "
                    "spark.sql.catalog.spark_catalog="
                    "org.apache.spark.sql.delta.catalog.DeltaCatalog. Nothing was done"
                ) from error
            # There is no table yet; appending makes it.

    def append(self, report: Report) -> None:
        """Append the rows of a report.

        Raises:
            BookKeeperError: the table did not take them. What the job did stays done.
        """
        from pyspark.sql import functions

        table = report.to_arrow()
        rows: Any = self._spark.createDataFrame(table, schema=spark_schema(table.schema))
        try:
            rows.select(
                functions.lit(report.job).alias("job"),
                functions.current_timestamp().alias("reported_at"),
                functions.lit(report.dry_run).alias("dry_run"),
                functions.lit(report.duration_ms).cast("long").alias("duration_ms"),
                *table.schema.names,
            ).write.format("delta").mode("append").option("mergeSchema", True).save(self._path)
        except spark_errors() as error:
            raise BookKeeperError(
                f"the job is finished, but its report could not be appended to {self._path}: "
                f"{first_line(error)}"
            ) from error
