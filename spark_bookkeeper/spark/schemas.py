"""Conversion of Spark schemas to Arrow schemas and back, for ledgers with a DataFrame's rows.

A ledger's schema is the one that ``mapInArrow`` delivers, with one difference: Spark labels its
instants (``TimestampType``) with the session's time zone, and a ledger always with ``UTC``. The
instant is the same number of microseconds either way, so nothing is converted, and nothing moves
when sessions have different time zones. ``TimestampNTZType`` has no zone in both.

In the other direction, Spark lacks some Arrow types, and some values of types that it has.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_bookkeeper.client.write.layouts import check_nulls, in_layout
from spark_bookkeeper.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType


SPARK_SCHEMA_KEY: Final = b"spark-bookkeeper.spark-schema"
"""Key in an Arrow schema's metadata: the Spark schema as JSON, where the Arrow types alone do not
determine it (the fields of an interval, for example)."""


def arrow_schema(schema: Any) -> pa.Schema:
    """Convert a Spark or Arrow schema to an Arrow schema.

    ``array()`` and ``map()`` without arguments have elements, keys and values of type void that are
    not nullable, so no such value can exist. In Arrow, and so in a ledger, they are nullable
    instead, and keys are strings.

    Raises:
        InvalidArgumentError: it is neither, or Spark has no Arrow form for a type in it.
    """
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if not isinstance(schema, StructType):
        raise InvalidArgumentError(
            f"schema is of type {type(schema).__qualname__}; give a Spark StructType (df.schema, "
            "StructType.fromDDL(text)), a pyarrow.Schema, or None for one column 'payload binary'"
        )
    try:
        schema = _with_nullable_voids(schema)
        made = _in_arrow(schema)
        if _from_arrow(made) != schema:
            made = made.with_metadata({SPARK_SCHEMA_KEY: schema.json()})
        return made
    except (PySparkException, pa.ArrowException, ValueError) as error:
        raise InvalidArgumentError(
            f"the schema has a type that Spark cannot hand over as Arrow data: "
            f"{_cause(error)}. Cast that column first. The schema:\n{schema.treeString()}"
        ) from error


def _in_arrow(schema: StructType) -> pa.Schema:
    """Convert as Spark does, with timestamps in UTC, which only Spark 4.2 needs as an argument."""
    from pyspark.sql.pandas.types import to_arrow_schema

    wants_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if wants_zone else {}
    return to_arrow_schema(schema, **zone)


def _from_arrow(schema: pa.Schema) -> StructType:
    """Convert as Spark does. Timestamps without a zone stay without one, as in Spark 4.2."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _cause(error: Exception) -> str:
    """Return an error's text as a part of our sentence, without the period at its end."""
    return str(error).rstrip(".")


def _with_nullable_voids(kind: Any) -> Any:
    """Return a Spark type in which all void parts are nullable, and no key is void."""
    from pyspark.sql import types

    def inner(part: DataType, may_be_null: bool) -> tuple[Any, bool]:
        return _with_nullable_voids(part), may_be_null or isinstance(part, types.NullType)

    if isinstance(kind, types.StructType):
        made = [(f.name, *inner(f.dataType, f.nullable), f.metadata) for f in kind.fields]
        return types.StructType([types.StructField(*field) for field in made])
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(*inner(kind.elementType, kind.containsNull))
    if isinstance(kind, types.MapType):
        key, is_void = inner(kind.keyType, False)
        key = types.StringType() if is_void else key
        return types.MapType(key, *inner(kind.valueType, kind.valueContainsNull))
    return kind


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of the rows of a ledger.

    Raises:
        InvalidArgumentError: an Arrow type that Spark does not know; ``read_arrow`` reads it.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    kept = _kept_fields(schema)
    for field in schema:
        if field.name in kept:
            continue
        try:
            _check_decimals(field.type)
            _from_arrow(pa.schema([field]))
        except (PySparkException, ValueError) as error:
            raise InvalidArgumentError(
                f"column {field.name!r} of the ledger is {field.type}, a type that Spark does not "
                f"know: {_cause(error)}. read_arrow() and entries() read it"
            ) from error
    others = iter(_from_arrow(pa.schema([field for field in schema if field.name not in kept])))
    return StructType([kept[name] if name in kept else next(others) for name in schema.names])


def _kept_fields(schema: pa.Schema) -> Mapping[str, StructField]:
    """Return the original Spark fields of columns, by name, as far as the metadata have them.

    The schema may have only some of the original columns, or more, which were added to a log.
    """
    from pyspark.sql.types import StructField, StructType

    text = (schema.metadata or {}).get(SPARK_SCHEMA_KEY)
    found: dict[str, StructField] = {}
    if text is None:
        return found
    # The metadata of a ledger may be damaged. This is only a hint, so an error must not escape.
    with suppress(Exception):
        told = StructType.fromJson(json.loads(text))
        if _in_arrow(told).equals(schema):
            return {field.name: field for field in told}
        fields = {field.name: field for field in told}
        for name in fields.keys() & set(schema.names):
            column = schema.field(name)
            field = fields[name]
            field = StructField(name, field.dataType, column.nullable, field.metadata)
            if _in_arrow(StructType([field])).field(0).equals(column):
                found[name] = field
    return found


def _check_decimals(kind: pa.DataType) -> None:
    """Raise ``ValueError`` for a decimal, at any depth, that Spark does not have."""
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision <= 38:
        raise ValueError("its decimals have 1 to 38 digits, and a scale of 0 to as many")
    if pa.types.is_dictionary(kind):
        _check_decimals(kind.value_type)
    elif pa.types.is_nested(kind):
        for i in range(kind.num_fields):
            _check_decimals(kind.field(i).type)


def delivered_schema(schema: pa.Schema) -> pa.Schema:
    """Return the Arrow schema under which Spark takes the rows of a ledger.

    Large, fixed-size and dictionary layouts, and timestamps with units other than microseconds,
    become one plain form.
    """
    return arrow_schema(spark_schema(schema))


def relabelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert Spark's rows to a ledger's schema: other layout, time zone label or nullability.

    Raises:
        InvalidArgumentError: a value does not fit, for example a null in a column without nulls.
    """

    def refusal(field: pa.Field, _: pa.DataType, error: Exception) -> str:
        return (
            f"the rows do not fit the ledger's schema: column {field.name!r}: {error}; nothing was "
            "appended"
        )

    made = _converted(batch, schema, refusal)
    check_nulls(made.columns, schema)
    return made


def delivered(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a ledger's rows to the schema of ``delivered_schema``, for Spark.

    Raises:
        InvalidArgumentError: Spark's type has no such value; ``read_arrow`` reads it.
    """

    def refusal(field: pa.Field, kind: pa.DataType, error: Exception) -> str:
        return (
            f"column {field.name!r} of the ledger is {kind} and has values that Spark cannot hold "
            f"as {field.type}: {_cause(error)}. Spark knows instants and durations to the "
            "microsecond. read_arrow() and entries() read every value"
        )

    return _converted(batch, schema, refusal)


def _converted(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    refusal: Callable[[pa.Field, pa.DataType, Exception], str],
) -> pa.RecordBatch:
    """Convert rows to the types of a schema; ``refusal`` makes the error text for a column."""
    if batch.schema.equals(schema, check_metadata=False):
        return batch
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(in_layout(column, field.type))
        except (pa.ArrowException, ValueError) as error:
            raise InvalidArgumentError(refusal(field, column.type, error)) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
