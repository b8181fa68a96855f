"""Archiving: the rows of closed ledgers in a Delta table, each row exactly once.

Every ledger is one commit of the table, under a transaction id of its own (Delta's ``txnAppId``)
that stands for this life of this ledger. A commit that is repeated changes nothing, whoever
repeats it: a job that was killed, one that runs every hour, or two that run at once. So nothing
needs to be remembered elsewhere, and nothing is left half done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.write.bulk import EntryRange
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.replication.report import Outcome, Report, Row
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.spark.delta_tables import check_has_delta
from spark_bookkeeper.spark.job import first_line, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE_COLUMNS: Final = ("_ledger_id", "_entry_id", "_row")
"""Where a row was: its ledger, its entry there, its number within the entry. They come first,
since Delta keeps the bounds by which it skips files for the first columns only."""

ReadPlaced = Callable[[Sequence[EntryRange], pa.Schema], "DataFrame"]
"""The rows of ranges behind ``PLACE_COLUMNS``."""

_ACTION: Final = "archive"


class ArchiveReport(Report):
    """Of ``archive_to_delta``: one row for each ledger."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """What a set of rows comes to: how many they are, and a sum over a hash of each."""

    rows: int
    hashes: int


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
        """Archive ledgers in order; those that are in the table already are only verified.

        A ledger that is not closed may still grow: its row is ``pending``, and of a log so are
        those behind it, since a table that has later rows and not the earlier ones would
        mislead. What cannot be archived is ``left``, with the reason; the others go on.

        Args:
            ledger_ids: each once.
            log: the log that they are of, for the history of the table.
            dry_run: only say what there is to do; nothing is written.
            progress: called with phase, ledgers done, ledgers in all, bytes so far.
        """
        started = self._context.runtime.now()
        known = self._known()
        rows: list[Row] = []
        size = 0
        for ledger_id, found in self._context.store.read_ledgers(ledger_ids):
            progress("archiving ledgers", len(rows), len(ledger_ids), size)
            if log is not None and rows and rows[-1].status in (Outcome.PENDING, Outcome.LEFT):
                reason = f"behind ledger {rows[-1].ledger_id} of the log, which is not archived"
                rows.append(Row(ledger_id, _ACTION, Outcome.PENDING, reason))
                continue
            if found is None:
                rows.append(Row(ledger_id, _ACTION, Outcome.GONE, "the ledger does not exist"))
            elif isinstance(found, MetadataFormatError):
                rows.append(Row(ledger_id, _ACTION, Outcome.LEFT, found.message))
            elif not found.value.is_closed:
                reason = "not closed: archive it again when it is; `ledger recover` closes it"
                rows.append(Row(ledger_id, _ACTION, Outcome.PENDING, reason, 0))
            else:
                try:
                    ledger = Ledger.of(ledger_id, found.value)
                    rows.append(self._add(ledger, known.get(ledger_id), log, dry_run=dry_run))
                except BookKeeperError as error:
                    rows.append(Row(ledger_id, _ACTION, Outcome.LEFT, error.message, 0))
            size += rows[-1].bytes
        progress("archiving ledgers", len(rows), len(ledger_ids), size)
        duration_ms = round((self._context.runtime.now() - started) * 1000)
        return ArchiveReport("archive_to_delta", tuple(rows), dry_run, duration_ms)

    def _add(self, ledger: Ledger, known: _Sum | None, log: str | None, *, dry_run: bool) -> Row:
        last, size = ledger.metadata.last_entry_id, ledger.metadata.length_bytes or 0
        assert last is not None, "the ledger is closed"

        def row(status: Outcome, reason: str | None = None) -> Row:
            return Row(
                ledger.ledger_id, _ACTION, status, reason, 0, last, None, self._path, last + 1, size
            )

        if last == NO_ENTRY:
            return row(Outcome.ARCHIVED, "it has no entries")
        if dry_run:
            return (
                row(Outcome.PLANNED)
                if known is None
                else row(Outcome.ARCHIVED, "it is in the table")
            )
        clash = sorted({*PLACE_COLUMNS} & {name.lower() for name in ledger.schema.names})
        if clash:
            raise InvalidArgumentError(
                f"ledger {ledger.ledger_id} has a column {clash[0]!r}, which in the table says "
                "where a row was; give the column another name in the next ledger"
            )
        frame = self._read([EntryRange(ledger, EntryId(0), last)], ledger.schema)
        try:
            if known is None:
                self._commit(frame, ledger, log)
            table = self._spark.read.format("delta").load(self._path)
            kinds = {field.name: field.dataType for field in table.schema.fields}
            none = _Sum(0, 0)
            expected = _sums(frame, kinds).get(ledger.ledger_id, none)
            here = table.where(f"{PLACE_COLUMNS[0]} = {int(ledger.ledger_id)}")
            found = known or _sums(here).get(ledger.ledger_id, none)
        except spark_errors() as error:
            cause = _ours(error)
            raise BookKeeperError(
                f"ledger {ledger.ledger_id} could not be archived to {self._path}: "
                f"{cause or first_line(error)}"
            ) from error
        if expected != found:
            return row(
                Outcome.DAMAGED,
                f"the table has {found.rows} rows of this ledger, which has {expected.rows}"
                + ("" if expected.rows != found.rows else ", and not the same ones")
                + ": they were deleted or changed there. The ledger still has them all; archive it "
                "to another table",
            )
        return row(
            Outcome.ARCHIVED, None if known is None else "it was in the table, and is the same"
        )

    def _commit(self, frame: DataFrame, ledger: Ledger, log: str | None) -> None:
        """The rows of a ledger, all at once or not at all, and never a second time."""
        about: dict[str, Any] = {"cluster": self._cluster, "ledger_id": ledger.ledger_id}
        if log is not None:
            about["log"] = log
        (
            frame.write.format("delta")
            .mode("append")
            .option("mergeSchema", "true")
            .option(
                "txnAppId",
                f"spark-bookkeeper/{self._cluster}/{ledger.key}",
            )
            .option("txnVersion", "1")
            .option("userMetadata", json.dumps({"spark_bookkeeper": about}))
            .save(self._path)
        )

    def _known(self) -> Mapping[int, _Sum]:
        """What the table has of each ledger."""
        try:
            table = self._spark.read.format("delta").load(self._path)
        except spark_errors():
            return {}  # there is none yet; if it is something else, writing will show it
        return _sums(table)


def _sums(frame: DataFrame, kinds: Mapping[str, Any] | None = None) -> dict[int, _Sum]:
    """What the rows of each ledger come to.

    A null has no part in it: the table has columns that came later, and are null in the rows of
    the ledgers before.

    Args:
        frame: rows with their places.
        kinds: the types to compare under, by column; of the table, where it has wider ones.
    """
    from pyspark.sql import functions

    values = []
    for field in sorted(frame.schema.fields, key=lambda field: field.name):
        column = frame[f"`{field.name}`"]
        kind = (kinds or {}).get(field.name, field.dataType)
        if kind != field.dataType:
            column = column.cast(kind)
        if "map<" in kind.simpleString():  # Spark hashes no maps
            column = functions.to_json(functions.struct(column.alias("v")))
        values += [functions.when(frame[f"`{field.name}`"].isNotNull(), field.name), column]
    hashed = functions.xxhash64(*values).cast("decimal(38,0)")
    rows = (
        frame.groupBy(PLACE_COLUMNS[0])
        .agg(functions.count("*").alias("rows"), functions.sum(hashed).alias("hashes"))
        .collect()
    )
    return {row[0]: _Sum(row.rows, int(row.hashes)) for row in rows}


def _ours(error: Exception) -> str | None:
    """What an error of this library in a task said, of which Spark kept only the text."""
    lines: Iterable[str] = str(error).splitlines()
    return next((line.strip() for line in lines if "spark_bookkeeper.errors." in line), None)
