"""What is set up for one session: its cluster, once for all reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_bookkeeper.connection import METADATA_URI_VARIABLE
from spark_bookkeeper.errors import MissingRequirementError
from spark_bookkeeper.source.options import SourceOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

SESSION_URI: Final = "spark.bookkeeper.metadataUri"


def register_source(
    spark: SparkSession, metadata_uri: str | None = None, **options: str
) -> Mapping[str, str]:
    """Set up ``format("bookkeeper")`` in a session, with the cluster that is meant by default.

    Needed only for that, and where the package is no installed one: ``spark-submit --py-files``.
    Spark finds the source of an installed package by itself.

    Args:
        spark: the session, also one of Spark Connect.
        metadata_uri: the cluster; ``None`` is the session's ``spark.bookkeeper.metadataUri``.
        options: others to have once for all, by their names.

    Returns:
        the options that reads and writes of this session have by default.

    Raises:
        InvalidArgumentError: an option is not known, or its value cannot be meant.
        MissingRequirementError: Spark 4.0 has found the source of the installed package, and
            replaces none that it found.
    """
    from pyspark.errors import AnalysisException

    from spark_bookkeeper.source.data_source import with_session_options  # needs pyspark

    defaults = defaults_of(spark, metadata_uri, options)
    try:
        spark.dataSource.register(with_session_options(defaults))
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        raise MissingRequirementError(
            f"Spark {spark.version} has found the data source of the installed package, and "
            "replaces none that it found, so a session can have no options for it. Name the "
            'cluster with each read and write, .option("metadataUri", ...), or set '
            f"{METADATA_URI_VARIABLE} in the environment of the driver; or take Spark 4.1 or newer"
        ) from error
    return defaults


def defaults_of(
    spark: SparkSession, metadata_uri: str | None, options: Mapping[str, str]
) -> Mapping[str, str]:
    """What reads and writes of a session have by default. Raises ``InvalidArgumentError``."""
    uri = spark.conf.get(SESSION_URI, None) if metadata_uri is None else metadata_uri
    defaults = {name.lower(): text for name, text in options.items()}
    if uri is not None:
        defaults["metadatauri"] = uri
    SourceOptions.parse(defaults)
    return defaults
