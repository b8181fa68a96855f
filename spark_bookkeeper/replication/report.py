"""The report of a job: its rows say what was done, and what is left undone."""

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
    """How the work of one row ended. Reports show the values."""

    REPLICATED = "replicated"
    CLOSED = "closed"
    """The ledger was recovered."""
    GIVEN_UP = "given up"
    """Entries may be missing, and the operator accepts that; in a dry run, would accept it."""
    ARCHIVED = "archived"
    """The ledger's rows are in a table."""
    DELETED = "deleted"
    """Data that nothing needs was removed."""
    COMPACTED = "compacted"
    """The ledger's entries are in fewer files."""
    RELEASED = "released"
    """A table holds the entries; the bookies dropped their copies."""
    SAVED = "saved"
    """The ledger is in the backup."""
    RESTORED = "restored"
    """The ledger is in the cluster again."""
    THERE_ALREADY = "there already"
    """The ledger exists in the cluster already; only a dry run shows this."""
    HEALTHY = "healthy"
    GONE = "gone"
    """The ledger was deleted."""
    NO_LONGER_NEEDED = "no longer needed"
    PUBLISHED = "published"
    """The missing copies are published for the replication workers."""
    PLANNED = "planned"
    """A run would do this work; only a dry run shows this."""
    PENDING = "pending"
    """Copies may still be in transit to the bookie."""
    MISSING = "missing"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    """The copy could not be read; it may or may not be damaged."""
    UNAVAILABLE = "unavailable"
    """The bookie cannot be queried."""
    UNRECOVERABLE = "unrecoverable"
    """No bookie that answers has the entry as it was written."""
    MISPLACED = "misplaced"
    """The copies are on fewer racks than possible."""
    LEFT = "left"
    """The work could not be done; the reason says why."""

    def __str__(self) -> str:
        return self.value

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do. False for a plan, and for a fault that a check found."""
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
    """One ledger, or one bookie's share of one fragment, and how its work ended.

    A job that reports more uses a subclass. Its further columns come after these in its ``SCHEMA``,
    and each has a default.
    """

    SCHEMA: ClassVar[pa.Schema] = ROW_SCHEMA
    ledger_id: int
    """-1 in a row about a whole bookie or the whole job."""
    action: str
    """``recover``, ``copy``, ``metadata`` (no entries were stored) or ``check``. Other jobs use
    their own words, such as ``archive``, ``release``, ``collect`` or ``task``."""
    status: Outcome
    reason: str | None = None
    """Why the work is not done; for done or planned work, a remark or ``None``."""
    first_entry_id: int | None = None
    last_entry_id: int | None = None
    source: str | None = None
    """The bookie to which the share belongs."""
    target: str | None = None
    """The bookie that has the new copies, or is to have them."""
    entries: int = 0
    """Entries that are now correct: copied, or closed in. In a plan, entries that would be. In a
    check, entries that were checked."""
    bytes: int = 0
    """Bytes that were copied or closed in; in a check, bytes that were verified."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values by column; the outcome is text."""
        return {**asdict(self), "status": self.status.value}


def values_of(row: type[Row]) -> attrgetter[Any]:
    """Return a getter that reads this class's fields, in order, from a result."""
    return attrgetter(*(each.name for each in fields(row)))


@dataclass(frozen=True, slots=True)
class ShareResult:
    """The outcome for one share of a fragment, for all shares of a bookie, or for a ledger."""

    ROW: ClassVar[type[Row]] = Row
    VALUES: ClassVar[attrgetter[Any]] = values_of(Row)
    ledger_id: LedgerId
    status: Outcome
    reason: str | None = None
    first_entry_id: EntryId | None = None
    """The first entry of the fragment."""
    last_entry_id: EntryId | None = None
    source: BookieId | None = None
    """The bookie to which the share belongs; it may be lost."""
    target: BookieId | None = None
    """The bookie that has the copies, or would have them."""
    entries: int = 0
    bytes: int = 0

    @property
    def action(self) -> str:
        """The word for this work in reports."""
        return "copy"

    def row(self) -> Row:
        """Return the row that reports show."""
        return self.ROW(*self.VALUES(self))


ROWS_AT_ONCE: Final = 8192
"""The most rows in memory at once while all rows are read or written."""


def report_rows(rows: Iterable[Row]) -> Sequence[Row]:
    """Keep rows for a report. They are sorted, unless they are too many for memory."""
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
    """The rows by ledger, fragment and bookie. More than ``spool.IN_MEMORY`` rows stay in the order
    in which they came; they are in a temporary file, and are read from it at each use."""
    dry_run: bool = False
    """Whether the report is only a plan. A check changes nothing, but it is not a plan."""
    duration_ms: int = 0
    frame: Callable[[pa.Table], Any] | None = field(default=None, repr=False, compare=False)
    """Turns a table into a DataFrame; the session sets it."""
    columns: type[Row] = Row
    """The class of the rows, set even when there are none."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the session, which cannot be pickled; the rows are in it."""
        return {**self.__dict__, "frame": None}

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do. A plan that has work in it is not complete."""
        return all(row.status.is_done for row in self.rows)

    @property
    def unfinished(self) -> Sequence[Row]:
        """The rows that are left, each with its reason. In a plan: what a run would leave."""
        left = Spool(
            row for row in self.rows if not row.status.is_done and row.status is not Outcome.PLANNED
        )
        return list(left) if left.is_in_memory else left

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows by status."""
        return dict(sorted(Counter(row.status.value for row in self.rows).items()))

    @property
    def without_rows(self) -> str:
        """The text that a report without rows shows instead of counts."""
        return "nothing to do"

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table: ``ROW_SCHEMA``, then the job's own columns."""
        return pa.Table.from_batches(self.batches(), schema=self.columns.SCHEMA)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, for a caller that writes more rows than memory holds."""
        rows = iter(self._dicts())
        while some := list(islice(rows, ROWS_AT_ONCE)):
            yield pa.RecordBatch.from_pylist(some, schema=self.columns.SCHEMA)

    def to_df(self) -> Any:
        """Return the rows as a Spark DataFrame."""
        assert self.frame is not None, "made without a session"
        return self.frame(self.to_arrow())

    def to_dict(self) -> dict[str, Any]:
        """Return one object for programs: the keys that every job prints with ``--json``."""
        return {**self.totals(), "rows": list(self._dicts())}

    def totals(self) -> dict[str, Any]:
        """Return the object of ``to_dict`` without the rows."""
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
        """Yield the first ``most`` rows by column, in the order of the columns."""
        empty = dict.fromkeys(self.columns.SCHEMA.names)
        return (empty | row.to_dict() for row in islice(self.rows, most))

    def __repr__(self) -> str:
        # The rows are left out, because there may be a million.
        return f"{type(self).__name__}({self._title()})"

    def _title(self) -> str:
        """Return the job in one line: how many rows ended with which outcome."""
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
    """The report of jobs that close ledgers or copy entries: ``recover_ledgers``,
    ``recover_bookie``, ``refill_bookie``, ``repair_ledgers``, ``rereplicate``.
    """


class CheckReport(Report):
    """The report of ``check_ledgers``: the shares of fragments that have a fault."""


def counted(count: int, what: str) -> str:
    """Return a count with its noun: ``1 ledger``, ``2,000 ledgers``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def some_of(ids: Sequence[object], most: int = 10) -> str:
    """Return the first of these ids and how many more follow; ``none`` for an empty sequence."""
    more = len(ids) - most
    listed = ", ".join(map(str, ids[:most])) or "none"
    return f"{listed} and {more:,} more" if more > 0 else listed


def shown(value: object) -> str:
    """Return a row's value as text for people."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def check_report_file(path: str) -> None:
    """Refuse a file that cannot be written, before the job starts.

    Raises:
        InvalidArgumentError: the file's ending is not a known one, or its directory does not exist.
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
    """Write the rows of a report to a file: all of them or none. They need not fit in memory.

    Args:
        path: a new file, or one to replace: ``.parquet``, or ``.jsonl`` with one object a row.

    Raises:
        InvalidArgumentError: see ``check_report_file``; or writing failed.
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
