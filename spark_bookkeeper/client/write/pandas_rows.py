"""pandas data as rows of a ledger, without changing any value.

pandas has fewer types than a ledger: no integers with nulls, no dates, often nanoseconds, and
``object`` for the rest. So a column need not have the ledger's type, but every value must have an
exact form in it. Arrow's own conversion is laxer (1.5 becomes 1, a wall clock becomes UTC). So this
module converts Arrow's result back and compares it, except where Arrow's cast checks itself.
"""

from __future__ import annotations

import datetime
import decimal
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from spark_bookkeeper.client.write.columns import is_same_type, schema_mismatch
from spark_bookkeeper.client.write.layouts import check_nulls, in_layout
from spark_bookkeeper.errors import InvalidArgumentError


def is_pandas(data: Any) -> bool:
    """Whether this is a pandas DataFrame, without importing pandas.

    Checks the class, not the object: a Spark column seems to have every attribute. A frame of
    pandas on Spark has the same names and none of the rows.
    """
    kind = type(data)
    is_of_spark = kind.__module__.partition(".")[0] == "pyspark"
    return not is_of_spark and all(hasattr(kind, name) for name in ("iloc", "columns", "dtypes"))


def pandas_table(frame: Any, schema: pa.Schema) -> pa.Table:
    """Return a pandas DataFrame as a table of exactly the ledger's schema, without its index.

    NaN, NaT and NA become nulls, as everywhere between pandas and Arrow.

    Raises:
        InvalidArgumentError: other columns or another order, a null where the ledger takes none, or
            values that have no exact form in the ledger's type. The text shows both schemas.
    """
    try:
        _check_labels(frame, schema)
        arrays = [_array(frame.iloc[:, i], field) for i, field in enumerate(schema)]
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        found = "\n".join(f"  {label}: {kind}" for label, kind in frame.dtypes.items())
        raise InvalidArgumentError(schema_mismatch(found, schema, error)) from error
    check_nulls(arrays, schema)
    return pa.Table.from_arrays(arrays, schema=schema)


def _check_labels(frame: Any, schema: pa.Schema) -> None:
    labels = list(frame.columns)
    if labels == schema.names:
        return
    missing = [name for name in schema.names if name not in labels]
    kept = [name for name in missing if name in frame.index.names]
    if kept:
        raise ValueError(f"{kept[0]!r} is in the index, which is left out; reset_index() first")
    if sorted(map(str, labels)) == sorted(schema.names) and not missing:
        raise ValueError(f"the order differs; df[{schema.names}] has the ledger's")
    raise ValueError(f"the labels of the columns are {labels}, the ledger's {schema.names}")


def _array(column: Any, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """Return a column as the ledger's type. Raises ``ValueError`` or what Arrow raises."""
    from spark_bookkeeper.client.write.pandas_values import first_changed

    kind = field.type
    found = _typed(column)
    if found is not None and _is_checked_by_arrow(found.type, kind):
        with suppress(pa.ArrowInvalid):  # fails if one value has no exact form; others may have
            return in_layout(found, kind)
    given = list(column)
    made = pa.array(given, kind, from_pandas=True)
    for start in range(0, len(given), _ROWS_COMPARED):
        read = made[start : start + _ROWS_COMPARED].to_pylist()
        found_at = first_changed(given[start : start + _ROWS_COMPARED], read)
        if found_at is not None:
            row = start + found_at
            raise ValueError(
                f"column {field.name!r}: {given[row]!r} in row {row} is not made into {kind}, "
                f"where it would be {read[found_at]!r}; convert it before"
            )
    return made


_ROWS_COMPARED: Final = 1000
"""Rows compared at a time: a Python value takes many times the memory of Arrow's."""

_ALONE: Final = frozenset((str, bytes, bool, datetime.date, decimal.Decimal))
"""Python types that Arrow converts to one type of its own, if a column has no other type."""


def _typed(column: Any) -> pa.Array | pa.ChunkedArray | None:
    """Return a column with values of one type as Arrow data; ``None`` for any objects.

    Categories and sparse columns may hold objects, too.
    """
    if column.dtype != object and (
        isinstance(column.dtype, np.dtype)
        or hasattr(column.dtype, "tz")  # instants
        or hasattr(column.array, "__arrow_array__")
    ):
        return pa.array(column, from_pandas=True)
    objects = column.to_numpy(dtype=object)
    kinds = set(map(type, objects))
    if len(kinds) > 1:
        kinds = set(map(type, column.dropna().to_numpy(dtype=object)))
    is_alone = len(kinds) == 1 and kinds <= _ALONE
    if kinds == {np.ndarray}:  # as vectors are
        dtypes = {each.dtype for each in objects if isinstance(each, np.ndarray)}
        is_alone = len(dtypes) == 1 and dtypes.pop().kind in "biufmM"
    if is_alone:
        with suppress(pa.ArrowException):
            return pa.array(objects, from_pandas=True)
    return None


def _is_checked_by_arrow(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast of a column keeps every value as it is, or fails."""
    if is_same_type(found, wanted):
        return True
    is_float = types.is_float32(wanted) or types.is_float64(wanted)
    if types.is_integer(found):
        return bool(is_float or types.is_integer(wanted) or types.is_decimal(wanted))
    if types.is_float32(found) or types.is_float64(found):  # integers with nulls, in pandas
        is_wider = is_float and found.bit_width <= wanted.bit_width
        return bool(is_wider or types.is_integer(wanted))
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    alike = (types.is_decimal, types.is_duration)
    return any(of(found) and of(wanted) for of in alike)
