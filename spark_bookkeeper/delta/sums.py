"""What the rows of each ledger come to: by this a table and the ledgers are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


PLACE_COLUMNS: Final = ("_ledger_id", "_entry_id", "_row")
"""Where a row was: its ledger, its entry there, its number within the entry. They come first,
since Delta keeps the bounds by which it skips files for the first columns only."""


@dataclass(frozen=True, slots=True)
class Sum:
    """What a set of rows comes to: how many they are, and a sum over a hash of each."""

    rows: int
    hashes: int


NO_ROWS: Final = Sum(0, 0)


def sums(frame: DataFrame, kinds: Mapping[str, Any] | None = None) -> dict[int, Sum]:
    """What the rows of each ledger come to.

    A null has no part in it: the table has columns that came later, and are null in the rows of
    the ledgers before.

    Args:
        frame: rows with their places.
        kinds: the types to compare under, by column; of the table, where it has wider ones.
    """
    from pyspark.sql import functions

    values = []
    for field in sorted(frame.schema.fields, key=lambda field: field.name):
        column = frame[f"`{field.name}`"]
        kind = (kinds or {}).get(field.name, field.dataType)
        if kind != field.dataType:
            column = column.cast(kind)
        is_there = frame[f"`{field.name}`"].isNotNull()
        if "map<" in kind.simpleString():  # Spark hashes no maps; and a struct of a null is none
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
