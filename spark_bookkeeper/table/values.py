"""A digest of the values of rows, which no version of Arrow can change.

Versions of Arrow may encode the same rows differently: padding, bytes under a null, the layout of
the header. The values of the rows stay the same, so the rows of a table are verified by their
digest.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WIDTH: Final = 16
"""Bytes of a digest."""


def values_digest(batch: pa.RecordBatch) -> bytes:
    """Return BLAKE2b over the number of rows, and each column's name, type and values."""
    into = hashlib.blake2b(digest_size=WIDTH)
    into.update(f"{batch.num_rows}\n".encode())
    for field, column in zip(batch.schema, batch.columns, strict=True):
        into.update(f"{field.name}\n{field.type}\n".encode())
        _add(into, column)
    return into.digest()


def _add(into: Any, array: pa.Array) -> None:
    """Add which values are null; and then the other values, one after the other."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    into.update(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_null(kind):
        return
    there = array.drop_null()
    if pa.types.is_struct(kind):
        for child in there.flatten():
            _add(into, child)
    elif pa.types.is_map(kind):
        _add_list(into, there, pa.list_(pa.struct([kind.key_field, kind.item_field])))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _add_list(into, there, kind)
    elif pa.types.is_fixed_size_list(kind):
        _add(into, there.flatten())
    elif pa.types.is_boolean(kind):
        into.update(np.packbits(there.to_numpy(zero_copy_only=False)).tobytes())
    elif kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        _add_bytes(into, there.cast(pa.large_binary()))
    else:
        _add_fixed(into, there, kind.bit_width // 8)


def _add_list(into: Any, there: pa.Array, kind: pa.DataType) -> None:
    if pa.types.is_map(there.type):
        offsets = there.offsets
        lengths = pc.subtract(offsets.slice(1), offsets.slice(0, len(offsets) - 1))
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        keys = there.keys.slice(first, last - first) if len(there.keys) >= last else there.keys
        items = there.items.slice(first, last - first) if len(there.items) >= last else there.items
        into.update(lengths.cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes())
        _add(into, keys)
        _add(into, items)
        return
    into.update(pc.list_value_length(there).cast(pa.int64()).to_numpy().tobytes())
    _add(into, there.flatten())


def _add_bytes(into: Any, there: pa.Array) -> None:
    into.update(pc.binary_length(there).cast(pa.int64()).to_numpy().tobytes())
    for value in there:
        into.update(value.as_buffer())


def _add_fixed(into: Any, there: pa.Array, width: int) -> None:
    """Add values of a fixed width: their bytes, as Arrow's format lays them out."""
    data = there.buffers()[1]
    if data is not None and len(there):
        into.update(data.slice(there.offset * width, len(there) * width))
