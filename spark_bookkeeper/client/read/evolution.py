"""How the columns of a log may change from one ledger to the next, and its rows under one schema.

A column may be added behind the others, if it may be null: rows from before have null there. A
type may become one that holds every value of the old one, exactly. A column without nulls may
come to have some. The same holds within structs, lists and maps. Nothing else: what is there
keeps its name, its place and its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_bookkeeper.client.write.columns import check_new_columns, describe, is_same_type
from spark_bookkeeper.client.write.layouts import in_layout
from spark_bookkeeper.errors import InvalidArgumentError

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_UNSIGNED = {pa.uint8(): 8, pa.uint16(): 16, pa.uint32(): 32, pa.uint64(): 64}
_FLOATS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
"""Bits of a whole number that each holds exactly."""


def evolved(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """The schema ``new``, if a log with the columns ``old`` can go on with it.

    Raises:
        InvalidArgumentError: it cannot; both are shown, and what is amiss. Nothing was changed.
    """
    check_new_columns(new)
    causes = _complaints(list(old), list(new), "column ")
    if causes:
        raise InvalidArgumentError(
            "a log's columns may only be added to (behind the others, nullable) and widened; "
            f"nothing was changed.\nlog:\n{describe(old)}\nwanted:\n{describe(new)}\n"
            + "\n".join(causes)
        )
    return new


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a type holds every value of another one, exactly, or is the same."""
    if is_same_type(old, new):
        return True
    if old in _INTEGERS:
        bits = _INTEGERS[old]
        return bits <= _INTEGERS.get(new, 0) or bits - 1 <= _FLOATS.get(new, 0)
    if old in _UNSIGNED:
        bits = _UNSIGNED[old]
        return (
            bits <= _UNSIGNED.get(new, 0)
            or bits < _INTEGERS.get(new, 0)
            or bits <= _FLOATS.get(new, 0)
        )
    if old in _FLOATS:
        return _FLOATS[old] <= _FLOATS.get(new, 0)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(
            new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
        )
    return _is_wider_within(old, new)


def _is_wider_within(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return not _complaints(list(old), list(new), "")
    if _is_list(old) and _is_list(new):
        return _is_wider_field(old.value_field, new.value_field)
    if pa.types.is_fixed_size_list(old) and pa.types.is_fixed_size_list(new):
        is_same_size = old.list_size == new.list_size
        return is_same_size and _is_wider_field(old.value_field, new.value_field)
    if pa.types.is_map(old) and pa.types.is_map(new):
        is_same_key = is_same_type(old.key_type, new.key_type)
        return is_same_key and _is_wider_field(old.item_field, new.item_field)
    return False


def _is_wider_field(old: pa.Field, new: pa.Field) -> bool:
    """Of elements, whose names say nothing."""
    return is_wider(old.type, new.type) and (new.nullable or not old.nullable)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _complaints(old: list[pa.Field], new: list[pa.Field], what: str) -> list[str]:
    """Why fields cannot follow others; nothing if they can."""
    found: list[str] = []
    for number, before in enumerate(old):
        if number >= len(new) or new[number].name != before.name:
            found.append(f"{what}{before.name!r} must stay, as number {number + 1}")
            break
        after = new[number]
        if not is_wider(before.type, after.type):
            found.append(f"{what}{before.name!r}: not every {before.type} is a {after.type}")
        if before.nullable and not after.nullable:
            found.append(f"{what}{before.name!r} may have nulls in what is there")
    else:
        found += [
            f"{what}{added.name!r} is new and must be nullable: rows from before have null there"
            for added in new[len(old) :]
            if not added.nullable
        ]
    return found


def widen(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of an earlier ledger under the schema of their log; ``evolved`` said that they fit."""
    if batch.schema.equals(schema, check_metadata=False):
        return batch
    columns = [
        in_layout(batch.column(number), field.type)
        if number < batch.num_columns
        else pa.nulls(batch.num_rows, field.type)
        for number, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def widen_all(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """The rows of tables, one after the other, under one schema."""
    return pa.Table.from_batches(
        [widen(batch, schema) for table in tables for batch in table.to_batches()], schema=schema
    )
