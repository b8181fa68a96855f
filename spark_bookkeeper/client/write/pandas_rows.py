"""pandas data as rows of a ledger, where every value stays what it was.

pandas has fewer types than a ledger: no integers with nulls, no dates, often nanoseconds, and
``object`` for the rest. So a column need not have the ledger's type, but every value must have an
exact form in it; Arrow's own conversion is laxer (1.5 becomes 1, a wall clock becomes UTC).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import types

from spark_bookkeeper.client.write.columns import is_same_type, schema_mismatch
from spark_bookkeeper.errors import InvalidArgumentError


def is_pandas(data: Any) -> bool:
    """Whether this is a pandas DataFrame, without importing pandas to ask.

    Its class is asked: a Spark column says that it has whatever it is asked for. A frame of pandas
    on Spark has the same names and none of the rows.
    """
    kind = type(data)
    is_of_spark = kind.__module__.partition(".")[0] == "pyspark"
    return not is_of_spark and all(hasattr(kind, name) for name in ("iloc", "columns", "dtypes"))


def pandas_table(frame: Any, schema: pa.Schema) -> pa.Table:
    """A pandas DataFrame as a table of exactly the ledger's schema; its index is left out.

    NaN, NaT and NA become nulls, as everywhere between pandas and Arrow.

    Raises:
        InvalidArgumentError: other columns or another order, a null where the ledger takes none,
            or values that have no exact form in the ledger's type. The text shows both schemas.
    """
    try:
        _check_labels(frame, schema)
        arrays = [_array(frame.iloc[:, i], field) for i, field in enumerate(schema)]
    except (pa.ArrowException, ValueError, TypeError) as error:
        found = "\n".join(f"  {label}: {kind}" for label, kind in frame.dtypes.items())
        raise InvalidArgumentError(schema_mismatch(found, schema, error)) from error
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
    """A column as the ledger's type. Raises ``ValueError`` or what Arrow raises."""
    try:
        found = pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # no type by itself: pairs of a map, for example
        if not types.is_nested(field.type):
            raise
        made = pa.array(column, field.type, from_pandas=True)
    else:
        if not _is_exact(found.type, field.type):
            raise ValueError(f"column {field.name!r}: {found.type} is not made into {field.type}")
        is_rebuilt = types.is_nested(field.type) and found.type != field.type
        made = (
            pa.array(column, field.type, from_pandas=True)
            if is_rebuilt  # fields by name, in the ledger's order; Arrow's cast wants its own
            else found.cast(field.type)
        )
    if made.null_count and not field.nullable:
        raise ValueError(f"column {field.name!r} takes no nulls, and {made.null_count} are in it")
    return made


def _is_exact(found: pa.DataType, wanted: pa.DataType, is_inside: bool = False) -> bool:
    """Whether Arrow keeps every value as it is when it converts a column, or fails.

    Args:
        is_inside: of a list or struct, whose values Arrow converts without checking fractions.
    """
    if types.is_null(found) or is_same_type(found, wanted):
        return True
    if types.is_dictionary(found):
        return _is_exact(found.value_type, wanted, is_inside)
    if types.is_integer(found):
        numbers = (types.is_integer, types.is_floating, types.is_decimal)
        return any(of(wanted) for of in numbers)
    if types.is_floating(found):  # integers with nulls are floats in pandas
        is_wider = types.is_floating(wanted) and found.bit_width <= wanted.bit_width
        return bool(is_wider or (types.is_integer(wanted) and not is_inside))
    if types.is_timestamp(found):
        is_wall_clock = found.tz is None
        return bool(types.is_timestamp(wanted) and is_wall_clock == (wanted.tz is None))
    if types.is_struct(found) and types.is_struct(wanted):
        names = {field.name for field in wanted}
        return all(
            f.name in names and _is_exact(f.type, wanted.field(f.name).type, True) for f in found
        )
    if types.is_list(found) and (types.is_list(wanted) or types.is_large_list(wanted)):
        return _is_exact(found.value_type, wanted.value_type, True)
    if types.is_binary(found):
        return bool(types.is_fixed_size_binary(wanted))
    alike = (types.is_decimal, types.is_time, types.is_duration, types.is_date)
    return any(of(found) and of(wanted) for of in alike)
