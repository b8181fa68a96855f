"""Delta tables without Spark: ledgers, their archive as delta-rs writes it, and their release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from spark_bookkeeper.backup.saving import BackupReport, backup
from spark_bookkeeper.bookie.bookie import LedgerRef, RangeRef
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.marker import read_marker
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.delta.archive import ArchiveReport
from spark_bookkeeper.delta.backup_table import BackupTable
from spark_bookkeeper.delta.release import release_ledgers
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import LocalRunner, Runner
from spark_bookkeeper.runtime.answer import value_of
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.ground import Ground

USUAL: Final = Quorum(3, 3, 2)


def archived_rows(context: ClientContext, ledger_id: LedgerId) -> pa.Table:
    """The rows of a closed ledger behind their places, as ``archive_to_delta`` reads them."""
    ledger, found = context.ledger(ledger_id)
    last = found.value.last_entry_id
    assert last is not None, "only closed ledgers are archived"
    pieces = []
    for rows in Fetcher(context, ledger).scan(EntryId(0), last):
        table = _as_spark_has_it(pa.Table.from_batches([rows.batch]))
        for name, values in (("_row", rows.positions), ("_entry_id", rows.entry_ids)):
            table = table.add_column(0, name, pa.array(values))
        pieces.append(table.add_column(0, "_ledger_id", pa.array([ledger_id] * len(table))))
    return pa.concat_tables(pieces)


def archive(context: ClientContext, path: Path, ledger_ids: Iterable[LedgerId]) -> DeltaTable:
    """A commit for each ledger."""
    for ledger_id in ledger_ids:
        rows = archived_rows(context, ledger_id)
        write_deltalake(str(path), rows, mode="append", schema_mode="merge")
    return DeltaTable(str(path))


def save_in_table(
    context: ClientContext,
    lake: Path | str,
    *wanted: Any,
    runner: Runner | None = None,
    storage_options: dict[str, str] | None = None,
    **options: Any,
) -> BackupReport:
    """Back up to the table at a path, in this process; delta-rs adds the rows.

    Args:
        storage_options: of delta-rs, for a bucket.
    """
    runner = runner or LocalRunner(context)
    job = Job("backup", context, runner)
    table = BackupTable(
        context, job, str(lake), lambda ids: _add(context, str(lake), ids, storage_options)
    )
    return backup(context, runner, str(lake), *wanted, table=table, **options)


def _add(
    context: ClientContext,
    lake: str,
    ledger_ids: Sequence[LedgerId],
    storage_options: dict[str, str] | None,
) -> ArchiveReport:
    """As an archive does it: what is there is not added again, and rows that lack are told."""
    known: Counter[int] = Counter()
    with suppress(TableNotFoundError):
        there = DeltaTable(lake, storage_options=storage_options)
        known.update(there.to_pyarrow_table(columns=["_ledger_id"])["_ledger_id"].to_pylist())
    rows, new = [], []
    cannot: set[LedgerId] = set()
    for ledger_id in ledger_ids:
        try:
            whole = archived_rows(context, ledger_id)
        except (BookKeeperError, pa.ArrowInvalid) as error:
            if isinstance(error, pa.ArrowInvalid):
                cannot.add(ledger_id)
            rows.append(Row(ledger_id, "archive", Outcome.LEFT, str(error)))
            continue
        if known[ledger_id] == 0:
            new.append((ledger_id, whole))
        is_same = known[ledger_id] in (0, len(whole))
        told = None if is_same else f"the table has {known[ledger_id]} rows of it"
        status = Outcome.ARCHIVED if is_same else Outcome.DAMAGED
        rows.append(Row(ledger_id, "archive", status, told))
    refused = _commit(lake, new, storage_options)
    rows = [
        replace(row, status=Outcome.LEFT, reason=refused[LedgerId(row.ledger_id)])
        if row.ledger_id in refused
        else row
        for row in rows
    ]
    return ArchiveReport("archive_to_delta", tuple(rows), refused=cannot | refused.keys())


def _commit(
    lake: str,
    tables: Sequence[tuple[LedgerId, pa.Table]],
    options: dict[str, str] | None,
) -> dict[LedgerId, str]:
    """Together if they fit, else each by itself; why a table does not take some."""
    if not tables:
        return {}
    try:
        whole = pa.concat_tables([table for _, table in tables], promote_options="default")
        write_deltalake(lake, whole, mode="append", schema_mode="merge", storage_options=options)
    except Exception as error:
        if len(tables) == 1:
            return {tables[0][0]: str(error)}
        return {k: v for one in tables for k, v in _commit(lake, [one], options).items()}
    return {}


def _as_spark_has_it(rows: pa.Table) -> pa.Table:
    """Spark has no unsigned types: it takes the next wider ones."""
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    fields = [field.with_type(wider.get(field.type, field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def bytes_ledger(
    ground: Ground, entries: int = 20, quorum: Quorum = USUAL, **options: Any
) -> LedgerId:
    """A closed ledger of bytes."""
    writer = lifecycle.create_ledger(ground.context, quorum, **options)
    for number in range(entries):
        writer.append(b"entry %d " % number * (number % 5 + 1))
    writer.close()
    return writer.ledger_id


def rows_ledger(ground: Ground, table: pa.Table, entries: int = 3, **options: Any) -> LedgerId:
    """A closed ledger in which each entry is this table."""
    writer = lifecycle.create_ledger(ground.context, USUAL, schema=table.schema, **options)
    for _ in range(entries):
        writer.append(table)
    writer.close()
    return writer.ledger_id


def entries_of(context: ClientContext, ledger_id: LedgerId) -> list[tuple[Any, ...]]:
    """All that is known of every entry, bytes and digest among it."""
    ledger, found = context.ledger(ledger_id)
    last = found.value.last_entry_id
    assert last is not None

    def told(entry: StoredEntry) -> tuple[Any, ...]:
        whole = (entry.entry_id, entry.length_after, entry.last_add_confirmed)
        return (*whole, entry.digest, entry.is_payload, bytes(entry.data), entry.appended_at_ms)

    return [told(entry) for entry in Fetcher(context, ledger).fetch(EntryId(0), last)]


def release(
    context: ClientContext, lake: Path, ledger_ids: Sequence[LedgerId], **options: Any
) -> list[Row]:
    """Release ledgers to the table at a path, in this process."""
    runner = LocalRunner(context)
    return list(release_ledgers(context, runner, str(lake), ledger_ids, **options))


def metadata_of(ground: Ground, ledger_id: LedgerId) -> LedgerMetadata:
    """As it is stored now."""
    return ground.client().store.read_ledger(ledger_id).value


def holders(ground: Ground, ledger_id: LedgerId) -> list[str]:
    """Bookies with any entry of the ledger, whether they are up or not."""
    ledger, _ = ground.context.ledger(ledger_id)
    found: list[str] = []
    for bookie in ground.bookie_ids:
        storage = LocalStorage(str(ground.root(bookie)))
        marker = read_marker(storage)
        if marker is None:
            continue
        ref = LedgerRef(ledger.key, marker.incarnation, ledger.encoding)
        (held,) = FileBookie(storage).holdings([RangeRef(ref, 0)])
        if len(value_of(held)):
            found.append(bookie)
    return found
