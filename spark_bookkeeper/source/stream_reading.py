"""Streams: ``spark.readStream.format("bookkeeper")``.

One process next to the driver finds the end of the readable entries and plans each micro-batch. Its
tasks are those of a batch read. Errors in the options are raised when Spark requests the first
offset: an error from this reader's constructor does not reach the user intact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from typing_extensions import override

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.source.conditions import told
from spark_bookkeeper.source.micro_batch import Limits
from spark_bookkeeper.source.offset_options import LATEST, Offset
from spark_bookkeeper.source.older_spark import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from spark_bookkeeper.source.options import SourceOptions, Use
from spark_bookkeeper.source.planning import plan_batch
from spark_bookkeeper.source.reading import read_share, shares
from spark_bookkeeper.source.schema import wanted_columns
from spark_bookkeeper.source.selection import open_selection
from spark_bookkeeper.source.stream_ledger import FollowedLedger
from spark_bookkeeper.source.stream_log import FollowedLog, followed
from spark_bookkeeper.spark.schemas import arrow_schema
from spark_bookkeeper.spark.workers import task_context

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads rows of a log, or of one ledger, as they are acknowledged."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._target: Offset | None = None
        """The end of a query that reads only what exists when it starts."""

    @override
    def initialOffset(self) -> dict[str, Any]:
        with told():
            self._check_options()
            return self._followed.begin(self._options.starting_offsets or LATEST).to_json()

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark passes it back where the limits hold, and another one where they do not. Then both
        # of our limits are read from the options.
        if self._options.max_entries_per_trigger is not None:
            return ReadMaxRows(self._options.max_entries_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @override
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        with told():
            if start is None:  # an older Spark, which passes neither argument
                self._check_options()
                return self._followed.front().to_json()
            begin = self._followed.resumed(Offset.from_json(start))
            limits = Limits()
            if not isinstance(limit, ReadAllAvailable):
                options = self._options
                limits = Limits(options.max_entries_per_trigger, options.max_bytes_per_trigger)
            # All before ``begin`` is committed. A query that ends there makes no further call.
            self._publish(
                begin, self._target is not None and begin.position >= self._target.position
            )
            end = self._followed.ahead(begin, limits)
            if self._target is not None and end.position > self._target.position:
                end = end.at(max(begin.position, self._target.position))
            return end.to_json()

    @override
    def reportLatestOffset(self) -> dict[str, Any]:
        with told():
            return self._followed.front().to_json()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        with told():
            self._check_options()
            self._target = self._followed.front()

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with told():
            begin, stop = Offset.from_json(start), Offset.from_json(end)
            if not HAS_LIMITS:  # only this call shows where the stream stands
                self._followed.ahead(begin, Limits())
                self._publish(begin, is_last=True)
            ranges = self._followed.ranges(begin, stop)
            planned = plan_batch(self._context, ranges, self._options.max_entries_per_partition)
            return shares(self._connection, self._context, self._columns, planned)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_share(self._options, self._schema, partition)

    @override
    def commit(self, end: dict[str, Any]) -> None:
        """Publish the position, in an older Spark. It makes no such call for a query of a single
        micro-batch. A newer Spark shows the position when it begins the next micro-batch.
        """
        if not HAS_LIMITS:
            with told():
                self._publish(Offset.from_json(end), is_last=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without open connections, since the reader is sent to tasks."""
        return {"_options": self._options, "_schema": self._schema, "_target": None}

    def _check_options(self) -> None:
        self._options.check_reading(Use.STREAM)
        for name in ("maxEntriesPerTrigger", "maxBytesPerTrigger"):
            if not HAS_LIMITS and name in self._options.given():
                raise InvalidArgumentError(
                    f"option {name} needs Spark 4.2 or newer: Spark {pyspark.__version__} does not "
                    "tell a source where a micro-batch begins. Leave it out, and each micro-batch "
                    "takes all there is"
                )

    def _publish(self, offset: Offset, is_last: bool) -> None:
        if self._options.consumer is not None and isinstance(self._followed, FollowedLog):
            self._followed.publish(self._options.consumer, offset, is_last=is_last)

    @cached_property
    def _connection(self) -> Connection:
        return self._options.connection()

    @cached_property
    def _context(self) -> ClientContext:
        return task_context(self._connection)

    @cached_property
    def _columns(self) -> pa.Schema:
        selection = open_selection(self._context, self._options)
        return wanted_columns(selection.schema, self._schema, self._options)

    @cached_property
    def _followed(self) -> FollowedLedger | FollowedLog:
        return followed(self._context, self._options)


class RefusingReader(DataSourceStreamReader):
    """Replaces a reader that cannot be made. When the user gave Spark a schema, the options were
    not checked before; this reader raises the error at the first call.
    """

    def __init__(self, error: InvalidArgumentError) -> None:
        self._error = error

    @override
    def initialOffset(self) -> dict[str, Any]:
        with told():
            raise self._error

    @override
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        return self.initialOffset()

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise AssertionError("it has no partitions")


def stream_reader(parse: Callable[[], SourceOptions], schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a stream; ``schema`` is what Spark expects from it."""
    try:
        return StreamReader(parse(), arrow_schema(schema))
    except InvalidArgumentError as error:
        return RefusingReader(error)
