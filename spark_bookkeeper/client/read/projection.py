"""Select columns of a ledger, and reduce rows to these columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from spark_bookkeeper.client.read.evolution import widen
from spark_bookkeeper.errors import InvalidArgumentError


def projected(schema: pa.Schema, columns: Iterable[str] | None) -> pa.Schema:
    """Return these columns of a schema, in the order given; ``None`` returns all.

    Raises:
        InvalidArgumentError: a name fits no column or several, the list is empty, or its items are
            no names.
    """
    if columns is None:
        return schema
    given = [columns] if isinstance(columns, str) else columns
    names = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"columns={columns!r} are not names of columns; a list of texts is, for example "
            f"columns={schema.names[:1]}"
        )
    if not names:
        raise InvalidArgumentError(
            f"no column was named; the columns are {', '.join(schema.names)}, and leaving "
            "columns out reads them all"
        )
    fields = []
    for name in names:
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            found = "there is none of that name" if not places else "several have that name"
            raise InvalidArgumentError(
                f"column {name!r} cannot be read: {found}; the columns are "
                f"{', '.join(schema.names)}"
            )
        fields.append(schema.field(places[0]))
    return pa.schema(fields, metadata=schema.metadata)


def present_in(schema: pa.Schema, wanted: pa.Schema) -> Sequence[str] | None:
    """Return the columns of a projection that a ledger has; ``None`` if these are all, in order."""
    if wanted.names == schema.names:
        return None
    return [name for name in wanted.names if name in schema.names]


def under(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return rows under a projection of their schema, or of a later one of their log.

    Columns that the rows do not have are null; ``evolution.evolved`` checked that the others fit.
    """
    if batch.schema.equals(wanted, check_metadata=False):
        return batch
    names = batch.schema.names
    if names != wanted.names:
        columns = [
            batch.column(names.index(field.name))
            if field.name in names
            else pa.nulls(batch.num_rows, field.type)
            for field in wanted
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=wanted.names)
    return widen(batch, wanted)
