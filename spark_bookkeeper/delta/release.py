"""Giving back the bookies' space of archived ledgers: the table stands for copies from then on.

In this order, and each step only when the one before it is certain:

1. Every entry is made again of the table's rows, and compared with what bookies have, byte for
   byte; how both differ, if at all, goes into the list of entries.
2. The list is put beside the table, and every entry is read back by it, as readers will.
3. Copies that are to be kept are verified where they are.
4. One compare-and-swap of the ledger's metadata puts the table where bookies leave, and names
   these as about to drop what they hold.
5. They drop it, and a second compare-and-swap says so.

Whoever repeats it begins with what the metadata say, so that it may be killed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.bookies.known_bookies import TABLE_ROOT
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, incarnations_of, with_incarnations
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.cluster.collection import withdraw
from spark_bookkeeper.delta.archive import ArchiveReport
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CookieMismatchError,
    InvalidArgumentError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.archive import (
    Archived,
    archived_of,
    copies_kept,
    dropped,
    leaving,
    released,
    table_member,
)
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, is_table
from spark_bookkeeper.replication.check_ledgers import CheckWork, Finding, check_one
from spark_bookkeeper.replication.report import Outcome, Row, report_rows
from spark_bookkeeper.replication.runner import Failure, Progress, Runner, Step, no_progress
from spark_bookkeeper.table.listing import ENTRIES, encode_listing, patch_of, to_table
from spark_bookkeeper.table.rows import CannotRebuildError, batches_of
from spark_bookkeeper.table.snapshot import TableFiles
from spark_bookkeeper.table.table_bookie import TableBookie, rebuilt_bytes
from spark_bookkeeper.table.values import values_digest

PIECE_BYTES: Final = 128 << 20
"""About how much of a ledger one task compares; no more entries than one batch of the list."""

WINDOW_BYTES: Final = 32 << 20
"""And about how much of it is in memory at once."""

_ACTION: Final = "release"


class _RefusedError(Exception):
    """Nothing was released; the message says why."""


def release_ledgers(
    context: ClientContext,
    runner: Runner,
    table: str,
    ledger_ids: Iterable[LedgerId],
    *,
    keep: int = 1,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Iterator[Row]:
    """Have bookies drop copies of closed ledgers whose rows are in a table; one row for each.

    Args:
        table: URI of the Delta table, as bookies' roots are given: a path, ``s3://...``.
        keep: copies of every entry that stay on bookies, at the least; 0 is none.
        dry_run: only say which bookies would drop how much.

    Raises:
        InvalidArgumentError: ``keep`` is below 0, or no storage is at the URI.
    """
    check_release(context, table, keep)
    for ledger_id in ledger_ids:
        try:
            one = _Release(context, runner, table, ledger_id, keep, progress)
            row = one.run(dry_run=dry_run)
        except NoSuchLedgerError as error:
            row = Row(ledger_id, _ACTION, Outcome.GONE, error.message)
        except BookKeeperError as error:
            row = Row(ledger_id, _ACTION, Outcome.LEFT, error.message, target=table)
        except _RefusedError as error:
            row = Row(ledger_id, _ACTION, Outcome.LEFT, str(error), target=table)
        yield row


def check_release(context: ClientContext, table: str, keep: int) -> None:
    """Raises ``InvalidArgumentError``: a number or a table to which nothing can be released."""
    whole_number("keep", keep, 0)
    table_of(context, table_member(table, 0), table)


def release_archived(
    context: ClientContext,
    runner: Runner,
    table: str,
    report: ArchiveReport,
    keep: int,
    *,
    progress: Progress = no_progress,
) -> ArchiveReport:
    """Release what a run of the archive found, or put, in the table; rows behind those it has."""
    wanted = (Outcome.ARCHIVED, Outcome.PLANNED)
    ledger_ids = [LedgerId(row.ledger_id) for row in report.rows if row.status in wanted]
    started = context.runtime.now()
    rows = report_rows(
        chain(
            report.rows,
            release_ledgers(
                context,
                runner,
                table,
                ledger_ids,
                keep=keep,
                dry_run=report.dry_run,
                progress=progress,
            ),
        )
    )
    took_ms = round((context.runtime.now() - started) * 1000)
    return replace(report, rows=rows, duration_ms=report.duration_ms + took_ms)


def table_of(context: ClientContext, member: BookieId, table: str) -> TableBookie:
    """The table as readers meet it.

    Raises:
        InvalidArgumentError: no storage is there.
    """
    context.bookies.learn({member: TABLE_ROOT + table})
    try:
        bookie = context.bookies.bookie(member)
    except BookieUnavailableError as error:
        raise InvalidArgumentError(
            f"the table {table!r} cannot be opened as storage: {error.message}. Copies are "
            "released only to a table that readers find by a path or URI"
        ) from error
    assert isinstance(bookie, TableBookie), "its root says that it is a table"
    return bookie


class _Release:
    """One ledger."""

    def __init__(
        self,
        context: ClientContext,
        runner: Runner,
        table: str,
        ledger_id: LedgerId,
        keep: int,
        progress: Progress,
    ) -> None:
        self._context = context
        self._runner = runner
        self._table = table
        self._keep = keep
        self._progress = progress
        self._ledger, self._known = context.ledger(ledger_id)
        self._member = table_member(table, 0)

    def run(self, *, dry_run: bool) -> Row:
        metadata = self._ledger.metadata
        last = metadata.last_entry_id
        if last is None:
            reason = "not closed: only a ledger that cannot change any more is released"
            return self._row(Outcome.PENDING, reason)
        archived = archived_of(metadata)
        if last == NO_ENTRY:
            return self._row(Outcome.RELEASED, "it has no entries, and so no copies")
        leave = leaving(metadata, self._keep)
        # One that was released to another table is compared with this one, which takes its place.
        if not leave and (archived is None or archived.table == self._table):
            if archived is None:
                return self._row(
                    Outcome.NO_LONGER_NEEDED,
                    f"{self._keep} copies are to be kept, and it has no more",
                )
            if not dry_run:
                self._verify_whole()
            return self._drop(dry_run=dry_run)
        if dry_run:
            return self._row(Outcome.PLANNED, f"{', '.join(sorted(leave))} would drop its copies")
        index, files = self._listed(last)
        self._verify_kept(leave)
        self._publish(leave, index, files.version, archived)
        return self._drop(dry_run=False)

    def _row(self, status: Outcome, reason: str | None) -> Row:
        metadata = self._ledger.metadata
        last = metadata.last_entry_id
        return Row(
            self._ledger.ledger_id,
            _ACTION,
            status,
            reason,
            0,
            last,
            None,
            self._table,
            0 if last is None else last + 1,
            metadata.length_bytes or 0,
        )

    # Proof

    def _listed(self, last: EntryId) -> tuple[str, TableFiles]:
        """Compare, put the list, and read everything back by it."""
        table = table_of(self._context, self._member, self._table)
        files = table.rows.files_of(self._ledger.ledger_id)
        if not files.paths:
            raise _RefusedError(f"the table at {self._table} has no rows of it; archive it first")
        ranges = list(_pieces(self._ledger.metadata, last))
        works = [
            _CompareWork(self._ledger, self._table, files, first, end) for first, end in ranges
        ]
        step = Step("comparing with the table", _compare, _not_compared)
        found = {piece.first: piece for piece in self._runner.run(step, works, self._progress)}
        pieces = [found[first] for first, _ in ranges]
        if bad := next((piece.reason for piece in pieces if piece.reason is not None), None):
            raise _RefusedError(bad)
        tables = (pa.ipc.open_stream(piece.listed).read_all() for piece in pieces)
        key = self._ledger.key
        index = table.put_listing(key, encode_listing(key, files, tables))
        readings = [
            _ReadBackWork(self._ledger, self._table, index, first, end) for first, end in ranges
        ]
        step_back = Step("reading it back from the table", _read_back, _not_read_back)
        for read in self._runner.run(step_back, readings, self._progress):
            if read.reason is not None:
                raise _RefusedError(read.reason)
        return index, files

    def _verify_kept(self, leave: set[BookieId]) -> None:
        """Copies that are to stay are whole: what is dropped cannot be copied any more."""
        metadata = self._ledger.metadata
        works = [
            CheckWork(
                self._ledger.ledger_id,
                100,
                (fragment.first_entry_id, bookie),
                nonce=metadata.nonce,
            )
            for fragment in metadata.fragment_ranges()
            for bookie in fragment.ensemble
            if bookie not in leave and not is_table(bookie)
        ]
        step = Step("verifying copies that stay", check_one, _not_checked)
        for found in self._runner.run(step, works, self._progress):
            if found.status is not Outcome.HEALTHY:
                raise _RefusedError(
                    f"{self._keep} copies are to be kept, and one of them is "
                    f"{found.status} on {found.source}: {found.reason}. Nothing was released"
                )

    def _verify_whole(self) -> None:
        """Whoever goes on after another was killed looks again: these may be the last copies."""
        work = CheckWork(self._ledger.ledger_id, 100, nonce=self._ledger.metadata.nonce)
        step = Step("verifying what stays", check_one, _not_checked)
        for found in self._runner.run(step, [work], self._progress):
            if found.status is not Outcome.HEALTHY:
                raise _RefusedError(
                    f"what stays is not whole: {found.status} on {found.source}: {found.reason}. "
                    "Copies that were to be dropped stay until it is"
                )

    # The change

    def _publish(
        self, leave: set[BookieId], index: str, version: int, archived: Archived | None
    ) -> None:
        """The one step by which the ledger is released (``release-after-proof``)."""
        proven = self._ledger.metadata.fragments
        incarnations = self._ledger.incarnations
        # Versions before this one do not know the rule: one that is named again keeps its copy.
        named = self._ledger.metadata.members()
        before = {} if archived is None else archived.dropping
        dropping = {bookie: inc for bookie, inc in before.items() if bookie not in named}
        dropping |= {bookie: incarnations.get(bookie, "") for bookie in sorted(leave)}
        now_ms = self._context.runtime.wall_ms()
        record = Archived(self._table, index, version, self._keep, now_ms, dropping)

        def step(old: LedgerMetadata) -> LedgerMetadata | None:
            if old.fragments != proven or any(
                incarnations_of(old).get(bookie) != incarnations.get(bookie) for bookie in leave
            ):
                raise _RefusedError(
                    "its fragments were changed meanwhile, by a recovery or another release: "
                    "nothing was released here. Repeat it"
                )
            new = released(old, record)
            tables = {bookie: index for bookie in new.members() if is_table(bookie)}
            return with_incarnations(new, tables, renewed=True)

        self._seen(
            update_ledger(self._context.store, self._ledger.ledger_id, step, known=self._known)
        )

    def _seen(self, known: Versioned[LedgerMetadata]) -> None:
        self._known = known
        self._ledger = self._ledger.with_metadata(known.value)

    # What follows from it

    def _drop(self, *, dry_run: bool) -> Row:
        """Have those bookies drop what they hold that no fragment counts on any more."""
        ledger_id = self._ledger.ledger_id
        # Read now: whoever was named again since, or has dropped it, is left alone.
        self._seen(self._context.ledger(ledger_id, self._ledger.metadata.nonce)[1])
        archived = archived_of(self._ledger.metadata)
        assert archived is not None, "release-after-proof"
        kept = copies_kept(self._ledger.metadata, ())
        named = self._ledger.metadata.members()
        wanted = [b for b in archived.dropping if b not in named]
        if dry_run and wanted:
            return self._row(Outcome.PLANNED, f"{', '.join(wanted)} would drop what they hold")
        done: list[BookieId] = []
        failures: dict[BookieId, str] = {}
        for bookie in wanted:
            try:
                if withdraw(self._context, self._ledger, bookie, archived.dropping[bookie]):
                    done.append(bookie)
                else:
                    failures[bookie] = "the ledger was changed meanwhile"
            except CookieMismatchError:
                done.append(bookie)  # it was formatted since, and holds none of them
            except BookieUnavailableError as error:
                if self._is_forgotten(bookie):
                    done.append(bookie)
                else:
                    failures[bookie] = error.message
            except BookKeeperError as error:
                failures[bookie] = error.message
        if done:
            update = update_ledger(
                self._context.store, ledger_id, lambda old: dropped(old, done), known=self._known
            )
            self._seen(update)
        where = f"read from {archived.table}; {kept} copies are on bookies"
        if failures:
            said = "; ".join(f"{bookie}: {why}" for bookie, why in failures.items())
            return self._row(
                Outcome.PENDING,
                f"{where}, and could not be dropped everywhere ({said}). Nothing counts on these; "
                "repeat it when the bookies are back",
            )
        return self._row(Outcome.RELEASED, where)

    def _is_forgotten(self, bookie: BookieId) -> bool:
        """Whether the cluster has no such bookie any more."""
        return (
            bookie not in self._context.bookies.registrations()
            and self._context.store.cookie_version(bookie) is None
        )


def _pieces(metadata: LedgerMetadata, last: EntryId) -> Iterator[tuple[EntryId, EntryId]]:
    average = max(1, (metadata.length_bytes or 0) // (last + 1))
    count = max(1, min(ENTRIES, PIECE_BYTES // average))
    for first in range(0, last + 1, count):
        yield EntryId(first), EntryId(min(last, first + count - 1))


# Work on a part of a ledger, wherever the runner has it done


@dataclass(frozen=True, slots=True)
class _CompareWork:
    """Make entries of the table's rows, and compare them with what bookies have."""

    ledger: Ledger
    table: str
    files: TableFiles
    first: EntryId
    last: EntryId

    @property
    def size_bytes(self) -> int:
        return _size(self.ledger, self.first, self.last)


@dataclass(frozen=True, slots=True)
class _Compared:
    first: EntryId
    bytes: int
    listed: pa.Buffer | None = None
    """An Arrow stream of ``LISTING``; ``None`` where there is a reason."""
    reason: str | None = None
    """Why the table cannot stand for copies of this ledger."""


def _size(ledger: Ledger, first: int, last: int) -> int:
    end = ledger.metadata.last_entry_id
    assert end is not None, "release-needs-an-end"
    return round((ledger.metadata.length_bytes or 0) * (last - first + 1) / (end + 1))


def _not_compared(work: _CompareWork, failure: Failure) -> _Compared:
    return _Compared(work.first, 0, reason=failure.reason)


def _compare(context: ClientContext, work: _CompareWork) -> Sequence[_Compared]:
    ledger = work.ledger
    table = table_of(context, table_member(work.table, 0), work.table)
    listed: list[Mapping[str, Any]] = []
    size = 0
    window = max(1, WINDOW_BYTES // max(1, work.size_bytes // (work.last - work.first + 1)))
    for start in range(work.first, work.last + 1, window):
        end = min(work.last, start + window - 1)
        ids = range(start, end + 1)
        rows = table.rows.read(ledger.ledger_id, ledger.schema, work.files, start, end)
        originals = _from_bookies(context, ledger, EntryId(start), EntryId(end))
        try:
            made = batches_of(rows, ledger.schema, ids)
            for original, (entry_id, batch) in zip(originals, made, strict=True):
                assert original.entry_id == entry_id, "entries are read in order"
                listed.append(_listed(ledger, original, batch))
                size += original.size_bytes
        except (CannotRebuildError, _RefusedError) as error:
            return [_Compared(work.first, size, reason=str(error))]
    sink = pa.BufferOutputStream()
    whole = to_table(listed)
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    return [_Compared(work.first, size, sink.getvalue())]


def _from_bookies(
    context: ClientContext, ledger: Ledger, first: EntryId, last: EntryId
) -> Iterator[StoredEntry]:
    """As bookies have them, where any does; a table would be compared with itself."""
    yield from Fetcher(context, ledger).fetch(first, last)


def _listed(ledger: Ledger, original: StoredEntry, batch: pa.RecordBatch) -> Mapping[str, Any]:
    """The entry's line in the list. Raises ``_RefusedError``: the table has something else."""
    rows = original.batch()
    values = values_digest(rows)
    if rows.num_rows != batch.num_rows:
        raise _RefusedError(
            f"the table has {batch.num_rows} rows of entry {original.entry_id}, which has "
            f"{rows.num_rows}; nothing was released. Archive the ledger to another table"
        )
    if values != values_digest(batch):
        raise _RefusedError(
            f"entry {original.entry_id} is not the same in the table: {_difference(rows, batch)}. "
            "Nothing was released"
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


@dataclass(frozen=True, slots=True)
class _ReadBackWork:
    """Read entries by the list, as a reader of the released ledger will."""

    ledger: Ledger
    table: str
    index: str
    first: EntryId
    last: EntryId

    @property
    def size_bytes(self) -> int:
        return _size(self.ledger, self.first, self.last)


@dataclass(frozen=True, slots=True)
class _ReadBack:
    bytes: int
    reason: str | None = None


def _not_read_back(work: _ReadBackWork, failure: Failure) -> _ReadBack:
    return _ReadBack(0, failure.reason)


def _read_back(context: ClientContext, work: _ReadBackWork) -> Sequence[_ReadBack]:
    bookie = table_of(context, table_member(work.table, 0), work.table)
    ref = LedgerRef(work.ledger.key, work.index, work.ledger.encoding)
    replica = Replica(bookie, ref)
    listing = bookie.listing(ref)
    size = 0
    window = max(1, WINDOW_BYTES // max(1, work.size_bytes // (work.last - work.first + 1)))
    for start in range(work.first, work.last + 1, window):
        ids = range(start, min(work.last, start + window - 1) + 1)
        delivery = replica.read(ids)
        if delivery.refused:
            entry_id, reason = next(iter(delivery.refused.items()))
            return [_ReadBack(size, f"entry {entry_id} is not read back: {reason}")]
        for entry in delivery.found:
            told = listing.entry(entry.entry_id)
            if told is None or (told.digest, told.size) != (entry.digest, entry.size_bytes):
                return [_ReadBack(size, f"entry {entry.entry_id} is read back in other bytes")]
            size += entry.size_bytes
    return [_ReadBack(size)]


def _not_checked(work: CheckWork, failure: Failure) -> Finding:
    return Finding(work.ledger_id, Outcome.LEFT, failure.reason)
