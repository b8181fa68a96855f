"""Which items take long compared with the others, and who is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from typing_extensions import override

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.replication import progress_reporter as telling
from spark_bookkeeper.replication import stragglers as under_way
from spark_bookkeeper.replication.check_ledgers import CheckWork
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.pieces import PieceWork
from spark_bookkeeper.replication.recent_jobs import jobs_table, noted
from spark_bookkeeper.replication.refill_ledger import RefillWork
from spark_bookkeeper.replication.report import Report
from spark_bookkeeper.replication.rereplicate import FragmentWork
from spark_bookkeeper.replication.runner import Bounds, LocalRunner, Progress, Step
from spark_bookkeeper.replication.stragglers import (
    RunningItems,
    Straggler,
    name_of,
    said,
    with_others,
)
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import Ground
from tests.support.pieces import Done

A, B = BookieId("a:1"), BookieId("b:1")


class Clock(ThreadRuntime):
    """Time stands still but for what a test adds to it."""

    time = 0.0

    @override
    def now(self) -> float:
        return self.time

    @override
    def wall_ms(self) -> int:
        return round(self.time * 1000)


def test_what_takes_long_compared_with_the_others_is_slow() -> None:
    clock = Clock()
    work = RunningItems(clock)
    for _ in range(5):
        with work.doing(lambda: "usual"):
            clock.time += 8
    with ExitStack() as at_once:
        at_once.enter_context(work.doing(lambda: "first"))
        clock.time += 20
        at_once.enter_context(work.doing(lambda: "second"))
        clock.time += 12
        assert work.slowest() == []
        clock.time += 1
        assert work.slowest() == [Straggler("first", 33.0)]
        clock.time += 30
        assert work.slowest() == [Straggler("first", 63.0), Straggler("second", 43.0)]
    assert work.slowest() == []


def test_what_was_begun_just_now_is_not_slow_and_few_are_named() -> None:
    clock = Clock()
    work = RunningItems(clock)
    with ExitStack() as at_once:
        for number in range(10):
            at_once.enter_context(work.doing(lambda number=number: f"{number}"))  # type: ignore[misc]
            clock.time += 1
        assert work.slowest() == []
        clock.time += 7
        assert [slow.what for slow in work.slowest()] == ["0", "1", "2"]


def test_of_those_that_are_done_together_each_needs_its_part() -> None:
    clock = Clock()
    work = RunningItems(clock)
    with work.doing(lambda: "earlier", 100):
        clock.time += 100
    with work.doing(lambda: "together", 100):
        clock.time += 300
        assert work.slowest() == []
        clock.time += 101
        assert work.slowest() == [Straggler("together", 401.0)]


def test_what_failed_is_no_longer_at_work() -> None:
    clock = Clock()
    work = RunningItems(clock)

    def interrupted() -> None:
        with work.doing(lambda: "it"):
            clock.time += 100
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert work.slowest() == []


def test_an_item_is_called_by_ledger_fragment_and_bookies() -> None:
    fragment = FragmentWork(LedgerId(7), EntryId(0), (A,), B, False, None)
    piece = PieceWork(LedgerId(7), EntryId(0), A, EntryId(120), EntryId(130), B, (A,), None, 9)
    assert fragment.name() == "ledger 7 from entry 0 of a:1 to b:1"
    assert piece.name() == "ledger 7 from entry 120 of a:1 to b:1"
    assert CheckWork(LedgerId(7), 100).name() == "ledger 7"
    share = CheckWork(LedgerId(7), 100, (EntryId(5), A))
    assert share.name() == "ledger 7 from entry 5 of a:1"
    assert RefillWork(LedgerId(7), B, "1", None).name() == "ledger 7 to b:1"
    assert with_others("ledger 7", 0) == "ledger 7"
    assert with_others("ledger 7", 1) == "ledger 7 and 1 other with it"
    assert with_others("ledger 7", 2) == "ledger 7 and 2 others with it"
    assert said([]) == ""
    assert (
        said([Straggler("ledger 7", 33.4), Straggler("b", 12)])
        == ", slowest ledger 7 for 33 s and b for 12 s"
    )


@dataclass(frozen=True, slots=True)
class Shelf:
    """An item with a ledger."""

    ledger_id: LedgerId
    size_bytes: int = 0

    def name(self) -> str:
        return name_of(self.ledger_id)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_progress_and_the_notes_of_jobs_name_what_is_slow(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """One item does not go on before it was named."""
    monkeypatch.setattr(under_way, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(telling, "TELL_SECONDS", 0.01)
    monkeypatch.setattr("spark_bookkeeper.replication.recent_jobs.FIRST_SECONDS", 0.01)
    monkeypatch.setattr("spark_bookkeeper.replication.recent_jobs.BEAT_SECONDS", 0.01)
    named, is_noted = threading.Event(), threading.Event()
    heard: list[str] = []

    def do(_: ClientContext, item: Shelf) -> Sequence[Done]:
        if item.ledger_id == 7:
            assert named.wait(60)
            assert is_noted.wait(60)
        return [Done(int(item.ledger_id))]

    def do_many(
        context: ClientContext, items: Sequence[Shelf], _: Bounds
    ) -> Sequence[Sequence[Done]]:
        return [do(context, item) for item in items]

    def hear(phase: str, done: int, total: int, size_bytes: int) -> None:
        heard.append(phase)
        if "slowest ledger 7" in phase:
            named.set()
            phases = jobs_table(ground.context).column("phase").to_pylist()
            if any("slowest ledger 7" in (each or "") for each in phases):
                is_noted.set()

    step = Step(
        "working", do, lambda item, failure: Done(-1, reason=failure.reason),
        do_many=do_many if together else None,
    )  # fmt: skip
    items = [Shelf(LedgerId(number)) for number in ((7, 8) if together else (5, 6, 7, 8))]

    def run(progress: Progress) -> Report:
        job = Job("a_job", ground.context, LocalRunner(ground.context, width=2), progress)
        return job.report(Report, job.run(step, items))

    report = noted(ground.context, "a_job", None, hear, run)

    assert sorted(row.ledger_id for row in report.rows) == [item.ledger_id for item in items]
    expected = "slowest ledger 7 and 1 other with it for" if together else "slowest ledger 7 for"
    assert any(expected in phase for phase in heard)
    assert "slowest" not in heard[-1]
