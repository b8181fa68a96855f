"""Notes of the jobs on a cluster, recent and running, for people.

The notes are one register of the metadata store, which every client can read. A running job writes
a sign of life to its note now and then; when the job ends, the note says what it did. Times are of
the cluster's clock, because people compare notes of many machines. No code depends on notes: a
failure to write one does not affect the job.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.protocol.stored_json import decoded
from spark_bookkeeper.replication.report import Outcome, Report, Row
from spark_bookkeeper.replication.runner import Progress
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.secrecy import without_passwords

_NAME: Final = "jobs/recent"

MOST_NOTES: Final = 40
"""The most notes that are kept, the newest. One kind gets at most half if others would go."""

FIRST_SECONDS: Final = 1.0
"""A job that runs this long gets its note before it ends."""

BEAT_SECONDS: Final = 5.0
"""The time between two signs of life."""

SILENT_SECONDS: Final = 60
"""A job without a sign of life for this long counts as dead."""

JOINED_SECONDS: Final = 600
"""A worker's note is continued if its next work begins within this time of the note's end."""

_ABOUT_MOST: Final = 400
"""The most characters of ``about`` in a note that may be joined; the newest are kept."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

JobState = Literal["running", "silent", "complete", "left undone", "failed"]

JOBS: Final = pa.schema(
    [
        pa.field("job", pa.string(), nullable=False),
        pa.field("about", pa.string()),
        pa.field("state", pa.string(), nullable=False),
        pa.field("started_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("seen_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("ended_at", pa.timestamp("us", tz="UTC")),
        pa.field("phase", pa.string()),
        pa.field("done", pa.int64(), nullable=False),
        pa.field("total", pa.int64(), nullable=False),
        pa.field("ledgers", pa.int64(), nullable=False),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("outcomes", pa.map_(pa.string(), pa.int64()), nullable=False),
        pa.field("error", pa.string()),
        pa.field("by", pa.string(), nullable=False),
    ]
)

ReportT = TypeVar("ReportT", bound=Report)


@dataclass(frozen=True, slots=True)
class JobNote:
    """One job: which process runs it, how far it is, and its result."""

    token: str
    job: str
    by: str
    """The process that runs the job, in words by which people find it."""
    started_ms: int
    seen_ms: int
    """The time of its last sign of life."""
    about: str | None = None
    """The job's subject, such as ``bookie 10.0.0.3:3181``."""
    ended_ms: int | None = None
    phase: str | None = None
    done: int = 0
    total: int = 0
    ledgers: int = 0
    entries: int = 0
    bytes: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """The number of rows of its report, by status."""
    error: str | None = None
    """Why the job ended without a report."""

    def state(self, now_ms: int) -> JobState:
        """Return whether the job runs or is silent, or how it ended."""
        if self.ended_ms is None:
            return "silent" if now_ms - self.seen_ms > SILENT_SECONDS * 1000 else "running"
        if self.error is not None:
            return "failed"
        is_done = all(Outcome(status).is_done for status in self.outcomes if status in _STATUSES)
        return "complete" if is_done else "left undone"


_KNOWN: Final = frozenset(each.name for each in fields(JobNote))
_STATUSES: Final = frozenset(outcome.value for outcome in Outcome)


class Tally:
    """Counts rows one by one, so that no row is kept."""

    def __init__(self) -> None:
        self.ledger_ids: set[int] = set()
        self.entries = 0
        self.bytes = 0
        self.outcomes: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        self.ledger_ids.add(row.ledger_id)
        self.entries += row.entries
        self.bytes += row.bytes
        self.outcomes[row.status.value] += 1

    def on(self, note: JobNote) -> JobNote:
        """Return the note with these counts as the job's result."""
        return replace(
            note,
            ledgers=len(self.ledger_ids),
            entries=self.entries,
            bytes=self.bytes,
            outcomes=dict(self.outcomes),
        )


def noted(
    context: ClientContext,
    job: str,
    about: str | None,
    progress: Progress,
    run: Callable[[Progress], ReportT],
) -> ReportT:
    """Run a job and keep its note: from its first second on, and when it ends.

    A job that is refused at once leaves no note. A job that fails at work, or is interrupted, does.

    Args:
        about: the job's subject.
        progress: gets every progress report of the job.
        run: runs the job.
    """
    keeper = _Keeper(context, job, about, progress)
    try:
        report = run(keeper.hear)
    except BaseException as error:
        keeper.failed(error)
        raise
    keeper.ended(report)
    return report


def note_deletion(
    context: ClientContext, job: str, about: str, ledgers: Sequence[Deletion] = ()
) -> None:
    """Note that this process has just deleted ledgers."""
    tally = Tally()
    for each in ledgers:
        tally.add(Row(each.ledger_id, "delete", Outcome.DELETED, bytes=each.length_bytes or 0))
    about = without_passwords(about)[-_ABOUT_MOST:]
    add_note(context, job, str(WriterInfo.of_this_process()), 0.0, tally, about)


def add_note(
    context: ClientContext, job: str, by: str, took_seconds: float, tally: Tally, about: str = ""
) -> None:
    """Note work that has just ended; join it to the process's last such note if that is recent."""
    with suppress(BookKeeperError):
        now_ms = context.cluster_ms()
        started_ms = now_ms - round(took_seconds * 1000)
        token = context.runtime.token()
        new = tally.on(JobNote(token, job, by, started_ms, now_ms, about or None, now_ms))
        _change(context.store.registers, _joining(new))


def _joining(new: JobNote) -> Callable[[tuple[JobNote, ...]], tuple[JobNote, ...]]:
    def step(notes: tuple[JobNote, ...]) -> tuple[JobNote, ...]:
        if any(note.token == new.token for note in notes):
            return notes
        for number, note in enumerate(notes):
            is_same = (note.job, note.by) == (new.job, new.by)
            if is_same and new.started_ms - (note.ended_ms or 0) < JOINED_SECONDS * 1000:
                both = Counter(note.outcomes) + Counter(new.outcomes)
                told = [x for x in (note.about or "").split(", ") if x != new.about] + [new.about]
                joined = replace(
                    new,
                    about=", ".join(filter(None, told))[-_ABOUT_MOST:] or None,
                    started_ms=note.started_ms,
                    ledgers=note.ledgers + new.ledgers,
                    entries=note.entries + new.entries,
                    bytes=note.bytes + new.bytes,
                    outcomes=dict(both),
                )
                return (joined, *notes[:number], *notes[number + 1 :])
        return (new, *notes)

    return step


def read_notes(registers: Registers) -> tuple[JobNote, ...]:
    """Return all notes, the newest first. Raises ``MetadataUnavailableError``."""
    return _decode(registers.read(_NAME))


def jobs_table(context: ClientContext) -> pa.Table:
    """Return one row for each of the last jobs (``JOBS``), the newest first."""
    now_ms = context.cluster_ms()
    rows = [
        {
            **{name: value for name, value in asdict(note).items() if name in JOBS.names},
            "state": note.state(now_ms),
            "started_at": _time(note.started_ms),
            "seen_at": _time(note.seen_ms),
            "ended_at": None if note.ended_ms is None else _time(note.ended_ms),
            "outcomes": sorted(note.outcomes.items()),
        }
        for note in read_notes(context.store.registers)
    ]
    return pa.Table.from_pylist(rows, schema=JOBS)


class _Keeper:
    """Keeps the note of one job up to date while it runs."""

    def __init__(
        self, context: ClientContext, job: str, about: str | None, progress: Progress
    ) -> None:
        self._context = context
        self._progress = progress
        self._changed = context.runtime.condition()
        self._is_tried = self._is_written = False
        self._began = context.runtime.now()
        self._started_ms: int | None = None
        """The start by the cluster's clock, fixed at the first write of the note."""
        by = str(WriterInfo.of_this_process())
        about = None if about is None else without_passwords(about)  # a backup's URI may have one
        self._note = JobNote(context.runtime.token(), job, by, 0, 0, about)
        self._ended = AutoResetEvent(context.runtime)
        self._task = context.runtime.spawn("job-note", self._beat)

    def hear(self, phase: str, done: int, total: int, size_bytes: int) -> None:
        """Record progress, and pass it on; this is a ``Progress``."""
        with self._changed:
            self._note = replace(self._note, phase=phase, done=done, total=total, bytes=size_bytes)
        self._progress(phase, done, total, size_bytes)

    def ended(self, report: Report) -> None:
        tally = Tally()
        for row in report.rows:
            tally.add(row)
        self._end()
        self._write(tally.on(self._note), has_ended=True)

    def failed(self, error: BaseException) -> None:
        self._end()
        is_interrupted = isinstance(error, KeyboardInterrupt)
        is_refused = self._note.phase is None or isinstance(error, InvalidArgumentError)
        has_begun = is_interrupted or not is_refused
        if not self._is_written and (self._is_tried or not has_begun):
            return  # an interruption must not wait for a store that does not answer
        said = getattr(error, "message", None) or str(error) or type(error).__name__
        if is_interrupted:
            said = "interrupted"
        said = without_passwords(said)[:500]
        self._write(replace(self._note, error=said), has_ended=True)

    def _end(self) -> None:
        self._ended.set()
        self._task.join()

    def _beat(self) -> None:
        wait = FIRST_SECONDS
        while not self._ended.wait(wait):
            wait = BEAT_SECONDS
            with self._changed:
                note = self._note
            self._write(note)

    def _write(self, note: JobNote, *, has_ended: bool = False) -> None:
        self._is_tried = True
        with suppress(BookKeeperError):
            now_ms, ran = self._context.cluster_ms(), self._context.runtime.now() - self._began
            if self._started_ms is None:
                self._started_ms = now_ms - round(ran * 1000)
            new = replace(
                note,
                started_ms=self._started_ms,
                seen_ms=now_ms,
                ended_ms=now_ms if has_ended else None,
            )

            def step(notes: tuple[JobNote, ...]) -> tuple[JobNote, ...]:
                return (new, *(each for each in notes if each.token != new.token))

            _change(self._context.store.registers, step)
            self._is_written = True


def _change(
    registers: Registers, step: Callable[[tuple[JobNote, ...]], tuple[JobNote, ...]]
) -> None:
    def newest(notes: tuple[JobNote, ...]) -> tuple[JobNote, ...]:
        by_start = sorted(step(notes), key=lambda note: note.started_ms, reverse=True)
        jobs = [note.job for note in by_start]
        is_many = [jobs[:n].count(job) >= MOST_NOTES // 2 for n, job in enumerate(jobs)]
        kept = sorted(range(len(jobs)), key=is_many.__getitem__)[:MOST_NOTES]
        return tuple(by_start[n] for n in sorted(kept))

    change_register(registers, _NAME, _decode, _encode, newest)


def _encode(notes: Sequence[JobNote]) -> bytes:
    return json.dumps([asdict(note) for note in notes], ensure_ascii=False).encode(errors="replace")


def _decode(found: Versioned[bytes] | None) -> tuple[JobNote, ...]:
    """Return the notes; unreadable notes count as none, because people only look back at them."""
    if found is None:
        return ()
    try:
        return decoded(found.value, lambda told: tuple(_note(values) for values in told))
    except ValueError:
        return ()


def _note(values: dict[str, Any]) -> JobNote:
    note = JobNote(**{name: value for name, value in values.items() if name in _KNOWN})
    numbers = (note.started_ms, note.seen_ms, note.ended_ms or 0, note.done, note.total)
    counts = (note.ledgers, note.entries, note.bytes, *note.outcomes.values())
    texts = (note.token, note.job, note.by, note.about or "", note.phase or "", note.error or "")
    if not all(type(n) is int and abs(n) < 1 << 60 for n in (*numbers, *counts)):
        raise TypeError("a number was expected")
    if not all(type(text) is str for text in texts):
        raise TypeError("a text was expected")
    return note


def _time(ms: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:  # no clock shows this time: the note is damaged
        return _EPOCH
