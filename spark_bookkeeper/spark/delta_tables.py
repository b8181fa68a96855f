"""Delta tables: whether this Spark can have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bookkeeper.errors import MissingRequirementError
from spark_bookkeeper.spark.job import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_has_delta(spark: SparkSession, path: str, consequence: str) -> None:
    """Whether a session has Delta Lake, before anything is done.

    Args:
        spark: the session.
        path: of a table; there need not be one.
        consequence: what cannot be done without, for the message.

    Raises:
        MissingRequirementError: it has none.
    """
    try:
        spark.read.format("delta").load(path)
    except spark_errors() as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise MissingRequirementError(
                f"{consequence}: this Spark has no Delta Lake. Start it with its jars: "
                "spark_session(delta=True), or spark-submit --packages "
                "io.delta:delta-spark_2.13:4.4.0 --conf "
                "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension --conf "
                "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog. "
                "Nothing was done"
            ) from error
        # There is no table yet; appending makes it.
