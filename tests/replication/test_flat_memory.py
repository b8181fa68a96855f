"""The driver of a job over very many ledgers keeps no more in memory than of a few.

Live objects are counted while jobs run, over thousands of ledgers that are metadata only: nobody
does the work, and what it would come to is made up.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from spark_bookkeeper.autorecovery import scan
from spark_bookkeeper.autorecovery.backlog import FreeTask
from spark_bookkeeper.autorecovery.checks import check_all_ledgers
from spark_bookkeeper.autorecovery.losses import AtRisk, losses
from spark_bookkeeper.autorecovery.publishing import publish_lost_bookies
from spark_bookkeeper.autorecovery.replication import TaskWork
from spark_bookkeeper.autorecovery.scan import ScanBatch, scan_batch
from spark_bookkeeper.autorecovery.table import underreplicated_table
from spark_bookkeeper.autorecovery.worker import ReplicationWorker, rereplicate
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import custom_metadata
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.store import LedgerRange, Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import job as frame
from spark_bookkeeper.replication.check_ledgers import CheckWork, Finding, check_ledgers
from spark_bookkeeper.replication.fragments import Todo
from spark_bookkeeper.replication.rebalance import Rebalance, rebalance
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.recover_ledgers import Recovered, RecoverWork, recover_ledgers
from spark_bookkeeper.replication.recovery_plan import PlannedShare
from spark_bookkeeper.replication.refill_bookie import Refill, refill_bookie
from spark_bookkeeper.replication.refill_ledger import RefillWork
from spark_bookkeeper.replication.report import Outcome, Report, Row, write_report
from spark_bookkeeper.replication.rereplicate import FragmentWork, ShareCopied
from spark_bookkeeper.replication.runner import ItemT, Progress, ResultT, Step
from spark_bookkeeper.replication.stragglers import Straggler
from spark_bookkeeper.runtime import spool
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.support.autorecovery import CONFIG

COUNTED = (
    *(CheckWork, Finding, FragmentWork, LedgerMetadata, PlannedShare, Recovered, RecoverWork),
    *(RefillWork, Row, ShareCopied, Todo, Versioned, AtRisk, Task, TaskWork, FreeTask),
)

AT_ONCE = 16
"""Items of a group, and of a list before it goes to a file, in these tests."""


def alive() -> int:
    """Objects of the kinds that are counted."""
    return sum(type(each) in COUNTED or is_row_of_table(each) for each in gc.get_objects())


def is_row_of_table(value: object) -> bool:
    """Of a table of tasks, before it is one."""
    return type(value) is dict and "missing_replicas" in value


class Counting:
    """A runner that does nothing, and counts what is alive while it is asked to."""

    is_elsewhere = False
    width = 1

    def __init__(self) -> None:
        gc.collect()
        self.before = alive()  # what other tests have left
        self.most = 0
        self.groups = 0
        self.context: ClientContext | None = None
        """With which a scan is done, and not made up."""
        self.published: Published | None = None
        """Tasks that go when their work is done."""
        self.stored: Sized = ()
        """What the metadata store keeps of its own, in this process only because it is a twin."""

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        self.groups += 1
        results = [self._result(item) for item in items]  # as of a Spark job all are there first
        if self.groups % 4 == 0 or isinstance(items[0], ScanBatch):
            self.look()
        yield from results

    def slowest(self) -> Sequence[Straggler]:
        return ()

    def look(self) -> None:
        self.most = max(self.most, alive() - self.before - len(self.stored))

    def _result(self, item: Any) -> Any:
        if isinstance(item, ScanBatch):
            assert self.context is not None
            (scanned,) = scan_batch(self.context, item)
            return scanned
        if isinstance(item, RecoverWork):
            return Recovered(item.ledger_id, Outcome.CLOSED, None, EntryId(0), EntryId(9), 10)
        if isinstance(item, CheckWork):
            entries = (EntryId(0), EntryId(9))
            return Finding(item.ledger_id, Outcome.MISSING, "made up", *entries, BookieId("b:2"))
        if isinstance(item, TaskWork):
            assert self.published is not None
            del self.published[item.ledger_id]
            return Row(item.ledger_id, "task", Outcome.REPLICATED, "made up")
        return ShareCopied(item.ledger_id, Outcome.REPLICATED, None, EntryId(0), EntryId(9))


class Published(dict[LedgerId, Versioned[Task]]):
    """A task for each ledger, made when it is asked for."""

    def __init__(self, ids: range) -> None:
        super().__init__()
        self._ids = dict.fromkeys(ids)

    def __iter__(self) -> Iterator[LedgerId]:
        return iter(list(map(LedgerId, self._ids)))

    def __len__(self) -> int:
        return len(self._ids)

    def __setitem__(self, ledger_id: LedgerId, task: Versioned[Task]) -> None:
        assert ledger_id in self._ids

    def __delitem__(self, ledger_id: LedgerId) -> None:
        del self._ids[ledger_id]

    def get(self, ledger_id: LedgerId, default: Any = None) -> Any:
        if ledger_id not in self._ids:
            return default
        return Versioned(Task(ledger_id, (BookieId("b:1"),), 1), 0)


class Ledgers:
    """Many of them, of which nothing is kept in memory: they are made when they are asked for."""

    def __init__(self, ground: Ground, count: int, is_open: bool, needs_refill: bool) -> None:
        self.ids = range(count)
        bookies = ground.bookie_ids
        state = LedgerState.OPEN if is_open else LedgerState.CLOSED
        incarnations = {r.bookie_id: r.incarnation for r in ground.context.store.registrations()}
        if needs_refill:
            incarnations = dict.fromkeys(bookies, "before")

        def made(ledger_id: int) -> Versioned[LedgerMetadata]:
            first = ledger_id % 2
            ensemble = (bookies[0], bookies[1 + first], bookies[2 - first])
            metadata = LedgerMetadata(
                Quorum(3, 3, 2),
                state,
                (Fragment(EntryId(0), ensemble),),
                last_entry_id=None if is_open else EntryId(9),
                length_bytes=None if is_open else 1000,
                digest_type=DigestType.CRC32C,
                password=b"",
                custom_metadata=custom_metadata(
                    f"nonce{ledger_id}", SCHEMA, None, 1 << 20, incarnations
                ),
            )
            return Versioned(metadata, 0, 0)

        self.made: Callable[[int], Versioned[LedgerMetadata]] = made


SCHEMA = pyarrow.schema([("payload", pyarrow.binary())])


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "GROUP_ITEMS", AT_ONCE)
    monkeypatch.setattr("spark_bookkeeper.replication.recover_bookie.GROUP_ITEMS", AT_ONCE)
    monkeypatch.setattr("spark_bookkeeper.replication.report.ROWS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(scan, "BATCH_LEDGERS", AT_ONCE)
    monkeypatch.setattr(scan, "LEDGERS_FOR_SPARK", 1)
    monkeypatch.setattr(scan, "BATCHES_AT_ONCE", 8)
    monkeypatch.setattr("spark_bookkeeper.autorecovery.tasks.TASKS_PLANNED", AT_ONCE)
    for module in ("checks", "losses", "table", "tasks"):
        monkeypatch.setattr(f"spark_bookkeeper.autorecovery.{module}.LEDGERS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(spool, "IN_MEMORY", AT_ONCE)


def run(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: Callable[[Any, Any, BookieId, Progress], Any],
    count: int,
    *,
    is_open: bool = False,
) -> tuple[Any, Counting]:
    ground = Ground(directory, bookies=5)
    needs_refill = job in (refilled, audited, audited_elsewhere)
    ledgers = Ledgers(ground, count, is_open, needs_refill=needs_refill)
    context = ground.client(InlineRuntime())
    lots = [
        LedgerRange(LedgerId(first), first + AT_ONCE, AT_ONCE) for first in range(0, count, AT_ONCE)
    ]
    monkeypatch.setattr(context.store, "ledger_ranges", lambda _: iter(lots))
    monkeypatch.setattr(
        context.store,
        "ledger_ids",
        lambda among=None: iter(range(among.first, among.end) if among else ledgers.ids),
    )
    runner = Counting()
    runner.context = context
    runner.stored = ground.cluster.registers
    if job in (replicated, all_checked, shown):
        runner.published = Published(ledgers.ids)
        monkeypatch.setattr(ground.cluster.tasks, "tasks", runner.published)
    read = 0

    def read_ledgers(ids: Iterable[LedgerId], **_: object) -> Iterator[Any]:
        nonlocal read
        for ledger_id in ids:
            read += 1
            if read % 500 == 0:
                runner.look()
            yield ledger_id, ledgers.made(ledger_id)

    monkeypatch.setattr(context.store, "read_ledgers", read_ledgers)
    seen = 0

    def progress(phase: str, done: int, total: int, size: int) -> None:
        nonlocal seen
        seen += 1
        if seen % 500 == 0:
            runner.look()

    report = job(context, runner, ground.bookie_ids[0], progress)
    runner.look()
    return report, runner


def recovered(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    return recover_bookie(
        context, runner, BookieRecovery((bookie,), even_if_alive=True), progress=progress
    )


def planned(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    wish = BookieRecovery((bookie,), even_if_alive=True)
    return recover_bookie(context, runner, wish, dry_run=True, progress=progress)


def refilled(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    return refill_bookie(context, runner, Refill(bookie), progress=progress)


def checked(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    return check_ledgers(context, runner, None, 0, progress=progress)


def closed(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    return recover_ledgers(context, runner, None, progress=progress)


def audited(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    numbers = count()

    def look(*_: object) -> None:
        if next(numbers) % 8 == 7:
            runner.look()

    return publish_lost_bookies(context, dry_run=True, progress=look)


def audited_elsewhere(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    return publish_lost_bookies(context, runner=runner, dry_run=True, progress=progress)


def moved(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    wish = Rebalance(tolerance_percent=0)
    return rebalance(context, runner, wish, dry_run=True, progress=progress)


@dataclass(frozen=True)
class Found:
    """What is not a report."""

    rows: Sequence[Any]


def replicated(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    worker = ReplicationWorker(context, runner, CONFIG, "one")
    return rereplicate(context, worker, progress=progress)


def all_checked(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Report:
    return check_all_ledgers(context, runner)


def shown(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Found:
    return Found(underreplicated_table(context))


def weighed(context: Any, runner: Any, bookie: BookieId, progress: Progress) -> Found:
    known = [each.bookie_id for each in context.store.registrations()]
    return Found(losses(context, known[:2]).at_risk)


@pytest.mark.parametrize(
    "count", [20 * AT_ONCE, pytest.param(100 * AT_ONCE, marks=pytest.mark.full)]
)
@pytest.mark.parametrize(
    ("job", "is_open"),
    [
        *[(recovered, False), (closed, True), (audited, False), (shown, False)],
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in [
                *[(recovered, True), (planned, False), (refilled, False), (refilled, True)],
                *[(checked, False), (audited_elsewhere, False), (moved, False)],
                *[(replicated, False), (all_checked, False), (weighed, False)],
            ]
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else ("open" if value else "closed"),
)
def test_memory_does_not_grow_with_the_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Any, is_open: bool, count: int
) -> None:
    count *= 3 if job is moved else 1  # a third of them is to be moved
    if job is replicated:  # of whom it is the driver's memory that is to be seen, not the reading
        count = min(count, 100 * AT_ONCE)
    report, seen = run(tmp_path, monkeypatch, job, count, is_open=is_open)

    assert len(report.rows) >= count // 4
    assert seen.most < 10 * AT_ONCE, "a few groups, however many ledgers there are"


def test_a_report_that_is_in_a_file_says_what_one_in_memory_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, _ = run(tmp_path / "g", monkeypatch, checked, 300)

    assert len(report.rows) == 300
    assert [row.ledger_id for row in report.unfinished] == list(range(300))
    assert report.counts == {"missing": 300}
    assert not report.is_complete
    told = report.to_dict()
    assert (told["ledgers"], told["fragments"], len(told["rows"])) == (300, 300, 300)
    assert report.to_arrow().num_rows == 300
    assert "250 more" in report._repr_html_()
    for name in ("report.parquet", "report.jsonl"):
        write_report(report, str(tmp_path / name))
    table = pyarrow.parquet.read_table(tmp_path / "report.parquet")
    assert table.to_pylist() == told["rows"]
    lines = (tmp_path / "report.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == told["rows"]
    assert {each.name for each in tmp_path.iterdir()} == {"g", "report.parquet", "report.jsonl"}


def test_a_report_cannot_be_written_just_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, _ = run(tmp_path / "g", monkeypatch, checked, 1)

    for path in ("report.txt", "nowhere/report.jsonl"):
        with pytest.raises(InvalidArgumentError):
            write_report(report, str(tmp_path / path))
    (tmp_path / "there.jsonl").mkdir()
    with pytest.raises(InvalidArgumentError, match="could not be written"):
        write_report(report, str(tmp_path / "there.jsonl"))
    assert not list(tmp_path.glob(".*"))
