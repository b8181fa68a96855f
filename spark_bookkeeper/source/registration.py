"""What is set up for one session: its cluster, once for all reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    """
    # The class imports pyspark, which a session without Spark does without.
    from spark_bookkeeper.source.data_source import with_session_options

    uri = metadata_uri or spark.conf.get(SESSION_URI, None)
    defaults = {name.lower(): text for name, text in options.items()}
    if uri:
        defaults["metadatauri"] = uri
    SourceOptions.parse(defaults)
    spark.dataSource.register(with_session_options(defaults))
    return defaults
