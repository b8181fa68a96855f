"""Rebuilds entries from a table's rows, and compares them with the bookies' copies, byte by byte.

A difference in bytes goes into the list of entries. A task that has compared a whole ledger stores
the list below the table itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.delta.pieces import Piece
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.replication.runner import Bounds, Failure, Step
from spark_bookkeeper.table.listing import encode_listing, patch_of, to_table
from spark_bookkeeper.table.neighbours import together
from spark_bookkeeper.table.rows import CannotRebuildError, LedgerRows, batches_of
from spark_bookkeeper.table.snapshot import TableFiles
from spark_bookkeeper.table.table_bookie import TableBookie, rebuilt_bytes
from spark_bookkeeper.table.values import values_digest


class _DiffersError(Exception):
    """The table differs from the ledger; the message says how."""


@dataclass(frozen=True, slots=True)
class CompareWork(Piece):
    """Rebuild entries from the table's rows, and compare them with the bookies' copies."""

    files: TableFiles
    """The files that may have rows of the ledger."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The result for a piece."""

    ledger_id: LedgerId
    first: EntryId
    bytes: int = 0
    """Number of bytes that were compared."""
    length_after: int = 0
    """Bytes in the ledger up to the last entry of the piece."""
    listed: pa.Buffer | None = None
    """The piece's part of the list, an Arrow stream of ``LISTING``."""
    index: str | None = None
    """Instead of ``listed``, for a piece that is a whole ledger: the digest of the stored list."""
    reason: str | None = None
    """Why the table cannot stand for copies of this ledger; the other fields are then empty."""
    is_certain: bool = False
    """Whether the reason is a difference in the table, and not a failed comparison."""


def compare(context: ClientContext, work: CompareWork) -> Sequence[Compared]:
    """Compare one piece of a ledger."""
    ledger, table = work.ledger, work.open_table(context)
    listed: list[Mapping[str, Any]] = []
    try:
        for start, end in work.windows():
            rows = table.rows.read(
                ledger.ledger_id, ledger.schema, work.files, start, end, is_exact=True
            )
            listed += _lines(ledger, _from_bookies(context, ledger, start, end), rows, start)
    except (CannotRebuildError, _DiffersError) as error:
        return [Compared(work.ledger_id, work.first, reason=str(error), is_certain=True)]
    return [_compared(table, work, listed)]


def compare_many(
    context: ClientContext, works: Sequence[CompareWork], _: Bounds
) -> Sequence[Sequence[Compared] | None]:
    """Compare small ledgers, whose rows are read from the table in batches. ``None`` for all other
    works, and for each that failed: ``compare`` then finds the reason.
    """
    done: list[Sequence[Compared] | None] = [None] * len(works)
    for some in together(works):
        table = some[0][1].open_table(context)
        wanted = [LedgerRows(w.ledger_id, w.ledger.schema, w.files) for _, w in some]
        try:
            found = table.rows.read_many(wanted, is_exact=True)
        except BookKeeperError:
            continue

        def one(each: tuple[tuple[int, CompareWork], pa.Table], table: TableBookie = table) -> None:
            (number, work), rows = each
            # After an error, ``compare`` finds the reason for this piece.
            with suppress(BookKeeperError, CannotRebuildError, _DiffersError):
                entries = _from_bookies(context, work.ledger, work.first, work.last)
                lines = _lines(work.ledger, entries, rows, work.first)
                done[number] = [_compared(table, work, list(lines))]

        context.runtime.map(one, list(zip(some, found, strict=True)))
    return done


def not_compared(work: CompareWork, failure: Failure) -> Compared:
    return Compared(work.ledger_id, work.first, reason=failure.reason)


COMPARING: Final = Step(
    "comparing with the table",
    compare,
    not_compared,
    do_many=compare_many,
    shares_with_neighbours=True,
)


def _compared(
    table: TableBookie, work: CompareWork, lines: Sequence[Mapping[str, Any]]
) -> Compared:
    whole = to_table(lines)
    size, length = sum(line["size"] for line in lines), lines[-1]["length_after"]
    key = work.ledger.key
    if work.is_whole:
        index = table.put_listing(key, encode_listing(key, work.files, [whole]))
        return Compared(work.ledger_id, work.first, size, length, index=index)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    return Compared(work.ledger_id, work.first, size, length, listed=sink.getvalue())


def put_list(table: TableBookie, work: CompareWork, pieces: Iterable[Compared]) -> str:
    """Store the list of a ledger that was compared in pieces; return its digest.

    Args:
        work: any piece of the ledger.
        pieces: the results of all pieces, in order.
    """
    parts = (pa.ipc.open_stream(piece.listed).read_all() for piece in pieces)
    key = work.ledger.key
    return table.put_listing(key, encode_listing(key, work.files, parts))


def _from_bookies(
    context: ClientContext, ledger: Ledger, first: EntryId, last: EntryId
) -> Iterator[StoredEntry]:
    """Yield entries from bookies if any has them; a table would be compared with itself."""
    yield from Fetcher(context, ledger).fetch(first, last)


def _lines(
    ledger: Ledger, originals: Iterable[StoredEntry], rows: pa.Table, first: EntryId
) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of entries in the list.

    Args:
        originals: the entries from ``first`` on, in order.
        rows: all rows of these entries in the table, by place.

    Raises:
        CannotRebuildError, _DiffersError: the table has other rows.
    """
    read = list(originals)
    ids = [entry.entry_id for entry in read]
    assert ids == list(range(first, first + len(ids))), "entries are read in order"
    made = batches_of(rows, ledger.schema, ids)
    for original, (_, batch) in zip(read, made, strict=True):
        yield _line(ledger, original, batch)


def _line(ledger: Ledger, original: StoredEntry, batch: pa.RecordBatch) -> Mapping[str, Any]:
    """Return the line of one entry. Raises ``_DiffersError`` if the table has other rows."""
    rows = original.batch()
    values = values_digest(rows)
    if rows.num_rows != batch.num_rows:
        raise _DiffersError(
            f"the table has {batch.num_rows} rows of entry {original.entry_id}, which has "
            f"{rows.num_rows}"
        )
    if values != values_digest(batch):
        raise _DiffersError(
            f"entry {original.entry_id} is not the same in the table: {_difference(rows, batch)}"
        )
    made = rebuilt_bytes(batch, ledger.encoding, is_payload=original.is_payload)
    return {
        "entry_id": original.entry_id,
        "length_after": original.length_after,
        "last_add_confirmed": original.last_add_confirmed,
        "appended_at_ms": original.appended_at_ms,
        "size": original.size_bytes,
        "rows": rows.num_rows,
        "is_payload": original.is_payload,
        "digest": original.digest,
        "values": values,
        "patch": patch_of(made, bytes(original.data)),
    }


def _difference(rows: pa.RecordBatch, batch: pa.RecordBatch) -> str:
    for field in rows.schema:
        one, other = rows.select([field.name]), batch.select([field.name])
        if values_digest(one) != values_digest(other):
            return f"column {field.name!r} ({field.type}) has other values there"
    return "its rows differ"
