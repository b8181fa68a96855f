"""Metadata in SQL: a table function for each view, as in ``SELECT * FROM bk_ledgers()``.

Python data sources have no procedures, and no tables of their own in a catalog. SQL can name
metadata only by a temporary view with options, or by a table function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_bookkeeper.errors import InvalidArgumentError, MissingRequirementError
from spark_bookkeeper.logs.consumers import CONSUMERS, consumers_table
from spark_bookkeeper.source.conditions import told
from spark_bookkeeper.source.metadata_tables import VIEW_SCHEMAS, view_table
from spark_bookkeeper.source.option_texts import nearest
from spark_bookkeeper.source.options import OF_LEDGERS, SourceOptions
from spark_bookkeeper.source.registration import defaults_of, register_source
from spark_bookkeeper.source.selection import named_ledgers
from spark_bookkeeper.spark.schemas import delivered, delivered_schema, spark_schema
from spark_bookkeeper.spark.workers import task_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

OF_LOGS: Final = "consumers"
"""The only function that reads one log: ``bk_consumers('orders')``."""


def register_sql(
    spark: SparkSession, metadata_uri: str, options: Mapping[str, str]
) -> Sequence[str]:
    """Register the table functions in a session, and the data source as far as this Spark can.

    Args:
        spark: the session, also one of Spark Connect.
        metadata_uri: the cluster.
        options: other options of the data source.

    Returns:
        the names of the functions.
    """
    names = register_functions(spark, defaults_of(spark, metadata_uri, options))
    try:
        register_source(spark, metadata_uri, **options)
    except MissingRequirementError as error:
        _log.warning("the table functions are registered; %s", error.message)
    return names


def register_functions(spark: SparkSession, options: Mapping[str, str]) -> Sequence[str]:
    """Register the table functions in a session; return their names.

    A function whose view can show single ledgers takes ``ledger`` (an id, or several as
    ``7,9-12``). Each function takes ``uri``, to read another cluster than the session's.

    Args:
        spark: the session, also one of Spark Connect.
        options: options of the data source that name the cluster.
    """
    from pyspark.sql import functions

    takes_tables = hasattr(functions, "arrow_udtf")  # Spark 4.0 only takes rows
    make: Any = functions.arrow_udtf if takes_tables else functions.udtf
    schemas = {**VIEW_SCHEMAS, OF_LOGS: CONSUMERS}
    names = []
    for view, schema in schemas.items():
        made = _function_class(view, dict(options), iter if takes_tables else _rows)
        function = make(made, returnType=spark_schema(schema))
        names.append(f"bk_{view}")
        spark.udtf.register(names[-1], function)
    return names


def _function_class(
    view: str, options: Mapping[str, str], form: Callable[[Iterator[pa.Table]], Iterable[Any]]
) -> type:
    """Return the class of a table function. Spark creates and calls one in a task.

    Args:
        view: the view that the function returns.
        options: options of the data source that name the cluster.
        form: converts tables to what this Spark takes.
    """

    class Rows:
        def eval(self, *given: Any, **named: Any) -> Iterator[Any]:
            yield from form(rows_of_function(view, options, arguments(view, given, named)))

    return Rows


def arguments(view: str, given: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the arguments of a table function, by name.

    Spark's own error for a wrong call would show the signature of our class, and not of the
    function.

    Raises:
        InvalidArgumentError: there are too many, one is not known, or one is null. A null could
            come from a query that finds no id, and must not select all ledgers.
    """
    names = ("log", "uri") if view == OF_LOGS else ("ledger", "uri")
    with told():
        if len(given) > len(names):
            raise InvalidArgumentError(
                f"bk_{view} takes {' and '.join(names)}, and {len(given)} arguments were given"
            )
        found = dict(zip(names, map(_value, given), strict=False))
        for name, value in named.items():
            if name not in names:
                raise InvalidArgumentError(
                    f"bk_{view} takes no argument {name!r}{nearest(name, names)}; it takes "
                    f"{' and '.join(names)}"
                )
            if name in found:
                raise InvalidArgumentError(f"bk_{view} was given {name} twice: once by its place")
            found[name] = _value(value)
        for name, value in found.items():
            if value is None:
                raise InvalidArgumentError(
                    f"bk_{view} was given {name} as NULL; leave it out, or give a value"
                )
    return {name: str(value) for name, value in found.items()}


def rows_of_function(
    view: str, options: Mapping[str, str], found: Mapping[str, str]
) -> Iterator[pa.Table]:
    """Yield the rows of a table function; ``found`` are its arguments."""
    with told():
        given = dict(options)
        ledger, log = found.get("ledger"), found.get("log")
        if ledger is not None:
            if view not in OF_LEDGERS:
                raise InvalidArgumentError(
                    f"bk_{view} takes no ledger, and {ledger!r} was given: it tells of all there "
                    "are. Leave it out, and choose rows with WHERE"
                )
            given |= {"ledgers": ledger, "view": view}
        if "uri" in found:
            given["metadatauri"] = found["uri"]
        parsed = SourceOptions.parse(given)
        context = task_context(parsed.connection())
        if view == OF_LOGS:
            if log is None:
                raise InvalidArgumentError(
                    "bk_consumers takes the name of a log, and none was given: "
                    "SELECT * FROM bk_consumers('orders')"
                )
            tables: Iterator[pa.Table] = iter([consumers_table(context, log)])
        else:
            tables = view_table(context, view, named_ledgers(context, parsed))
        schema = delivered_schema({**VIEW_SCHEMAS, OF_LOGS: CONSUMERS}[view])
        for table in tables:
            for batch in table.to_batches():
                yield pa.Table.from_batches([delivered(batch, schema)])


def _rows(tables: Iterator[pa.Table]) -> Iterator[tuple[Any, ...]]:
    for table in tables:
        maps = {field.name for field in table.schema if pa.types.is_map(field.type)}
        for row in table.to_pylist():
            yield tuple(dict(v) if k in maps and v is not None else v for k, v in row.items())


def _value(argument: Any) -> Any:
    """Return the value of an argument, which Spark may pass as an array of one value."""
    if isinstance(argument, pa.Array | pa.ChunkedArray):
        return argument[0].as_py() if len(argument) else None
    return argument
