"""The facts that a cluster's page shows, read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from spark_bookkeeper.agent.space import space_table
from spark_bookkeeper.autorecovery.table import why_waiting
from spark_bookkeeper.client.ledger import live_members, needs_refill, registered_incarnations
from spark_bookkeeper.client.presence import age, ledgers_with_writers
from spark_bookkeeper.client.views import bookie_rows
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.underreplication import REFILL, fewest_copies
from spark_bookkeeper.session import BookKeeper

_FIRST: Final = (
    "zookeeper",
    "bookies",
    "entries without a live copy",
    "entries below their ack quorum",
    "fragments on lost bookies",
    "fragments on replaced disks",
    "bookie ",
    "ledger metadata",
    "under-replicated ledgers",
    "job ",
)
"""Findings by the beginnings of their names, in the order in which they need attention."""


@dataclass(frozen=True)
class Lacking:
    """A ledger that has fewer copies of some entries than it should."""

    ledger_id: LedgerId
    missing: tuple[str, ...]
    """Bookies whose copies it lacks."""
    live_copies: int | None
    """The least number of live copies of an entry; ``None`` if it is unknown."""
    since_ms: int | None
    """When an auditor published it; ``None`` if none has."""
    reason: str
    """Why it still lacks them."""


@dataclass(frozen=True)
class Facts:
    """The facts of a page, as of one moment."""

    metadata_uri: str
    at_ms: int
    diagnoses: Sequence[Diagnosis]
    """Problems first, then warnings; the most urgent first."""
    bookies: Sequence[Mapping[str, Any]]
    """Rows of ``bk.bookies()``."""
    ledgers: Mapping[LedgerId, LedgerMetadata]
    writers: Mapping[LedgerId, str]
    """The state of the writer of each ledger that is not closed."""
    limbo: Mapping[LedgerId, Set[BookieId]]
    """The bookies that need refill, by the ledger that relies on them."""
    lacking: Sequence[Lacking]
    """The ledgers with the fewest live copies come first."""
    jobs: Sequence[Mapping[str, Any]]
    """Rows of ``bk.jobs()``: running jobs first, then the newest."""
    garbage: Sequence[Mapping[str, Any]]
    """Rows of ``bk.space()``: garbage, and bookies that did not answer."""

    @property
    def lost(self) -> set[str]:
        """The bookies that are not registered."""
        return {row["bookie_id"] for row in self.bookies if row["state"] == "lost"}


def look(bk: BookKeeper) -> Facts:
    """Read the facts of a page: metadata, registrations, and a probe of every bookie."""
    at_ms = bk.context.cluster_ms()
    ledgers: dict[LedgerId, LedgerMetadata] = {}
    writers: dict[LedgerId, str] = {}
    for ledger_id, found, state in ledgers_with_writers(bk.context):
        if isinstance(found, MetadataFormatError):
            continue  # the diagnoses report it
        ledgers[ledger_id] = found
        if state is not None:
            writers[ledger_id] = state
    jobs = sorted(bk.jobs_arrow().to_pylist(), key=lambda row: row["state"] != "running")
    tasks = bk.underreplicated_arrow().to_pylist()
    registered = registered_incarnations(bk.context.bookies.registrations())
    limbo = {i: empty for i, m in ledgers.items() if (empty := needs_refill(m, registered))}
    lacking = sorted(
        _lacking(registered, ledgers, limbo, tasks, at_ms),
        key=lambda each: (each.live_copies is None, each.live_copies or 0, each.ledger_id),
    )
    found_wrong = [*cluster_diagnoses(bk.context), *_of_jobs(jobs, at_ms)]
    return Facts(
        bk.metadata_uri,
        at_ms,
        sorted(found_wrong, key=urgency),
        list(bookie_rows(bk.context)),
        ledgers,
        writers,
        limbo,
        lacking,
        jobs,
        space_table(bk.context, garbage_most=1_000).to_pylist(),
    )


def urgency(found: Diagnosis) -> tuple[int, int]:
    """Return the sort key of a finding: the lowest needs care first."""
    rank = next((n for n, begin in enumerate(_FIRST) if found.check.startswith(begin)), len(_FIRST))
    return ("problem", "warning", "ok").index(found.verdict), rank


def _lacking(
    registered: dict[BookieId, str],
    ledgers: Mapping[LedgerId, LedgerMetadata],
    limbo: Mapping[LedgerId, Set[BookieId]],
    tasks: Sequence[Mapping[str, Any]],
    at_ms: int,
) -> Iterator[Lacking]:
    """Yield published ledgers that lack copies, and those that are not published yet."""
    published = set()
    for row in tasks:
        ledger_id = LedgerId(row["ledger_id"])
        published.add(ledger_id)
        metadata = ledgers.get(ledger_id)
        is_whole = metadata is not None and row["live_copies"] == metadata.quorum.write_quorum_size
        yield Lacking(
            ledger_id,
            tuple(sorted({*row["missing_replicas"], *_away(metadata, registered)})),
            row["live_copies"],
            None if row["marked_at"] is None else _ms(row["marked_at"]),
            "; ".join(
                [*_to_refill(limbo.get(ledger_id, ())), why_waiting(row, at_ms, is_whole=is_whole)]
            ),
        )
    for ledger_id, metadata in ledgers.items():
        missing = _away(metadata, registered)
        if missing and ledger_id not in published:
            live = live_members(metadata, registered)
            yield Lacking(
                ledger_id,
                tuple(sorted(missing)),
                fewest_copies(metadata, live),
                None,
                "; ".join(_to_refill(limbo.get(ledger_id, ())))
                or "no auditor has published it: none runs, or it waits for the bookie to come "
                "back",
            )


def _away(metadata: LedgerMetadata | None, registered: Mapping[BookieId, str]) -> Set[BookieId]:
    """Return bookies that a ledger names, but that are absent or were formatted again since."""
    if metadata is None:
        return set()
    return metadata.bookies() - live_members(metadata, registered)


def _to_refill(bookies: Iterable[BookieId]) -> Iterator[str]:
    for bookie in sorted(bookies):
        refill = REFILL.format(bookie)
        yield f"in limbo on {bookie}, which was formatted again: {refill} copies its share back"


def _of_jobs(jobs: Sequence[Mapping[str, Any]], at_ms: int) -> Iterator[Diagnosis]:
    """Yield jobs that died, failed, or left work, unless the same job was started again since."""
    again: set[tuple[str, str | None]] = set()
    for row in sorted(jobs, key=lambda row: -_ms(row["started_at"])):
        same = (row["job"], row["about"])
        if same in again:
            continue
        again.add(same)
        check = f"job {job_name(row)}"
        if row["state"] == "silent":
            yield Diagnosis(
                check,
                "warning",
                f"gave its last sign of life {age(_ms(row['seen_at']), at_ms)}: {row['by']}",
                "if its process is gone, run it again: it does the rest",
            )
        elif row["state"] in ("failed", "left undone"):
            left = ", ".join(f"{n:,} {status}" for status, n in row["outcomes"])
            yield Diagnosis(
                check,
                "warning",
                f"{row['state']} {age(_ms(row['seen_at']), at_ms)}: {row['error'] or left}",
                "its report has the reasons; make good what it found, and run it again"
                if row["job"] == "check_ledgers"
                else "run it again when what was in its way is gone; its report has the reasons",
            )


def job_name(row: Mapping[str, Any]) -> str:
    """Return a job's name, with its subject."""
    return f"{row['job']} of {row['about']}" if row["about"] else str(row["job"])


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
