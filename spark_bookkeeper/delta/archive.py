"""Archiving: the rows of closed ledgers in a Delta table, each row exactly once.

A large ledger is one commit of the table. The commit has a transaction id (Delta's ``txnAppId``)
for this life of this ledger. Small ledgers share a commit, which replaces all rows that the table
has of them. A repeated commit changes nothing, whether a job was killed, runs every hour, or runs
twice at once. So no other state is needed, and no ledger is left half archived.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_bookkeeper.backup.folder import BackupFolder
from spark_bookkeeper.backup.saving_entries import runs_of
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange, Ledger
from spark_bookkeeper.delta.pieces import BATCH_LEDGERS, Batch, batches, is_small
from spark_bookkeeper.delta.sums import NO_ROWS, PLACE_COLUMNS, Sum, sums
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    InvalidArgumentError,
    MetadataFormatError,
)
from spark_bookkeeper.protocol.accepted_loss import kept_entries, loss_text
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.replication.progress_reporter import telling
from spark_bookkeeper.replication.report import Outcome, Report, Row
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.replication.stragglers import name_of, with_others
from spark_bookkeeper.spark.delta_tables import check_has_delta
from spark_bookkeeper.spark.job import first_line, is_cancelled, run_jobs, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ReadPlaced = Callable[[Sequence[EntryRange], pa.Schema], "DataFrame"]
"""Reads the rows of ranges, with ``PLACE_COLUMNS`` first."""

ATTEMPTS: Final = 5
"""Number of attempts at a commit that Delta refuses because the table was changed meanwhile."""

OWNER: Final = "spark_bookkeeper.cluster"
"""Key in the metadata of a table's column ``_ledger_id``: the id of the cluster that owns the
ledgers. Written with the first rows; Delta keeps it from then on."""

_JOB: Final = "archive_to_delta"
_ACTION: Final = "archive"
_PHASE: Final = "archiving ledgers"

_CONFLICT = re.compile(r"DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED")
_COLUMNS = re.compile(
    r"DELTA_FAILED_TO_MERGE_FIELDS|DELTA_MERGE_(?:INCOMPATIBLE|ADD_VOID)|DELTA_CANNOT_CHANGE_DATA_TYPE"
    r"|DELTA_(?:PARSING_)?UNSUPPORTED_DATA_TYPE|DELTA_INVALID_CHARACTERS_IN_COLUMN_NAME"
    r"|DELTA_COLUMN_STRUCT_TYPE_MISMATCH|DELTA_DUPLICATE_COLUMNS|COLUMN_ALREADY_EXISTS"
    r"|INCOMPATIBLE_DATA_FOR_TABLE|CAST_INVALID_INPUT|CAST_OVERFLOW|BOOKKEEPER_INVALID_ARGUMENT"
)
"""Errors of Spark, Delta or our tasks about columns that a table can never take."""
_APPEND_ONLY: Final = "DELTA_CANNOT_MODIFY_APPEND_ONLY"


@dataclass(frozen=True, repr=False)
class ArchiveReport(Report):
    """The report of ``archive_to_delta``: one row for each ledger."""

    refused: Set[LedgerId] = frozenset()
    """The ledgers, of those that are left, that this table can never take: their columns are
    incompatible with its columns. The next run may take the others."""


class _ColumnsError(InvalidArgumentError):
    """The table can never take a ledger: their columns are incompatible."""


class _CancelledError(Exception):
    """A user cancelled a Spark job of the archive; the message is Spark's."""


class Archive:
    """A Delta table that takes the rows of ledgers.

    Args:
        context: the cluster.
        spark: a session that has Delta.
        read: reads rows with their places.
        path: location of the table, which may not exist yet.

    Raises:
        MissingRequirementError: this Spark has no Delta. Nothing was done.
    """

    def __init__(
        self, context: ClientContext, spark: SparkSession, read: ReadPlaced, path: str
    ) -> None:
        check_has_delta(spark, path, f"ledgers cannot be archived to {path}")
        self._context = context
        self._spark = spark
        self._read = read
        self._path = path
        self._cluster = context.store.instance_id()

    def add(
        self,
        ledger_ids: Sequence[LedgerId],
        *,
        log: str | None = None,
        dry_run: bool = False,
        progress: Progress = no_progress,
    ) -> ArchiveReport:
        """Archive ledgers; verify those that are in the table already.

        The row of an open ledger is ``pending``, since it may still grow. In a log so are the
        ledgers after it: a table with later rows but without the earlier ones would mislead. A
        ledger that cannot be archived is ``left``, with the reason; the other ones go on.

        Args:
            ledger_ids: each id once.
            log: the log of the ledgers, which are in its order; recorded in the table's history.
            dry_run: only report what is to be done; nothing is written.
            progress: called with phase, ledgers done, ledgers in all, bytes so far; sometimes the
                phase names stragglers.

        Raises:
            InvalidArgumentError: the table has the ledgers of another cluster, which may have the
                same ids. Nothing was archived.
            BookKeeperError: the table cannot be read, or a user cancelled one of the Spark jobs.
                Committed ledgers are whole, and stay; no other one was begun.
        """
        check_place(self._context, self._path)
        started = self._context.runtime.now()
        try:
            known = run_jobs(
                self._spark, lambda: self._known(ledger_ids), f"{_JOB}: what the table has"
            )
        except spark_errors() as error:
            if is_cancelled(error):
                raise _cancelled(error) from error
            raise BookKeeperError(
                f"the table at {self._path} cannot be read ({first_line(error)}): nothing was "
                "archived. Repair it, or archive to another one"
            ) from error
        run = _Run(log, dry_run, known)
        rows: list[Row] = []
        total, size = len(ledger_ids), 0
        with telling(progress, self._context, lambda: (), _PHASE, total, is_elsewhere=True) as tell:
            for batch in batches(self._found(ledger_ids, run), in_order=log is not None):
                tell(_PHASE, len(rows), total, size)
                done = self._next(batch, run)
                rows += done
                size += sum(row.bytes for row in done)
            tell(_PHASE, len(rows), total, size)
        asked = {ledger_id: number for number, ledger_id in enumerate(ledger_ids)}
        rows.sort(key=lambda row: asked[LedgerId(row.ledger_id)])
        duration_ms = round((self._context.runtime.now() - started) * 1000)
        return ArchiveReport(_JOB, tuple(rows), dry_run, duration_ms, refused=run.refused)

    def _found(self, ledger_ids: Sequence[LedgerId], run: _Run) -> Iterator[Ledger | Row]:
        """Yield ledgers that can be archived, and rows for those that cannot, or need not."""
        for ledger_id, found in self._context.store.read_ledgers(ledger_ids):
            if found is None:
                yield Row(ledger_id, _ACTION, Outcome.GONE, "the ledger does not exist")
            elif isinstance(found, MetadataFormatError):
                yield Row(ledger_id, _ACTION, Outcome.LEFT, found.message)
            elif not found.value.is_closed:
                reason = "not closed: its writer closes it, or `ledger recover` if that has ended"
                yield Row(ledger_id, _ACTION, Outcome.PENDING, reason, 0)
            else:
                try:
                    ledger = Ledger.of(ledger_id, found.value)
                    _check_names(ledger)
                except BookKeeperError as error:
                    if isinstance(error, _ColumnsError):
                        run.refused.add(ledger_id)
                    yield Row(ledger_id, _ACTION, Outcome.LEFT, error.message, 0)
                else:
                    if ledger.metadata.last_entry_id == NO_ENTRY:
                        yield self._row(ledger, Outcome.ARCHIVED, "it has no entries")
                    else:
                        yield ledger

    def _next(self, batch: Batch | Row, run: _Run) -> list[Row]:
        """Archive a batch; in a log only if all batches before it were archived."""
        if run.blocked_by is not None:
            ids = [batch.ledger_id] if isinstance(batch, Row) else [x.ledger_id for x in batch]
            reason = f"behind ledger {run.blocked_by} of the log, which is not archived"
            return [Row(ledger_id, _ACTION, Outcome.PENDING, reason) for ledger_id in ids]
        rows = [batch] if isinstance(batch, Row) else self._tried(batch, run)
        if run.log is not None and rows[-1].status in (Outcome.PENDING, Outcome.LEFT):
            run.blocked_by = rows[-1].ledger_id
        return rows

    def _tried(self, batch: Batch, run: _Run) -> list[Row]:
        if run.dry_run:
            return [self._planned(ledger, run) for ledger in batch]
        try:
            # One job, so that Ctrl-C does not interrupt one of its calls in the middle.
            named = f"{_JOB}: {with_others(name_of(batch[0].ledger_id), len(batch) - 1)}"
            return run_jobs(self._spark, lambda: self._add(batch, run), named)
        except _CancelledError as error:
            raise _cancelled(error) from error
        except BookKeeperError as error:
            if len(batch) == 1:
                ledger_id = batch[0].ledger_id
                if isinstance(error, (_ColumnsError, InvalidArgumentError)):
                    run.refused.add(ledger_id)
                return [Row(ledger_id, _ACTION, Outcome.LEFT, error.message, 0)]
        # One ledger must not stop the others: halving the batch isolates the one that fails.
        middle = len(batch) // 2
        return self._next(batch[:middle], run) + self._next(batch[middle:], run)

    def _planned(self, ledger: Ledger, run: _Run) -> Row:
        if ledger.ledger_id in run.known:
            return self._row(ledger, Outcome.ARCHIVED, "it is in the table")
        return self._row(ledger, Outcome.PLANNED)

    def _row(self, ledger: Ledger, status: Outcome, reason: str | None = None) -> Row:
        last, size = ledger.metadata.last_entry_id, ledger.metadata.length_bytes or 0
        assert last is not None, "the ledger is closed"
        count = len(kept_entries(ledger.metadata, EntryId(0), last))
        place = (0, last, None, self._path, count, size)
        reason = reason or loss_text(ledger.metadata)
        return Row(ledger.ledger_id, _ACTION, status, reason, *place)

    # One batch

    def _add(self, batch: Batch, run: _Run) -> list[Row]:
        """Commit the rows of a batch that the table lacks, and compare all of them.

        Raises:
            BookKeeperError: it failed; committed ledgers are whole.
            _CancelledError: a user cancelled it; committed ledgers are whole.
        """
        before = {x.ledger_id: run.known[x.ledger_id] for x in batch if x.ledger_id in run.known}
        try:
            found = dict(before)
            if len(before) < len(batch):
                self._complete(batch, run)
                found |= {x.ledger_id: run.known.get(x.ledger_id, NO_ROWS) for x in batch}
            frame = self._frame(batch)
            expected = sums(frame, {f.name: f.dataType for f in self._table().schema.fields})
        except spark_errors() as error:
            if is_cancelled(error):
                raise _CancelledError(first_line(error)) from error
            cause = _ours(error)
            named = f"ledger {batch[0].ledger_id}" + (
                "" if len(batch) == 1 else f" and {len(batch) - 1} more"
            )
            kind = _ColumnsError if _COLUMNS.search(str(error)) else BookKeeperError
            raise kind(
                f"{named} could not be archived to {self._path}: {cause or first_line(error)}"
            ) from error
        return [
            self._compared(
                ledger,
                expected.get(ledger.ledger_id, NO_ROWS),
                found[ledger.ledger_id],
                was_there=ledger.ledger_id in before,
            )
            for ledger in batch
        ]

    def _compared(self, ledger: Ledger, expected: Sum, found: Sum, *, was_there: bool) -> Row:
        if expected != found:
            reason = (
                f"the table has {found.rows} rows of this ledger, which has {expected.rows}"
                + ("" if expected.rows != found.rows else ", and not the same ones")
                + ": they were deleted or changed there. The ledger still has them all; archive it "
                "to another table"
            )
            return self._row(ledger, Outcome.DAMAGED, reason)
        told = "it was in the table, and is the same" if was_there else None
        return self._row(ledger, Outcome.ARCHIVED, told)

    def _complete(self, batch: Batch, run: _Run) -> None:
        """Commit the ledgers of a batch that the table lacks, and read what it has afterwards.

        The table is read right before each commit, since earlier reads may be hours old. Another
        archive may have added a ledger, and a user may have deleted rows of it on purpose: then its
        rows must not be replaced. Delta refuses a replacing commit if the table changes meanwhile.
        """
        left, failures = batch, 0
        may_replace = is_small(batch[0])
        while left := self._missing(left, run):
            part = left if may_replace else left[:1]
            try:
                self._commit(part, run, replace=may_replace)
            except spark_errors() as error:
                failures += 1
                is_append_only = may_replace and _APPEND_ONLY in str(error)
                may_replace = may_replace and not is_append_only
                is_passing = is_append_only or _CONFLICT.search(str(error))
                if failures == ATTEMPTS or not is_passing:
                    raise
            else:
                left = left[len(part) :]
        run.known |= self._known_of(batch)

    def _missing(self, batch: Batch, run: _Run) -> Batch:
        """Return the ledgers of a batch of which the table has no row now."""
        unknown = tuple(ledger for ledger in batch if ledger.ledger_id not in run.known)
        if unknown:
            run.known |= self._known_of(unknown)
        return tuple(ledger for ledger in unknown if ledger.ledger_id not in run.known)

    def _commit(self, batch: Batch, run: _Run, *, replace: bool) -> None:
        """Write the rows of ledgers exactly once; all rows of a ledger, or none.

        Args:
            replace: false for a large ledger, and where the table lets no client replace rows: then
                each ledger, of any size, is one commit. All archives see the same property of the
                table, and so agree.
        """
        if replace:
            # Delta takes one transaction id with a commit. Instead, this commit replaces all rows
            # that the table has of these ledgers: no rows, or the same rows.
            condition = _of_ledgers([ledger.ledger_id for ledger in batch])
            self._write(batch, run.log, "overwrite", {"replaceWhere": condition})
        else:
            (ledger,) = batch
            txn_id = f"spark-bookkeeper/{self._cluster}/{ledger.key}"
            options = {"txnAppId": txn_id, "txnVersion": "1"}
            self._write(batch, run.log, "append", options)

    def _write(self, batch: Batch, log: str | None, mode: str, options: Mapping[str, str]) -> None:
        ids = [int(ledger.ledger_id) for ledger in batch]
        about: dict[str, Any] = {"cluster": self._cluster}
        about.update({"ledger_id": ids[0]} if len(ids) == 1 else {"ledger_ids": ids})
        if log is not None:
            about["log"] = log
        if lost := {x.ledger_id: text for x in batch if (text := loss_text(x.metadata))}:
            about["lost"] = lost
        told = {
            "mergeSchema": "true",
            "userMetadata": json.dumps({"spark_bookkeeper": about}),
            **options,
        }
        rows = self._frame(batch).withMetadata(PLACE_COLUMNS[0], {OWNER: self._cluster})
        rows.write.format("delta").mode(mode).options(**told).save(self._path)

    def _frame(self, batch: Batch) -> DataFrame:
        ranges = []
        for ledger in batch:
            last = ledger.metadata.last_entry_id
            assert last is not None, "the ledger is closed"
            kept = kept_entries(ledger.metadata, EntryId(0), last)
            ranges += [EntryRange(ledger, first, end) for first, end in runs_of(kept)]
        return self._read(ranges, batch[0].schema)

    # The table

    def _table(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path)

    def _known(self, ledger_ids: Sequence[LedgerId]) -> dict[int, Sum]:
        """Return the sums of each ledger that the table has, before any work."""
        return self._sums(ledger_ids)

    def _known_of(self, batch: Batch) -> dict[int, Sum]:
        """Return the sums of each ledger of a batch that the table has."""
        return self._sums([ledger.ledger_id for ledger in batch])

    def _sums(self, ledger_ids: Sequence[LedgerId]) -> dict[int, Sum]:
        """Return sums by ledger. For few ledgers, only files that may have their rows are read."""
        table = self._table_if_any()
        if table is None or not ledger_ids:
            return {}
        is_few = len(ledger_ids) <= BATCH_LEDGERS
        return sums(table.where(_of_ledgers(ledger_ids)) if is_few else table)

    def _table_if_any(self) -> DataFrame | None:
        try:
            table = self._table()
            _ = table.schema  # Spark Connect sends the first request here
        except spark_errors() as error:
            if is_cancelled(error):
                raise
            return None  # no table yet; if it is something else, writing will fail
        self._check_owner(table)
        return table

    def _check_owner(self, table: DataFrame) -> None:
        """Check that a table's ledgers are of this cluster. Older tables do not record it."""
        for column in table.schema.fields:
            owner = column.metadata.get(OWNER, self._cluster)
            if column.name == PLACE_COLUMNS[0] and owner != self._cluster:
                raise InvalidArgumentError(
                    f"the table at {self._path} has the ledgers of cluster {owner}, and this is "
                    f"cluster {self._cluster}, whose ledgers may have the same ids: nothing was "
                    "archived. Archive to another table"
                )


@dataclass(slots=True)
class _Run:
    """The state of one call of ``Archive.add``."""

    log: str | None
    dry_run: bool
    known: dict[int, Sum]
    """The sums of each ledger that the table has, as far as they were read."""
    blocked_by: int | None = None
    """The first ledger of the log that is not archived."""
    refused: set[LedgerId] = field(default_factory=set)
    """Ledgers whose columns are incompatible with the table's."""


def _cancelled(error: Exception) -> BookKeeperError:
    """Return the error for a run with a cancelled job, which must not begin more work."""
    return BookKeeperError(
        f"archiving was cancelled ({first_line(error)}). What was committed to the table is whole "
        "and stays there; run it again to do the rest"
    )


def check_place(context: ClientContext, path: str) -> None:
    """Check that a table may be at a path, as far as this process can see it. URIs are not checked,
    since only Spark may have access to a bucket.

    Raises:
        InvalidArgumentError: a backup is there. Nothing was changed.
    """
    if "://" in path:
        return
    with suppress(BookieUnavailableError):
        folder = BackupFolder(context, path)
        if folder.is_there or folder.table is not None:
            raise InvalidArgumentError(
                f"{path} is the directory of a backup: nothing was archived. Choose another path"
            )


def _check_names(ledger: Ledger) -> None:
    clash = sorted({*PLACE_COLUMNS} & {name.lower() for name in ledger.schema.names})
    if clash:
        raise _ColumnsError(
            f"ledger {ledger.ledger_id} has a column {clash[0]!r}, which in the table says "
            "where a row was; give the column another name in the next ledger"
        )


def _of_ledgers(ledger_ids: Sequence[LedgerId]) -> str:
    """Return the condition in SQL for the rows of these ledgers."""
    return f"{PLACE_COLUMNS[0]} IN ({', '.join(str(int(each)) for each in ledger_ids)})"


def _ours(error: Exception) -> str | None:
    """Return the message of this library's error in a task; Spark kept only its text."""
    lines: Iterable[str] = str(error).splitlines()
    return next((line.strip() for line in lines if "spark_bookkeeper.errors." in line), None)
