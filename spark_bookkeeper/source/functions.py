"""Metadata in SQL: ``SELECT * FROM bk_ledgers()``, a table function for each view.

Python data sources have no procedures, and no tables of their own in a catalog: a view with options
or a table function is how SQL names what is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_bookkeeper.logs.consumers import CONSUMERS, consumers_table
from spark_bookkeeper.source.conditions import told
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.source.selection import named_ledgers
from spark_bookkeeper.source.views import VIEW_SCHEMAS, view_table
from spark_bookkeeper.spark.schemas import delivered, delivered_schema, spark_schema
from spark_bookkeeper.spark.workers import task_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_LOGS: Final = "consumers"
"""The one function that is about one log: ``bk_consumers('orders')``."""


def register_functions(spark: SparkSession, options: Mapping[str, str]) -> Sequence[str]:
    """Give a session the table functions; returns their names.

    Each takes ``ledger`` (an id, or several as ``7,9-12``) where its view can be of some ledgers,
    and ``uri``, another cluster than the session's.

    Args:
        spark: the session, also one of Spark Connect.
        options: of the cluster, as of the data source.
    """
    from pyspark.sql.functions import arrow_udtf

    schemas = {**VIEW_SCHEMAS, OF_LOGS: CONSUMERS}
    names = []
    for view, schema in schemas.items():
        made = _function_class(view, dict(options))
        function: Any = arrow_udtf(made, returnType=spark_schema(schema))  # Connect has its own
        names.append(f"bk_{view}")
        spark.udtf.register(names[-1], function)
    return names


def _function_class(view: str, options: Mapping[str, str]) -> type:
    """Spark makes one of these in a task, and asks it once."""
    if view == OF_LOGS:

        class OfOneLog:
            def eval(self, log: pa.Array, uri: Any = None) -> Iterator[pa.Table]:
                yield from rows_of_function(view, options, log=_value(log), uri=_value(uri))

        return OfOneLog

    class OfLedgers:
        def eval(self, ledger: Any = None, uri: Any = None) -> Iterator[pa.Table]:
            yield from rows_of_function(view, options, ledger=_value(ledger), uri=_value(uri))

    return OfLedgers


def rows_of_function(
    view: str,
    options: Mapping[str, str],
    *,
    ledger: Any = None,
    log: Any = None,
    uri: Any = None,
) -> Iterator[pa.Table]:
    """What a table function delivers."""
    with told():
        given = dict(options)
        if ledger is not None:
            given["ledgers"] = str(ledger)
        if uri is not None:
            given["metadatauri"] = str(uri)
        parsed = SourceOptions.parse(given)
        context = task_context(parsed.connection())
        if view == OF_LOGS:
            tables: Iterator[pa.Table] = iter([consumers_table(context, str(log))])
        else:
            chosen = named_ledgers(parsed) or None
            tables = view_table(context, view, chosen)
        schema = delivered_schema({**VIEW_SCHEMAS, OF_LOGS: CONSUMERS}[view])
        for table in tables:
            for batch in table.to_batches():
                yield pa.Table.from_batches([delivered(batch, schema)])


def _value(argument: Any) -> Any:
    """Arguments come as arrays of one value."""
    if isinstance(argument, pa.Array | pa.ChunkedArray):
        return argument[0].as_py() if len(argument) else None
    return argument
