"""The data source class that Spark loads.

Spark creates and calls it in worker processes of the driver, and pickles it to others. So it holds
only strings. Its imports are inside the methods: Spark imports this module to look for sources,
even in programs that never use this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource
from typing_extensions import override

from spark_bookkeeper.source.conditions import told
from spark_bookkeeper.source.options import SourceOptions, Use

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class BookKeeperSource(DataSource):
    """The data source ``format("bookkeeper")``."""

    session_options: ClassVar[Mapping[str, str]] = {}
    """Defaults for options that are not given; ``register_source`` makes subclasses with some."""

    @classmethod
    @override
    def name(cls) -> str:
        return "bookkeeper"

    def source_options(self) -> SourceOptions:
        """Return all options, as values. Raises ``InvalidArgumentError``."""
        given = {name.lower(): text for name, text in self.options.items()}
        return SourceOptions.parse({**self.session_options, **given})

    @override
    def schema(self) -> StructType:
        from spark_bookkeeper.source.schema import schema_of_read

        with told():
            return schema_of_read(self.source_options())

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_bookkeeper.source.reading import batch_reader

        with told():
            options = self.source_options()
            options.check_reading(Use.READ)
            return batch_reader(options, schema)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_bookkeeper.source.stream_reading import stream_reader

        return stream_reader(self.source_options, schema)

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_bookkeeper.source.writing import batch_writer

        with told():
            options = self.source_options()
            options.check_use(Use.WRITE)
            return batch_writer(options, schema, overwrite)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_bookkeeper.source.stream_writing import stream_writer

        with told():
            options = self.source_options()
            options.check_use(Use.STREAM_WRITE)
            checkpoint = self.options.get("checkpointlocation")
            return stream_writer(options, schema, overwrite, checkpoint)


def with_session_options(options: Mapping[str, str]) -> type[BookKeeperSource]:
    """Return a subclass of the source that has default options for one session.

    Spark pickles the class itself, and not its name, so each session can have its own.
    """
    given = dict(options)

    class BookKeeperSourceOfSession(BookKeeperSource):
        session_options = given

    return BookKeeperSourceOfSession
