"""The columns of a read: those of its ledgers as one schema, as far as they were requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_bookkeeper.client.read.projection import projected
from spark_bookkeeper.client.write.columns import is_wider
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.source.metadata_column import METADATA_COLUMN, METADATA_TYPE
from spark_bookkeeper.source.metadata_tables import VIEW_SCHEMAS
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.source.selection import open_selection
from spark_bookkeeper.spark.schemas import delivered_schema, spark_schema
from spark_bookkeeper.spark.workers import task_context

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def schema_of_read(options: SourceOptions) -> StructType:
    """Return the columns of a read or a stream with these options.

    Raises:
        InvalidArgumentError: the options do not say what to read, or name a missing column.
        NoSuchLedgerError, NoSuchLogError, UnauthorizedError, MetadataUnavailableError.
    """
    if options.view is not None:
        return spark_schema(VIEW_SCHEMAS[options.view])
    options.check_one_thing()
    selection = open_selection(task_context(options.connection()), options)
    return spark_schema(delivered_columns(selection.schema, options))


def delivered_columns(schema: pa.Schema, options: SourceOptions) -> pa.Schema:
    """Return the Arrow schema of the rows for Spark: projected, and with ``_metadata``."""
    wanted = projected(schema, options.columns)
    made = delivered_schema(wanted)
    if options.include_metadata:
        if METADATA_COLUMN in wanted.names:
            raise InvalidArgumentError(
                f"option includeMetadata adds a column {METADATA_COLUMN}, and the rows have one of "
                "that name; leave it out, or choose other columns with option columns"
            )
        made = made.append(pa.field(METADATA_COLUMN, METADATA_TYPE, nullable=False))
    return made


def wanted_columns(schema: pa.Schema, told: pa.Schema, options: SourceOptions) -> pa.Schema:
    """Return the ledgers' columns for the schema that Spark expects; a log may have more by now.

    Raises:
        InvalidArgumentError: the user gave Spark a schema. It has a column that does not exist or
            has another type, or it excludes nulls where the rows may have some.
    """
    names = told.names
    if options.include_metadata:
        if not names or names[-1] != METADATA_COLUMN:
            raise InvalidArgumentError(
                f"the schema that was given names no column {METADATA_COLUMN} as its last, and "
                "includeMetadata adds one there. Leave .schema(...) out: ledgers have their own"
            )
        names = names[:-1]
    if len(set(names)) != len(names):
        raise InvalidArgumentError(
            f"the schema that was given names a column twice: {', '.join(names)}. Leave "
            ".schema(...) out: ledgers have their own"
        )
    wanted = schema if names == schema.names else projected(schema, names)
    _check_types(wanted, told)
    for field, given in zip(wanted, told, strict=False):
        if field.nullable and not given.nullable:
            raise InvalidArgumentError(
                f"column {field.name!r} may be null, and the schema that was given says that none "
                "is. Leave .schema(...) out: ledgers have their own"
            )
    return wanted


def _check_types(wanted: pa.Schema, told: pa.Schema) -> None:
    """Check that Spark expects the columns' types, or narrower or wider ones of an evolved log.

    Arrow's cast would turn numbers into texts, or into booleans.
    """
    try:
        known = delivered_schema(wanted)
    except InvalidArgumentError:  # Spark has no such type: a user's schema chooses one for it
        return
    for field, given in zip(known, told, strict=False):
        if not (is_wider(field.type, given.type) or is_wider(given.type, field.type)):
            raise InvalidArgumentError(
                f"column {field.name!r} is {field.type}, and the schema that was given says "
                f"{given.type}. Leave .schema(...) out: ledgers have their own; cast the column in "
                "the DataFrame"
            )
