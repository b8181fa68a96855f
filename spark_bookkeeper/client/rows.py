"""Rows at the door of a ledger: are they of its schema, and how do they become entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

if TYPE_CHECKING:
    from spark_bookkeeper.client.adds import SlotAck

ACKS_SCHEMA = pa.schema(
    [
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("waited_ms", pa.float64()),
        pa.field("acknowledged", pa.bool_(), nullable=False),
    ]
)


def to_table(data: Any, schema: pa.Schema) -> pa.Table:
    """Arrow or pandas data as a table of exactly the ledger's schema.

    Raises:
        InvalidArgumentError: other data, or another schema; both are shown.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not isinstance(data, pa.Table):
        if not hasattr(data, "iloc"):  # a pandas frame, without importing pandas for the test
            raise InvalidArgumentError(
                "append takes bytes, a Spark DataFrame, a pyarrow Table or RecordBatch or a "
                f"pandas DataFrame, not {type(data).__module__}.{type(data).__qualname__}"
            )
        try:
            return pa.Table.from_pandas(data, schema=schema, preserve_index=False)
        except (KeyError, pa.ArrowException) as error:
            found = pa.Schema.from_pandas(data, preserve_index=False)
            raise InvalidArgumentError(f"{schema_mismatch(found, schema)}\n{error}") from error
    check_schema(data.schema, schema)
    try:
        return data.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgumentError(f"{schema_mismatch(data.schema, schema)}\n{error}") from error


def check_schema(found: pa.Schema, schema: pa.Schema) -> None:
    """Raises ``InvalidArgumentError`` unless names, order and types are the ledger's.

    Nullability is judged by the values: a nullable column without nulls fits.
    """
    same = found.names == schema.names and all(
        _same_type(have.type, want.type) for have, want in zip(found, schema, strict=True)
    )
    if not same:
        raise InvalidArgumentError(schema_mismatch(found, schema))


def schema_mismatch(found: pa.Schema | str, schema: pa.Schema) -> str:
    """Both schemas, one below the other, for a person to compare."""
    return (
        "the data's columns are not the ledger's (same names, order and types are needed); nothing "
        f"was appended.\nledger:\n{_describe(schema)}\ndata:\n{_describe(found)}"
    )


def entry_batches(table: pa.Table, target_bytes: int) -> list[pa.RecordBatch]:
    """Cut a table into entries of about ``target_bytes``; none for a table without rows."""
    if table.num_rows == 0:
        return []
    count = max(1, min(table.num_rows, round(table.nbytes / target_bytes)))
    return list(split_evenly(table, count))


def split_evenly(table: pa.Table, count: int) -> Iterator[pa.RecordBatch]:
    """``count`` batches of as equal numbers of rows as can be, in order; some may be empty."""
    start = 0
    for index in range(count):
        stop = (table.num_rows * (index + 1)) // count
        yield one_batch(table.slice(start, stop - start))
        start = stop


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table as a single record batch."""
    if table.num_rows == 0:
        return pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in table.schema], schema=table.schema
        )
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table.combine_chunks().to_batches()[0]


def acks_table(
    slots: Sequence[SlotAck],
    metadata: LedgerMetadata,
    confirmed: EntryId,
    pushed: EntryId,
) -> pa.Table:
    """Who stored which entry, from the slots that a writer remembers."""
    quorum = metadata.quorum
    stored: dict[tuple[int, str], float] = {}
    for slot in slots:
        for entry_id in range(slot.first, slot.last + 1):
            if quorum.holds(slot.position, EntryId(entry_id)):
                stored[entry_id, slot.bookie] = slot.waited_ms
    first = min((slot.first for slot in slots), default=EntryId(0))
    found = []
    for entry_id in range(first, pushed + 1):
        ensemble = metadata.fragment_of(EntryId(entry_id)).ensemble
        for position in quorum.write_set(EntryId(entry_id)):
            waited_ms = stored.get((entry_id, ensemble[position]))
            status = "pending" if waited_ms is None else "stored"
            found.append(
                {
                    "entry_id": entry_id,
                    "bookie_id": ensemble[position],
                    "position": position,
                    "status": status,
                    "waited_ms": waited_ms,
                    "acknowledged": entry_id <= confirmed,
                }
            )
    return pa.Table.from_pylist(found, schema=ACKS_SCHEMA)


def _describe(schema: pa.Schema | str) -> str:
    if isinstance(schema, str):
        return f"  {schema}"
    return "\n".join(f"  {f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema)


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values need no conversion that could change them; layouts may differ."""
    plain = _plain(found)
    return bool(plain == wanted or _plain(wanted) == plain)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without the choice of layout: large, view and dictionary forms are one type."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind
