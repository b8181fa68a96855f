"""What older Sparks lack of the interface that this source is written against, that of 4.2.

A stream writer gets Arrow batches from Spark 4.1 on. In 4.0 it gets them where it is a batch
writer of Arrow batches too: Spark looks at that class and not at what is written. Before 4.2 Spark
asks a stream reader for its last offset without saying where a micro-batch begins, so that no
limit can be kept. Spark 4.0 replaces no source that it has found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS: Final[bool] = True
    REPLACES_SOURCES: Final[bool] = True
else:
    # Seen in the JVM alone; pushing filters came with the same version.
    REPLACES_SOURCES = hasattr(datasource.DataSourceReader, "pushFilters")

    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        DataSourceStreamArrowWriter = datasource.DataSourceStreamArrowWriter
    else:

        class DataSourceStreamArrowWriter(
            datasource.DataSourceArrowWriter, datasource.DataSourceStreamWriter
        ):
            """As Spark 4.0 understands it."""

    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_LIMITS = True
    except ImportError:
        HAS_LIMITS = False

        class ReadLimit:
            """How much a micro-batch takes; this Spark knows of no limit."""

            def __init__(self, *limit: Any) -> None: ...

        class ReadAllAvailable(ReadLimit):
            """All there is."""

        class ReadMaxRows(ReadLimit):
            """Never made."""

        class ReadMaxBytes(ReadLimit):
            """Never made."""

        class SupportsTriggerAvailableNow:
            """This Spark asks for the last offset once, and reads up to it in one micro-batch."""


__all__ = [
    "HAS_LIMITS",
    "REPLACES_SOURCES",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
