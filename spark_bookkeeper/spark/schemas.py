"""Spark schemas as Arrow schemas and back: what a ledger of a DataFrame's rows looks like.

A ledger's schema is what ``mapInArrow`` delivers, with one difference: Spark labels its instants
(``TimestampType``) with the session's time zone, and a ledger always with ``UTC``. The instant
is the same number of microseconds either way, so nothing is converted and nothing moves when
sessions have different time zones. ``TimestampNTZType`` has no zone, here as there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_bookkeeper.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


SPARK_SCHEMA_KEY: Final = b"spark-bookkeeper.spark-schema"
"""In an Arrow schema: the Spark schema as JSON, where the Arrow types alone do not say it all
(the fields of an interval, for example)."""


def arrow_schema(schema: Any) -> pa.Schema:
    """A Spark or Arrow schema as an Arrow schema.

    Raises:
        InvalidArgumentError: it is neither, or Spark has no Arrow form for a type in it.
    """
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

    if not isinstance(schema, StructType):
        raise InvalidArgumentError(
            f"schema is a {type(schema).__module__}.{type(schema).__qualname__}; give a Spark "
            "StructType (df.schema), a pyarrow.Schema, or None for one column 'payload binary'"
        )
    try:
        made = to_arrow_schema(schema, timezone="UTC")
        if from_arrow_schema(made) != schema:
            made = made.with_metadata({SPARK_SCHEMA_KEY: schema.json()})
        return made
    except PySparkException as error:
        raise InvalidArgumentError(
            f"the schema has a type that Spark cannot hand over as Arrow data: {error}. Cast that "
            f"column first. The schema:\n{schema.treeString()}"
        ) from error


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of the rows of a ledger.

    Raises:
        InvalidArgumentError: an Arrow type that Spark does not know; ``read_arrow`` reads it.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

    text = (schema.metadata or {}).get(SPARK_SCHEMA_KEY)
    if text is not None:
        kept = StructType.fromJson(json.loads(text))
        if to_arrow_schema(kept, timezone="UTC").equals(schema):
            return kept
    try:
        return from_arrow_schema(schema)
    except PySparkException as error:
        raise InvalidArgumentError(
            f"the ledger has a column of a type that Spark does not know: {error}. read_arrow() "
            "and entries() read it"
        ) from error


def delivered_schema(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema under which Spark takes rows of a ledger of this schema.

    Large, fixed-size and dictionary layouts, and timestamps of other units than microseconds,
    have one plain form there.
    """
    return arrow_schema(spark_schema(schema))


def relabelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows under a schema that differs in layout, time zone label or nullability.

    Raises:
        InvalidArgumentError: a value does not fit, for example a null in a column without nulls.
    """
    if batch.schema.equals(schema, check_metadata=False):
        return batch
    try:
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        made = pa.RecordBatch.from_arrays(columns, schema=schema)
        for column, field in zip(columns, schema, strict=True):
            if not field.nullable and column.null_count:
                raise InvalidArgumentError(
                    f"column {field.name!r} of the ledger takes no nulls, and the rows have some; "
                    "nothing was appended"
                )
    except (pa.ArrowException, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            f"the rows do not fit the ledger's schema: {error}; nothing was appended"
        ) from error
    return made
