"""Archiving: the rows of closed ledgers in a Delta table, each row exactly once.

A large ledger is one commit of the table, under a transaction id of its own (Delta's ``txnAppId``)
that stands for this life of this ledger. Small ledgers share a commit, which takes the place of
all rows that the table has of them. A commit that is repeated changes nothing, whoever repeats it:
a job that was killed, one that runs every hour, or two that run at once. So nothing needs to be
remembered elsewhere, and nothing is left half done.
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
"""The rows of ranges behind ``PLACE_COLUMNS``."""

ATTEMPTS: Final = 5
"""A commit that Delta refuses, since others changed the table meanwhile, is tried so often."""

OWNER: Final = "spark_bookkeeper.cluster"
"""In the metadata of a table's column ``_ledger_id``: the id of the cluster whose ledgers they are.
Written with the first rows, and kept by Delta from then on."""

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
"""What Spark, Delta, or a task of ours says of columns that a table cannot take, ever."""
_APPEND_ONLY: Final = "DELTA_CANNOT_MODIFY_APPEND_ONLY"


@dataclass(frozen=True, repr=False)
class ArchiveReport(Report):
    """Of ``archive_to_delta``: one row for each ledger."""

    refused: Set[LedgerId] = frozenset()
    """Of those that are left, the ones that this table can never take: their columns do not go with
    its own. The others may be taken by the next run."""


class _ColumnsError(InvalidArgumentError):
    """The table cannot take a ledger, today or later: their columns do not go together."""


class _CancelledError(Exception):
    """Somebody cancelled a Spark job of the archive; the message is Spark's."""


class Archive:
    """A Delta table that takes the rows of ledgers.

    Args:
        context: the cluster.
        spark: a session that has Delta.
        read: how rows are read with their places.
        path: where the table is, or is to be made.

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
        """Archive ledgers; those that are in the table already are only verified.

        A ledger that is not closed may still grow: its row is ``pending``, and of a log so are
        those behind it, since a table that has later rows and not the earlier ones would
        mislead. What cannot be archived is ``left``, with the reason; the others go on.

        Args:
            ledger_ids: each once.
            log: the log that they are of, in its order, for the history of the table.
            dry_run: only say what there is to do; nothing is written.
            progress: called with phase, ledgers done, ledgers in all, bytes so far; and now and
                then with who is waited for.

        Raises:
            InvalidArgumentError: the table has the ledgers of another cluster, which may have the
                same ids. Nothing was archived.
            BookKeeperError: the table cannot be read, or somebody cancelled a Spark job of it.
                What was committed is whole, and stays; nothing else was begun.
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
        """Ledgers that can be archived, and why others cannot, or need not."""
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
        """What becomes of a batch, behind what has become of those before it."""
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
            # As one piece of work: who interrupts it interrupts none of its calls in the middle.
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
        # The trouble of one ledger is its own: it is found by halves, and the others go on.
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
        """Commit what the table lacks of a batch, and compare all of it.

        Raises:
            BookKeeperError: it could not be done; what was committed is whole.
            _CancelledError: somebody does not want it; the same holds.
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
        """Have the table take what it lacks of a batch, and look at what it has then.

        It is looked at right before each commit, since what was known may be hours old: another
        archive may have added a ledger, and somebody deleted rows of it on purpose, which may not
        be replaced then. Whoever changes the table during a commit that replaces makes Delta
        refuse it.
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
        """The ledgers of a batch of which the table has no row now."""
        unknown = tuple(ledger for ledger in batch if ledger.ledger_id not in run.known)
        if unknown:
            run.known |= self._known_of(unknown)
        return tuple(ledger for ledger in unknown if ledger.ledger_id not in run.known)

    def _commit(self, batch: Batch, run: _Run, *, replace: bool) -> None:
        """The rows of ledgers, never a second time; of one ledger all at once or not at all.

        Args:
            replace: not for a large ledger, nor where the table lets nobody replace rows: that is
                a commit of its own, whatever its size. Whoever archives meets the same property of
                the table.
        """
        if replace:
            # Delta takes one transaction id with a commit. Instead, this one takes the place of
            # all rows that the table has of these ledgers: of none, or of just the same.
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
        """What the table has of each ledger, before anything is done."""
        return self._sums(ledger_ids)

    def _known_of(self, batch: Batch) -> dict[int, Sum]:
        """What the table has of each ledger of a batch."""
        return self._sums([ledger.ledger_id for ledger in batch])

    def _sums(self, ledger_ids: Sequence[LedgerId]) -> dict[int, Sum]:
        """Of a few no more of the table is read than where they may be."""
        table = self._table_if_any()
        if table is None or not ledger_ids:
            return {}
        is_few = len(ledger_ids) <= BATCH_LEDGERS
        return sums(table.where(_of_ledgers(ledger_ids)) if is_few else table)

    def _table_if_any(self) -> DataFrame | None:
        try:
            table = self._table()
            _ = table.schema  # over Connect nothing was asked before
        except spark_errors() as error:
            if is_cancelled(error):
                raise
            return None  # there is none yet; if it is something else, writing will show it
        self._check_owner(table)
        return table

    def _check_owner(self, table: DataFrame) -> None:
        """Whether the ledgers in a table are of this cluster. Older tables do not say."""
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
    """One call of ``Archive.add``."""

    log: str | None
    dry_run: bool
    known: dict[int, Sum]
    """What the table has of each ledger, as far as it was looked at."""
    blocked_by: int | None = None
    """The first ledger of the log that is not archived."""
    refused: set[LedgerId] = field(default_factory=set)
    """Ledgers whose columns do not go with the table's."""


def _cancelled(error: Exception) -> BookKeeperError:
    """What ends a run of which a job was cancelled: going on would begin what nobody wants."""
    return BookKeeperError(
        f"archiving was cancelled ({first_line(error)}). What was committed to the table is whole "
        "and stays there; run it again to do the rest"
    )


def check_place(context: ClientContext, path: str) -> None:
    """Whether a table may be at a path, as far as this process sees it: only what is no URI is
    looked at, since a bucket may be open to Spark alone.

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
    """The rows of these ledgers, as a condition in SQL."""
    return f"{PLACE_COLUMNS[0]} IN ({', '.join(str(int(each)) for each in ledger_ids)})"


def _ours(error: Exception) -> str | None:
    """What an error of this library in a task said, of which Spark kept only the text."""
    lines: Iterable[str] = str(error).splitlines()
    return next((line.strip() for line in lines if "spark_bookkeeper.errors." in line), None)
