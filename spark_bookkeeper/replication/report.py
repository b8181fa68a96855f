"""What a piece of replication work did, row by row, and what it left."""

from __future__ import annotations

import html
import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.runtime.spool import Spool


class Outcome(str, Enum):
    """How a piece of work ended. The values are what reports show."""

    REPLICATED = "replicated"
    CLOSED = "closed"
    """The ledger was recovered."""
    GIVEN_UP = "given up"
    """Entries that may be missing, as somebody accepted; in a dry run, as somebody would."""
    ARCHIVED = "archived"
    """Its rows are in a table."""
    DELETED = "deleted"
    """What nothing needs was removed."""
    COMPACTED = "compacted"
    """It lies in fewer files."""
    RELEASED = "released"
    """A table stands for copies that bookies have dropped."""
    SAVED = "saved"
    """It is in the backup."""
    RESTORED = "restored"
    """It is in the cluster again."""
    THERE_ALREADY = "there already"
    """What a dry run says of what is in the cluster."""
    HEALTHY = "healthy"
    GONE = "gone"
    """The ledger was deleted."""
    NO_LONGER_NEEDED = "no longer needed"
    PUBLISHED = "published"
    """What is missing is known to the replication workers."""
    PLANNED = "planned"
    """What a dry run says of work that a run would do."""
    PENDING = "pending"
    """Copies may still be on their way."""
    MISSING = "missing"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    """It could not be read; whether it is damaged is not known."""
    UNAVAILABLE = "unavailable"
    """The bookie cannot be asked."""
    UNRECOVERABLE = "unrecoverable"
    """No bookie that answers has an entry as it was written."""
    MISPLACED = "misplaced"
    """Its copies are on fewer racks than they could be."""
    LEFT = "left"
    """Something is in the way; the reason says what."""

    def __str__(self) -> str:
        return self.value

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do. It is not for a plan, nor for what a check found wrong."""
        return self in _DONE


_DONE: Final = frozenset(
    {
        Outcome.REPLICATED,
        Outcome.CLOSED,
        Outcome.GIVEN_UP,
        Outcome.ARCHIVED,
        Outcome.DELETED,
        Outcome.COMPACTED,
        Outcome.RELEASED,
        Outcome.SAVED,
        Outcome.RESTORED,
        Outcome.THERE_ALREADY,
        Outcome.HEALTHY,
        Outcome.GONE,
        Outcome.NO_LONGER_NEEDED,
        Outcome.PUBLISHED,
    }
)

ROW_SCHEMA: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("first_entry_id", pa.int64()),
        pa.field("last_entry_id", pa.int64()),
        pa.field("action", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("target", pa.string()),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Row:
    """One ledger, or one bookie's share of one fragment, and how it ended.

    A job that has more to say has rows of a class of its own: its further columns stand behind
    these in its ``SCHEMA``, with a default each.
    """

    SCHEMA: ClassVar[pa.Schema] = ROW_SCHEMA
    ledger_id: int
    """-1 where the row is of a bookie, or of the job, as a whole."""
    action: str
    """``recover``, ``copy``, ``metadata`` (nothing was stored there) or ``check``; of other jobs
    their own word, ``archive``, ``release``, ``collect`` or ``task`` for example."""
    status: Outcome
    reason: str | None = None
    """Why it is not done; of what is done and planned, what else is worth knowing, if anything."""
    first_entry_id: int | None = None
    last_entry_id: int | None = None
    source: str | None = None
    """The bookie whose share it is."""
    target: str | None = None
    """The bookie that has, or is to have, the copies."""
    entries: int = 0
    """Entries that are now as they should be: copied, or closed in; of a plan, that would be. Of
    a check, those that were looked at."""
    bytes: int = 0
    """Bytes that were copied, or are closed in; of a check, those that were verified."""

    def to_dict(self) -> dict[str, Any]:
        """By column; the outcome as text."""
        return {**asdict(self), "status": self.status.value}


def values_of(row: type[Row]) -> attrgetter[Any]:
    """Gives what a row of this class is made of, in its order."""
    return attrgetter(*(each.name for each in fields(row)))


@dataclass(frozen=True, slots=True)
class ShareResult:
    """What became of a bookie's share of a fragment; or of all of them, or of a ledger."""

    ROW: ClassVar[type[Row]] = Row
    VALUES: ClassVar[attrgetter[Any]] = values_of(Row)
    ledger_id: LedgerId
    status: Outcome
    reason: str | None = None
    first_entry_id: EntryId | None = None
    """Of the fragment."""
    last_entry_id: EntryId | None = None
    source: BookieId | None = None
    """The bookie whose share it is; it may be lost."""
    target: BookieId | None = None
    """The bookie that has the copies, or would have them."""
    entries: int = 0
    bytes: int = 0

    @property
    def action(self) -> str:
        """What was done, as reports call it."""
        return "copy"

    def row(self) -> Row:
        """As reports show it."""
        return self.ROW(*self.VALUES(self))


ROWS_AT_ONCE: Final = 8192
"""Rows that are in memory at once where all of them are looked at, or written."""


def report_rows(rows: Iterable[Row]) -> Sequence[Row]:
    """Rows to be kept for a report: in order, unless they are too many to be kept in memory."""
    kept = rows if isinstance(rows, Spool) else Spool(rows)
    if not kept.is_in_memory:
        return kept
    order = sorted(kept, key=lambda row: (row.ledger_id, row.first_entry_id or 0, row.source or ""))
    return tuple(order)


@dataclass(frozen=True)
class Report:
    """The outcome of one job."""

    job: str
    rows: Sequence[Row]
    """By ledger, fragment and bookie. Of more than ``spool.IN_MEMORY`` in the order in which they
    came, and not in memory: they are read from a temporary file when they are asked for."""
    dry_run: bool = False
    """Whether it is only a plan. A check changes nothing, and is no plan either: it was done."""
    duration_ms: int = 0
    frame: Callable[[pa.Table], Any] | None = field(default=None, repr=False, compare=False)
    """Turns a table into a DataFrame; given by the session."""
    columns: type[Row] = Row
    """The class of the rows, also when there are none."""

    def __getstate__(self) -> dict[str, Any]:
        """Without the session, which does not travel; the rows do."""
        return {**self.__dict__, "frame": None}

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do. A plan with work in it is not complete: it is not done."""
        return all(row.status.is_done for row in self.rows)

    @property
    def unfinished(self) -> Sequence[Row]:
        """The rows that are left, each with its reason; of a plan, what a run would leave too."""
        left = Spool(
            row for row in self.rows if not row.status.is_done and row.status is not Outcome.PLANNED
        )
        return list(left) if left.is_in_memory else left

    @property
    def counts(self) -> dict[str, int]:
        """Rows by status."""
        return dict(sorted(Counter(row.status.value for row in self.rows).items()))

    @property
    def without_rows(self) -> str:
        """What a report that has no rows says instead of their counts."""
        return "nothing to do"

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table (``ROW_SCHEMA``, and what the job has behind it)."""
        return pa.Table.from_batches(self.batches(), schema=self.columns.SCHEMA)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same piece by piece, for who writes more rows than there is memory for."""
        rows = iter(self._dicts())
        while some := list(islice(rows, ROWS_AT_ONCE)):
            yield pa.RecordBatch.from_pylist(some, schema=self.columns.SCHEMA)

    def to_df(self) -> Any:
        """The rows as a Spark DataFrame."""
        assert self.frame is not None, "made without a session"
        return self.frame(self.to_arrow())

    def to_dict(self) -> dict[str, Any]:
        """One object for programs: the keys that every job prints with ``--json``."""
        return {**self.totals(), "rows": list(self._dicts())}

    def totals(self) -> dict[str, Any]:
        """The same without the rows."""
        entries = size = 0
        ledgers, fragments, unfinished = array("q"), array("q"), array("q")
        for row in self.rows:
            entries += row.entries
            size += row.bytes
            if row.ledger_id < 0:
                continue  # about a bookie as a whole
            ledgers.append(row.ledger_id)
            if not row.status.is_done:
                unfinished.append(row.ledger_id)
            fragments.append(-1 if row.first_entry_id is None else row.first_entry_id)
        known = len(np.unique(ledgers))
        return {
            "job": self.job,
            "dry_run": self.dry_run,
            "ledgers": known,
            "ledgers_complete": known - len(np.unique(unfinished)),
            "fragments": len(np.unique(np.array([ledgers, fragments]), axis=1).T),
            "entries": entries,
            "bytes": size,
            "duration_ms": self.duration_ms,
            "complete": self.is_complete,
        }

    def _dicts(self, most: int | None = None) -> Iterator[dict[str, Any]]:
        """The rows by column, in the order of the columns."""
        empty = dict.fromkeys(self.columns.SCHEMA.names)
        return (empty | row.to_dict() for row in islice(self.rows, most))

    def __repr__(self) -> str:
        # Without the rows, of which there may be a million.
        return f"{type(self).__name__}({self._title()})"

    def _title(self) -> str:
        """The job in one line: how many rows ended how."""
        plan = " (dry run)" if self.dry_run else ""
        counts = ", ".join(f"{status} {n:,}" for status, n in self.counts.items())
        return f"{self.job}{plan}: {counts or self.without_rows}"

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{name}</th>" for name in self.columns.SCHEMA.names)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(shown(cell))}</td>' for cell in row.values())}</tr>"
            for row in self._dicts(50)
        )
        more = f"<p>… {len(self.rows) - 50} more</p>" if len(self.rows) > 50 else ""
        return (
            f"<p><b>{html.escape(self._title())}</b></p><table><tr>{heads}</tr>{body}</table>{more}"
        )


class RecoveryReport(Report):
    """Of jobs that close ledgers or copy entries: ``recover_ledgers``, ``recover_bookie``,
    ``refill_bookie``, ``repair_ledgers``, ``rereplicate``.
    """


class CheckReport(Report):
    """Of ``check_ledgers``: the shares of fragments that are not as they should be."""


def counted(count: int, what: str) -> str:
    """A number of things, in words: ``1 ledger``, ``2,000 ledgers``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def some_of(ids: Sequence[object], most: int = 10) -> str:
    """The first of these ids, and how many more there are; ``none`` for none."""
    more = len(ids) - most
    listed = ", ".join(map(str, ids[:most])) or "none"
    return f"{listed} and {more:,} more" if more > 0 else listed


def shown(value: object) -> str:
    """A value of a row for people."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def check_report_file(path: str) -> None:
    """Refuse a file that could not be written, before there is a report.

    Raises:
        InvalidArgumentError: another ending than those that are known, or no such directory.
    """
    file = Path(path)
    if file.suffix not in _WRITERS:
        raise InvalidArgumentError(
            f"{path} has none of the endings {', '.join(_WRITERS)}, which say in which form a "
            "report is written"
        )
    if not file.parent.is_dir():
        raise InvalidArgumentError(f"{file.parent} is not a directory; make it first")


def write_report(report: Report, path: str) -> None:
    """Write the rows of a report, also of one that does not fit in memory; all of them or none.

    Args:
        path: a new file, or one to be replaced; ``.parquet`` or ``.jsonl``, an object for each row.

    Raises:
        InvalidArgumentError: see ``check_report_file``; or it cannot be written.
    """
    check_report_file(path)
    file = Path(path)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _WRITERS[file.suffix](report, unfinished)
        os.replace(unfinished, file)
    except OSError as error:
        raise InvalidArgumentError(
            f"the report could not be written to {path}: {error.strerror or error}. What the job "
            "did stays done"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _write_parquet(report: Report, file: Path) -> None:
    with pyarrow.parquet.ParquetWriter(file, report.columns.SCHEMA) as writer:
        for batch in report.batches():
            writer.write_batch(batch)


def _write_lines(report: Report, file: Path) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for row in _rows(report.batches()):
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, object]]:
    for batch in batches:
        yield from batch.to_pylist()


_WRITERS: Final[dict[str, Callable[[Report, Path], None]]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_lines,
}
