"""Options that a session sets once for all its reads and writes, such as the cluster."""

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
    """Set up ``format("bookkeeper")`` in a session, with a default cluster.

    Needed only for that default, and where the package is not installed (``spark-submit
    --py-files``). Spark finds the source of an installed package by itself.

    Args:
        spark: the session, also one of Spark Connect.
        metadata_uri: the cluster; ``None`` takes the session's ``spark.bookkeeper.metadataUri``.
        options: defaults for other options, by their names.

    Returns:
        the options that reads and writes of this session have by default.

    Raises:
        InvalidArgumentError: an option is not known, or its value is not valid.
        MissingRequirementError: Spark 4.0 has found the source of the installed package, and
            replaces no source that it has found.
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
    """Return the default options of a session. Raises ``InvalidArgumentError``."""
    uri = spark.conf.get(SESSION_URI, None) if metadata_uri is None else metadata_uri
    defaults = {name.lower(): text for name, text in options.items()}
    if uri is not None:
        defaults["metadatauri"] = uri
    SourceOptions.parse(defaults)
    return defaults
