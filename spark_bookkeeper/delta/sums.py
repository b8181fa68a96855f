"""Sums over the rows of each ledger, by which a table and the ledgers are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


PLACE_COLUMNS: Final = ("_ledger_id", "_entry_id", "_row")
"""Where a row was: its ledger, its entry there, its number within the entry. These columns are
first, since Delta keeps the bounds by which it skips files only for the first columns."""


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of a set of rows: their number, and a sum over a hash of each."""

    rows: int
    hashes: int


NO_ROWS: Final = Sum(0, 0)


def sums(frame: DataFrame, kinds: Mapping[str, Any] | None = None) -> dict[int, Sum]:
    """Return the sum of the rows of each ledger.

    A null does not count: columns that the table got later are null in the rows of earlier ledgers.

    Args:
        frame: rows with their places.
        kinds: the types to compare under, by column: those of the table, which may be wider.
    """
    from pyspark.sql import functions

    values = []
    for field in sorted(frame.schema.fields, key=lambda field: field.name):
        column = frame[f"`{field.name}`"]
        kind = (kinds or {}).get(field.name, field.dataType)
        if kind != field.dataType:
            column = column.cast(kind)
        is_there = frame[f"`{field.name}`"].isNotNull()
        if "map<" in kind.simpleString():  # Spark cannot hash maps; a struct of a null is not null
            column = functions.when(
                is_there, functions.to_json(functions.struct(column.alias("v")))
            )
        values += [functions.when(is_there, field.name), column]
    hashed = functions.xxhash64(*values).cast("decimal(38,0)")
    rows = (
        frame.groupBy(PLACE_COLUMNS[0])
        .agg(functions.count("*").alias("rows"), functions.sum(hashed).alias("hashes"))
        .collect()
    )
    return {row[0]: Sum(row.rows, int(row.hashes)) for row in rows}
