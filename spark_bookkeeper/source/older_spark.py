"""The parts of Spark 4.2's interface that older versions lack; this source is written for 4.2.

A stream writer receives Arrow batches from Spark 4.1 on. In 4.0 it receives them if it is also a
batch writer of Arrow batches, since Spark only checks for that class. Before 4.2 Spark requests the
last offset of a stream reader without the beginning of the micro-batch, so limits cannot be kept.
Spark 4.0 replaces no source that it has found.
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
    # Only the JVM shows it; filter pushdown came with the same version.
    REPLACES_SOURCES = hasattr(datasource.DataSourceReader, "pushFilters")

    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        DataSourceStreamArrowWriter = datasource.DataSourceStreamArrowWriter
    else:

        class DataSourceStreamArrowWriter(
            datasource.DataSourceArrowWriter, datasource.DataSourceStreamWriter
        ):
            """A stream writer that Spark 4.0 sends Arrow batches to."""

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
            """How much a micro-batch takes; this Spark has no limits."""

            def __init__(self, *limit: Any) -> None: ...

        class ReadAllAvailable(ReadLimit):
            """All available entries."""

        class ReadMaxRows(ReadLimit):
            """Never created."""

        class ReadMaxBytes(ReadLimit):
            """Never created."""

        class SupportsTriggerAvailableNow:
            """This Spark requests the last offset once, and reads up to it in one micro-batch."""


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
