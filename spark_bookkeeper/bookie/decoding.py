"""Decode rows from stored bytes without reading any memory outside them.

Arrow trusts the offsets in a message: an offset that points outside crashes the process or exposes
its memory. A digest detects damage, but no forged message. So every message is validated before its
rows are returned. Only its offsets are checked: text that is not UTF-8, which Spark writes, or a
time of day beyond midnight was acknowledged, and stays readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie.framing import read_columns

_SCHEMAS_KEPT: Final = 256

_Known: TypeAlias = tuple[pa.Schema, pa.Schema, bool]

_physical: dict[int, _Known] = {}
"""By the schema's identity, which is faster than its hash: the schema, kept because its identity is
the key; the physical schema; and whether Arrow can view one's columns as the other's.
"""


def read_batch(
    message: Buffer,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    *,
    is_compressed: bool = False,
) -> pa.RecordBatch:
    """Return the rows of a record batch message, or the given columns in their order.

    Args:
        is_compressed: decoding twice costs more than checking the columns one by one.

    Raises:
        Exception: one of ``framing.UNDECODABLE``; it is no message, or an offset points outside.
    """
    data = pa.py_buffer(message)
    _, physical, has_views = _physical_schema(schema)
    batch = _decoded(data, schema, columns, is_compressed=is_compressed)
    if physical is schema:
        batch.validate(full=True)
    elif is_compressed and has_views:
        batch.validate()
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            column.view(physical.field(name).type).validate(full=True)
    else:
        _decoded(data, physical, columns, is_compressed=is_compressed).validate(full=True)
    return batch


def _decoded(
    data: pa.Buffer, schema: pa.Schema, columns: Sequence[str] | None, *, is_compressed: bool
) -> pa.RecordBatch:
    if is_compressed and columns:
        return read_columns(data, schema, columns)
    batch = pa.ipc.read_record_batch(data, schema)
    return batch if columns is None else batch.select(list(columns))


def _physical_schema(schema: pa.Schema) -> _Known:
    known = _physical.get(id(schema))
    if known is None:
        if len(_physical) >= _SCHEMAS_KEPT:
            _physical.clear()
        physical = pa.schema([_physical_field(field) for field in schema])
        is_same = physical.types == schema.types
        has_views = not any(map(_has_bufferless, schema.types))
        known = _physical[id(schema)] = schema, schema if is_same else physical, has_views
    return known


def _has_bufferless(kind: pa.DataType) -> bool:
    """Whether a type inside it has no buffers: Arrow's view gives such a column a wrong length."""
    if pa.types.is_null(kind) or pa.types.is_run_end_encoded(kind):
        return True
    kind = getattr(kind, "storage_type", kind)
    return any(_has_bufferless(kind.field(i).type) for i in range(kind.num_fields))


def physical_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with the same buffers that restricts their content least."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return physical_type(kind.storage_type)
    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_string_view(kind):
        return pa.binary_view()
    if types.is_decimal(kind):
        return pa.binary(kind.bit_width // 8)
    if types.is_time(kind) or types.is_date(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if types.is_struct(kind):
        return pa.struct([_physical_field(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.list_(pa.struct([_physical_field(f) for f in (kind.key_field, kind.item_field)]))
    if types.is_fixed_size_list(kind):
        return pa.list_(_physical_field(kind.value_field), kind.list_size)
    for is_kind, make in (
        (types.is_list, pa.list_),
        (types.is_large_list, pa.large_list),
        (types.is_list_view, pa.list_view),
        (types.is_large_list_view, pa.large_list_view),
    ):
        if is_kind(kind):
            return make(_physical_field(kind.value_field))
    return kind


def _physical_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, physical_type(field.type))
