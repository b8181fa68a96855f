"""How the entries of one ledger are encoded: its schema, digests and compression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.bookie.digest import Digester
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.arguments import check_password
from spark_bookkeeper.protocol.metadata import DigestType

PAYLOAD_SCHEMA: Final = pa.schema([pa.field("payload", pa.binary())])
"""The schema of a ledger that was created without one."""


@dataclass(frozen=True, slots=True)
class LedgerEncoding:
    """Schema, digests and compression of one ledger. Frozen, picklable, the same everywhere.

    Raises:
        InvalidArgumentError: a compression other than ``None``, ``"lz4"``, ``"zstd"``, or a
            password that is not ``bytes``.
    """

    schema: pa.Schema = PAYLOAD_SCHEMA
    """The columns of the rows. Dictionary-encoded types are replaced by plain ones."""

    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    compression: str | None = None
    """``None``, ``"lz4"`` or ``"zstd"``."""

    def __post_init__(self) -> None:
        check_password(self.password)
        if self.compression not in (None, "lz4", "zstd"):
            raise InvalidArgumentError(
                f"compression {self.compression!r} is unknown; use None, 'lz4' or 'zstd'"
            )
        if self.schema is PAYLOAD_SCHEMA:
            return
        schema = plain_schema(self.schema)
        if schema.equals(PAYLOAD_SCHEMA, check_metadata=True):
            schema = PAYLOAD_SCHEMA  # comparing by identity is faster
        object.__setattr__(self, "schema", schema)

    def digester(self) -> Digester:
        """Return the digester of this ledger."""
        return Digester(self.digest_type, self.password)

    @property
    def has_payload(self) -> bool:
        """Whether entries may be plain bytes (for the default schema)."""
        schema = self.schema
        return schema is PAYLOAD_SCHEMA or bool(schema.equals(PAYLOAD_SCHEMA, check_metadata=False))

    @property
    def write_options(self) -> pa.ipc.IpcWriteOptions:
        """The options with which Arrow writes a batch of this ledger."""
        return pa.ipc.IpcWriteOptions(compression=self.compression)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without dictionary encoding, as each entry must be readable alone."""
    return pa.schema(
        [field.with_type(plain_type(field.type)) for field in schema], metadata=schema.metadata
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without dictionary encoding, except inside unions, runs and list views."""
    if not has_dictionary(kind):
        return kind
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    fields = [
        kind.field(i).with_type(plain_type(kind.field(i).type)) for i in range(kind.num_fields)
    ]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(plain_type(kind.key_type)),
            kind.item_field.with_type(plain_type(kind.item_type)),
            keys_sorted=kind.keys_sorted,
        )
    if pa.types.is_large_list(kind):
        return pa.large_list(fields[0])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(fields[0])
    return kind


def has_dictionary(kind: Any) -> bool:
    """Whether any part of a type is dictionary-encoded, at any depth."""
    kind = getattr(kind, "storage_type", kind)
    inner = (kind.field(i).type for i in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(map(has_dictionary, inner))
