"""What a piece of replication work did, row by row, and what it left."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

DONE: Final = frozenset(
    {"replicated", "closed", "gone", "no longer needed", "healthy", "published"}
)
"""Ends after which nothing is left to do. ``unrecoverable``, ``left`` and the findings of a
check are not among them."""

PLANNED: Final = "planned"
"""What a dry run says of work that a run would do."""

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
    """One ledger, or one bookie's share of one fragment, and how it ended."""

    ledger_id: int
    action: str
    """``recover``, ``copy``, ``metadata`` (nothing was stored there) or ``check``."""
    status: str
    reason: str | None = None
    """Why it is not done; ``None`` when it is."""
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


@dataclass(frozen=True)
class Report:
    """The outcome of one job."""

    job: str
    rows: tuple[Row, ...]
    dry_run: bool = False
    """Whether it is only a plan. A check changes nothing, and is no plan either: it was done."""
    duration_ms: int = 0
    frame: Callable[[pa.Table], Any] | None = field(default=None, repr=False, compare=False)
    """Turns a table into a DataFrame; given by the session."""

    def __getstate__(self) -> dict[str, Any]:
        """Without the session, which does not travel; the rows do."""
        return {**self.__dict__, "frame": None}

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do. A plan with work in it is not complete: it is not done."""
        return all(row.status in DONE for row in self.rows)

    @property
    def unfinished(self) -> Sequence[Row]:
        """The rows that are left, each with its reason; of a plan, what a run would leave too."""
        return [row for row in self.rows if row.status not in DONE and row.status != PLANNED]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by status."""
        return dict(sorted(Counter(row.status for row in self.rows).items()))

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table (``ROW_SCHEMA``)."""
        return pa.Table.from_pylist([asdict(row) for row in self.rows], schema=ROW_SCHEMA)

    def to_df(self) -> Any:
        """The rows as a Spark DataFrame."""
        assert self.frame is not None, "made without a session"
        return self.frame(self.to_arrow())

    def to_dict(self) -> dict[str, Any]:
        """One object for programs: the keys that every job prints with ``--json``."""
        return {
            "job": self.job,
            "dry_run": self.dry_run,
            "ledgers": len({row.ledger_id for row in self.rows}),
            "fragments": len({(r.ledger_id, r.first_entry_id) for r in self.rows}),
            "entries": sum(row.entries for row in self.rows),
            "bytes": sum(row.bytes for row in self.rows),
            "duration_ms": self.duration_ms,
            "complete": self.is_complete,
            "rows": [asdict(row) for row in self.rows],
        }

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{name}</th>" for name in ROW_SCHEMA.names)
        body = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in self.rows[:50])
        more = f"<p>… {len(self.rows) - 50} more</p>" if len(self.rows) > 50 else ""
        counts = ", ".join(f"{status} {n}" for status, n in self.counts.items())
        title = html.escape(f"{self.job}: {counts or 'nothing to do'}")
        return f"<p><b>{title}</b></p><table><tr>{heads}</tr>{body}</table>{more}"


class RecoveryReport(Report):
    """Of ``recover_bookie`` and ``recover_ledgers``."""


class CheckReport(Report):
    """Of ``check_ledgers``: the shares of fragments that are not as they should be."""


def _cells(row: Row) -> Iterator[str]:
    values = asdict(row)
    for name in ROW_SCHEMA.names:
        value = values[name]
        yield f"<td>{'' if value is None else html.escape(str(value))}</td>"
