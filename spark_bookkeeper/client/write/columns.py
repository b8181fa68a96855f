"""The columns of a ledger: which ones are allowed, and whether data have the same.

Names and order must be the ledger's. A type may be narrower (an int for a long). Layouts may differ
(large, view and dictionary forms). Nullability may differ too, because the values decide it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pyarrow as pa

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA, has_dictionary, plain_type
from spark_bookkeeper.client.write.layouts import fields_within, in_layout
from spark_bookkeeper.errors import InvalidArgumentError

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_UNSIGNED = {pa.uint8(): 8, pa.uint16(): 16, pa.uint32(): 32, pa.uint64(): 64}
_FLOATS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
"""Bits of whole numbers that each type holds exactly."""


def check_columns(schema: pa.Schema) -> None:
    """Check that a new ledger can have these columns.

    Raises:
        InvalidArgumentError: there is none, so that rows would leave no trace; or two have the same
            name, so that a reader could select neither.
    """
    if not schema.names:
        raise InvalidArgumentError(
            "the schema has no columns, so that an append of rows would store nothing. Give at "
            "least one column, for example with df.select(...); schema=None is one column 'payload "
            "binary'. Nothing was created"
        )
    again = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if again:
        raise InvalidArgumentError(
            f"the schema has several columns of the name {', '.join(map(repr, again))}; in a "
            "ledger every name is there once. Rename them, for example with df.toDF(...). Nothing "
            f"was created. The schema:\n{describe(schema)}"
        )


def check_new_columns(schema: pa.Schema) -> None:
    """Check that a new ledger or log can have these columns, and rows in them.

    Raises:
        InvalidArgumentError: as ``check_columns``; or no row could be appended, because a field
            takes only nulls but allows none, or because the values of a dictionary cannot be taken
            out of it.
    """
    check_columns(schema)
    for field in schema:
        plain = plain_type(field.type)
        if has_dictionary(plain) or not _can_be_plain(field.type):
            raise InvalidArgumentError(
                f"column {field.name!r} is {field.type}. A ledger has the values of dictionaries, "
                "without their encoding, and Arrow cannot take these out, so that no row could be "
                "appended. Give the column a type without dictionaries. Nothing was created"
            )
        if _is_void(field.with_type(plain)):
            raise InvalidArgumentError(
                f"column {field.name!r} is {field.type} and takes no nulls, and nothing else can "
                "be in it, so that no row could be appended. Make what has the type null nullable "
                "(field.with_nullable(True)), and give each union a member. Nothing was created"
            )


def _can_be_plain(kind: pa.DataType) -> bool:
    """Whether Arrow can take the values out of a dictionary encoding; tries it."""
    if not pa.types.is_dictionary(kind):
        return all(_can_be_plain(kind.field(i).type) for i in range(kind.num_fields))
    try:
        in_layout(pa.nulls(0, kind), plain_type(kind))
    except pa.ArrowException:
        return False
    return True


def _is_void(field: pa.Field) -> bool:
    """Whether nothing can be in a field, not even a null."""
    kind = getattr(field.type, "storage_type", field.type)
    inner = [_is_void(each) for each in fields_within(field)]
    if pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return all(inner)
    has_all = pa.types.is_struct(kind) or getattr(kind, "list_size", 0) > 0
    is_void = pa.types.is_null(kind) or (has_all and any(inner))
    return is_void and not field.nullable


def check_schema(found: pa.Schema, schema: pa.Schema) -> None:
    """Raise ``InvalidArgumentError`` unless names and order are the ledger's, and every value has a
    form in its types.

    The values decide about nullability: a nullable column without nulls fits.
    """
    same = found.names == schema.names and all(
        _fits(have.type, want.type) for have, want in zip(found, schema, strict=True)
    )
    if not same:
        raise InvalidArgumentError(
            schema_mismatch(describe(found), schema, _difference(found, schema))
        )


def _fits(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether every value has a form in the ledger's type, and no struct lacks a field."""
    return is_wider(have, want) and _fields(_plain(have)) == _fields(_plain(want))


def _fields(kind: pa.DataType) -> int:
    return sum(1 + _fields(kind.field(i).type) for i in range(kind.num_fields))


def _difference(found: pa.Schema, schema: pa.Schema) -> str:
    """Return the remedy for the first difference from the ledger's columns."""
    missing = [name for name in schema.names if name not in found.names]
    more = [name for name in found.names if name not in schema.names]
    if missing or more:
        told = [f"missing: {', '.join(map(repr, missing))}"] if missing else []
        told += [f"not in the ledger: {', '.join(map(repr, more))}"] if more else []
        return "; ".join(told)
    if found.names != schema.names:
        return f"the order differs; .select({schema.names}) has the ledger's"
    have, want = next(
        (have, want)
        for have, want in zip(found, schema, strict=True)
        if not _fits(have.type, want.type)
    )
    return f"column {want.name!r} is {have.type} and not {want.type}: cast it"


_SHOWN: Final = 8
"""Up to this number of columns, all of them are shown."""

BYTES: Final = "  bytes"
"""Stands for the columns if the data are bytes."""


def schema_mismatch(found: str, schema: pa.Schema, cause: object = None) -> str:
    """Return both schemas, one below the other, for people to compare; and the cause, if known.

    For wide schemas, return only the different columns: the same ones would hide them.
    """
    ours, theirs = describe(schema).split("\n"), found.split("\n")
    same = set(ours) & set(theirs) if max(len(ours), len(theirs)) > _SHOWN else set()
    rest = [f"  and {len(same)} that are the same"] if same else []
    ours, theirs = ([line for line in each if line not in same] + rest for each in (ours, theirs))
    return (
        "the data's columns are not the ledger's (same names, order and types are needed, or types "
        "that the ledger's hold exactly); nothing was appended.\nledger:\n"
        + "\n".join(ours)
        + "\ndata:\n"
        + "\n".join(theirs)
        + (f"\n{cause}" if cause else "")
        + _of_another_kind(found, schema)
    )


def _of_another_kind(found: str, schema: pa.Schema) -> str:
    """Return the remedy for rows in a ledger of bytes, and for bytes in a ledger of rows."""
    if schema == PAYLOAD_SCHEMA:
        return (
            "\nIt was made without a schema, for bytes. Rows go into one that is made for them: "
            "schema=df.schema, of a DataFrame or an Arrow table"
        )
    if found == BYTES:
        return "\nBytes go into a ledger or log that is made without a schema"
    return ""


def describe(schema: pa.Schema) -> str:
    """Return one line for each column."""
    return "\n".join(f"  {f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema)


def is_same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values need no conversion that could change them; layouts may differ."""
    plain = _plain(found)
    return bool(plain == wanted or _plain(wanted) == plain)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without its layout: large, view and dictionary forms are one type."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    if pa.types.is_list_view(kind):
        return pa.list_view(_plain(kind.value_type))
    if pa.types.is_large_list_view(kind):
        return pa.large_list_view(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind


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
        return not complaints(list(old), list(new), "")
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
    """Whether a field of elements is wider; the names of such fields do not matter."""
    return is_wider(old.type, new.type) and (new.nullable or not old.nullable)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def complaints(old: list[pa.Field], new: list[pa.Field], what: str) -> list[str]:
    """Return why fields cannot follow others; nothing if they can."""
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
