"""Arrow columns under a ledger's types: the same values in another layout, and where nulls may be.

Only columns without inner columns use Arrow's own cast. For others it has faults. For slices of
run-end encoded values it forgets the start of the slice, even if the type stays the same. If a type
``null`` is within another one, it loses rows or ends the process. It checks nulls in structs only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from spark_bookkeeper.errors import InvalidArgumentError

_Places: TypeAlias = npt.NDArray[np.int64]


def in_layout(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> Any:
    """Return the values under a type with another layout, time zone label, width or nullability.

    A column that has the type is returned as it is. Lists, structs and maps keep their buffers. A
    struct may get more fields behind its own, which are null then. ``check_nulls`` checks nulls,
    not this function: Spark makes null structs whose fields take no nulls, with nothing in them.

    Raises:
        ValueError, pyarrow.ArrowException: a value has no form in that type.
    """
    found = column.type
    if found == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([in_layout(chunk, kind) for chunk in column.chunks], kind)
    if types.is_dictionary(found) and found.value_type.num_fields:
        return in_layout(column.dictionary.take(column.indices), kind)
    if _is_list(found) and _is_list(kind):
        return _around(column, kind, in_layout(column.values, kind.value_type))
    if types.is_map(found) and types.is_map(kind):
        pair = [kind.key_field, kind.item_field]
        columns = [in_layout(column.keys, kind.key_type), in_layout(column.items, kind.item_type)]
        return _around(column, kind, pa.StructArray.from_arrays(columns, fields=pair))
    if types.is_struct(found) and types.is_struct(kind):
        fields, own = list(kind), found.num_fields
        if found.names != kind.names[:own]:
            raise ValueError(f"{found} has other fields than {kind}")
        columns = [in_layout(column.field(i), fields[i].type) for i in range(own)]
        columns += [pa.nulls(len(column), field.type) for field in fields[own:]]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
    return column.cast(kind)


def _is_list(kind: pa.DataType) -> bool:
    return hasattr(kind, "value_field")


def _around(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map with the same rows around other values; a list may change its kind."""
    found = array.type
    buffers = array.buffers()[: found.num_buffers]
    if found.id != kind.id:
        end = array.offset + len(array) + 1
        if types.is_fixed_size_list(found) or len(array) == 0:  # there may be no offsets
            offsets = pa.array(np.arange(end) * getattr(found, "list_size", 0), pa.int64())
        else:
            width = pa.int64() if types.is_large_list(found) else pa.int32()
            offsets = pa.Array.from_buffers(width, end, [None, buffers[1]])
        width = pa.int64() if types.is_large_list(kind) else pa.int32()
        buffers = [buffers[0], offsets.cast(width).buffers()[1]]
    return pa.Array.from_buffers(
        kind, len(array), buffers, array.null_count, array.offset, children=[child]
    )


def check_nulls(columns: Iterable[pa.Array | pa.ChunkedArray], schema: pa.Schema) -> None:
    """Check that nulls are only where the schema allows them, at any depth.

    Raises:
        InvalidArgumentError: one is elsewhere; shows the path to it.
    """
    for column, field in zip(columns, schema, strict=True):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        for array in chunks if _may_refuse(field) else []:
            for path, count in _nulls(array, field, np.arange(len(array)), field.name):
                raise InvalidArgumentError(
                    f"column {path!r} of the ledger takes no nulls, and {count} are in the rows; "
                    "nothing was appended. Fill them, or leave these rows out"
                )


def _may_refuse(field: pa.Field) -> bool:
    """Whether the field, or one within it, takes no nulls."""
    return not field.nullable or any(map(_may_refuse, fields_within(field)))


def fields_within(field: pa.Field) -> list[pa.Field]:
    """Return the fields of its type; those of unions and runs are nullable only if it is."""
    kind = getattr(field.type, "storage_type", field.type)
    if types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if types.is_run_end_encoded(kind):
        return [kind.field(1).with_nullable(field.nullable)]
    inner = [kind.field(i) for i in range(kind.num_fields)]
    if types.is_union(kind):
        return [member.with_nullable(member.nullable and field.nullable) for member in inner]
    return inner


def _nulls(array: pa.Array, field: pa.Field, at: _Places, path: str) -> Iterator[tuple[str, int]]:
    """Yield the path and count of forbidden nulls, among the values at some positions."""
    # Unions and runs have no nulls of their own, only those of their values.
    if not (types.is_union(field.type) or types.is_run_end_encoded(field.type)):
        there = array.is_valid().to_numpy(zero_copy_only=False)[at]
        if not (field.nullable or there.all()):
            yield path, int(np.count_nonzero(~there))
        at = at[there]
    for i, inner in enumerate(fields_within(field)):
        if _may_refuse(inner):
            child, places = _inside(array, i, at)
            yield from _nulls(child, inner, places, f"{path}.{inner.name}")


def _inside(array: pa.Array, i: int, at: _Places) -> tuple[pa.Array, _Places]:
    """Return a field of a nested column, and the positions there of the values of some rows."""
    array = getattr(array, "storage", array)
    kind = array.type
    if types.is_struct(kind):
        return array.field(i), at
    if types.is_run_end_encoded(kind):
        return array.values, np.searchsorted(array.run_ends, at + array.offset, side="right")
    if types.is_union(kind):  # ``type_codes`` and ``offsets`` of a slice are those of its array
        _, codes, *offsets = array.buffers()[: kind.num_buffers]
        at = at[np.frombuffer(codes, np.int8)[at + array.offset] == kind.type_codes[i]]
        starts = np.frombuffer(offsets[0], np.int32)[at + array.offset] if offsets else at
        return array.field(i), starts
    if types.is_fixed_size_list(kind):
        starts, sizes = (at + array.offset) * kind.list_size, np.full(len(at), kind.list_size)
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
        starts = offsets[at]
        sizes = array.sizes.to_numpy()[at] if hasattr(array, "sizes") else offsets[at + 1] - starts
    child = (array.keys, array.items)[i] if types.is_map(kind) else array.values
    befores = np.cumsum(sizes) - sizes
    return child, np.repeat(starts - befores, sizes) + np.arange(sizes.sum())
