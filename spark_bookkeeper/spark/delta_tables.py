"""Delta tables: a session that supports them, and a check whether a session does."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from spark_bookkeeper.errors import MissingRequirementError
from spark_bookkeeper.spark.job import first_line, spark_errors
from spark_bookkeeper.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NO_FILE_SYSTEM: Final = re.compile(r"No FileSystem for scheme|Class \S+FileSystem not found")


def session_with_delta(**conf: str) -> SparkSession:
    """Return the active session, that of ``spark-submit``, or a new one with Delta.

    Delta can be added only to a new session; ``conf`` are settings of it.

    Raises:
        MissingRequirementError: the jars of Delta are not available. No session was made.
    """
    from pyspark.sql import SparkSession

    is_ours = SparkSession.getActiveSession() is None and "PYSPARK_GATEWAY_PORT" not in os.environ
    return spark_session(delta=is_ours, **conf)


def check_has_delta(spark: SparkSession, path: str, consequence: str) -> None:
    """Check that a session has Delta Lake, before any work begins.

    Args:
        spark: the session.
        path: path of a table, which need not exist.
        consequence: what cannot be done without Delta, for the message.

    Raises:
        MissingRequirementError: it has no Delta, or no file system for such a path.
    """
    try:
        spark.read.format("delta").load(path)
    except spark_errors() as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            its_spark = ".".join(spark.version.split(".")[:2])
            raise MissingRequirementError(
                f"{consequence}: this Spark has no Delta Lake. Start it with its jars: "
                "spark_session(delta=True), or spark-submit --packages "
                f"io.delta:delta-spark_{its_spark}_2.13:4.4.0 --conf "
                "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension --conf "
                "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog. "
                "Nothing was done"
            ) from error
        if _NO_FILE_SYSTEM.search(str(error)):
            raise MissingRequirementError(
                f"{consequence}: this Spark has no file system for {path} ({first_line(error)}). "
                "Start it with the jars of one (of S3 spark.jars.packages with hadoop-aws, and a "
                "URI that begins with s3a://). Nothing was done"
            ) from error
        # The table does not exist yet; appending creates it.
