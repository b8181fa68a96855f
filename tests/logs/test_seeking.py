"""The place in a log at a time, across ledgers and truncations."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.bulk import write_local
from spark_bookkeeper.errors import EntryUnreadableError, InvalidArgumentError
from spark_bookkeeper.logs import atomic, truncation
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.opening import recover_last
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.logs.staged_writes import StagedWrite
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import WRITER, Ground
from tests.hooks import silent
from tests.logs.conftest import USUAL, remove_files


class Clock(ThreadRuntime):
    """A calendar that is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.minutes = 0.0

    def now(self) -> float:
        return super().now() + self.minutes * 60

    def wall_ms(self) -> int:
        return int(at(self.minutes).timestamp() * 1000)


def at(minutes: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=minutes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ground(tmp_path: Path, clock: Clock) -> Ground:
    return Ground(tmp_path, runtime=clock)


def test_the_first_entry_at_or_after_a_time(clock: Clock, log: Log) -> None:
    assert log.position_at(at(0)) == Position.parse("0:0")
    places: list[Position] = []
    with log.become_writer() as writer:
        for ledger in range(4):
            for entry in range(3):
                clock.minutes = 10 * ledger + entry + 1
                places.append(writer.append(b"%d" % clock.minutes))
            clock.minutes += 1
            writer.roll()

    for time, found in ((-5, 0), (2, 1), (2.5, 2), (3.5, 3), (8, 3), (11, 3), (33, 11)):
        assert log.position_at(at(time)) == places[found], time
    assert [e.payload for e in log.entries(start_time=at(32))] == [b"32", b"33"]
    assert [e.payload for e in log.entries(None, places[5], start_time=at(11))] == [b"11", b"12"]
    assert log.read_arrow(start_time=at(33)).num_rows == 1
    assert log.read_arrow(start_time=at(99)).num_rows == 0
    assert [e.payload for e in log.entries(end_time=at(3))] == [b"1", b"2"]
    between = log.entries(start_time=at(3), end_time=at(12.5))
    assert [e.payload for e in between] == [b"3", b"11", b"12"]
    assert log.read_arrow(places[10], end_time=at(99)).num_rows == 2
    for start, stop in ((at(4), at(10)), (at(12), at(12)), (None, at(0)), (at(98), at(99))):
        assert log.read_arrow(start_time=start, end_time=stop).num_rows == 0
    end = log.position_at(at(99))
    assert end > places[-1]
    doomed = log.truncate(places[6], dry_run=True)
    assert doomed == [places[0].ledger_id, places[3].ledger_id]
    assert log.truncate(at(20), dry_run=True) == doomed
    assert log.read_arrow().num_rows == 12
    log.truncate(places[6])
    assert log.position_at(at(2)) == places[6]
    with pytest.raises(InvalidArgumentError, match="both say"):
        log.read_arrow(places[6], start_time=at(1))
    with pytest.raises(InvalidArgumentError, match="both say"):
        log.read_arrow(end=places[6], end_time=at(1))
    with pytest.raises(InvalidArgumentError, match="Exchange them"):
        log.read_arrow(start_time=at(2), end_time=at(1))


@pytest.mark.parametrize(
    ("clocks", "time", "since", "until"),
    [
        ("100 | 40 | 101", 70, "100 40 101", "100 40"),  # the second is an hour late
        ("10 | 100 | 40 | 41 | 101", 70, "100 40 41 101", "10 100 40 41"),
        ("50 100 | 40 | 101", 70, "100 40 101", "50 100 40"),
        ("10 | 100 | 50 | 51 | 52 | 101 | 102", 60, "100 50 51 52 101 102", "10 100 50 51 52"),
        ("10 | 11 | 900 | 12 | 13 | 14 | 15", 14, "900 12 13 14 15", "10 11 900 12 13"),
        ("10 | 11 | 12", 12, "12", "10 11"),
        ("10 110 | b:20 | c:21 | b:22 | 121", 70, "110 20 21 22 121", "10 110 20 21 22"),
        (f"10 110{' | b:70' * 17} | c:20", 70, f"110{' 70' * 17} 20", f"10 110{' 70' * 17} 20"),
    ],
    ids=["late", "twice", "behind a long one", "in the middle", "ahead", "right", "hosts", "many"],
)
def test_no_row_is_left_out_where_clocks_disagree(
    tmp_path: Path, clocks: str, time: int, since: str, until: str
) -> None:
    """What is read begins early rather than late, and ends late rather than early."""
    clock = Clock()
    ground = Ground(tmp_path, runtime=clock)
    log = create_log(ground.context, "orders", USUAL)
    for ledger in clocks.split(" | "):
        host, _, times = ledger.rpartition(":")
        clock.minutes = int(times.split()[0])
        there = replace(ground.client(), writer=replace(WRITER, host=host))
        with open_log(there, "orders").become_writer() as writer:
            for minutes in times.split():
                clock.minutes = int(minutes)
                writer.append(minutes.encode())

    found = log.entries(start_time=at(time)), log.entries(end_time=at(time))
    told = [" ".join(entry.payload.decode() for entry in entries) for entries in found]
    assert told == [since, until]


@pytest.mark.parametrize("first_is_open", [True, False])
def test_rows_that_came_while_a_later_ledger_was_being_written_are_not_read_past(
    ground: Ground, clock: Clock, log: Log, first_is_open: bool
) -> None:
    """A write begins its ledger at its start, and adds it to the log when all rows are there."""
    with log.become_writer() as writer:
        writer.append(b"0")
    clock.minutes = 10
    first = log.become_writer() if first_is_open else None
    before = None if first_is_open else atomic.stage(ground.context, "orders")
    clock.minutes = 20
    late = atomic.stage(ground.context, "orders")
    clock.minutes = 40
    if first is not None:
        place = first.append(b"40")
    else:
        assert before is not None
        committed = commit(ground, before, b"40")
        place = Position(committed, EntryId(0))
    clock.minutes = 60
    commit(ground, late, b"60")

    assert log.position_at(at(30)) == place
    assert [e.payload for e in log.entries(start_time=at(30))] == [b"40", b"60"]
    assert [e.payload for e in log.entries(start_time=at(50))] == [b"60"]
    assert len(list(log.entries(start_time=at(-50)))) == 3
    assert list(log.entries(start_time=at(70))) == []


@pytest.mark.parametrize("writes", [1, 2])
def test_rows_that_came_while_a_write_waited_to_be_added_are_not_read_past(
    ground: Ground, clock: Clock, log: Log, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """The rows of a write are as old as its end, and those before it in the log may be younger."""
    writer = log.become_writer()
    writer.append(b"0")
    places: list[Position] = []

    def late(*arguments: Any) -> Any:
        """The write has ended, and is about to be added."""
        clock.minutes += 20
        places.append(writer.append(b"late"))
        return recover_last(*arguments)

    monkeypatch.setattr(atomic, "recover_last", late)
    for _ in range(writes):
        clock.minutes += 10
        commit(ground, atomic.stage(ground.context, "orders"), b"write")
        writer = log.become_writer()

    assert log.position_at(at(15)) == places[0]
    payloads = [b"late", b"write"] * writes
    assert [e.payload for e in log.entries(start_time=at(15))] == payloads


def test_a_log_of_many_writes_is_not_read_back_to_its_beginning(
    ground: Ground, clock: Clock, log: Log
) -> None:
    for clock.minutes in range(10):
        log.write(table(b"%d" % clock.minutes))
    ledgers = log.ledgers()
    ground.forget()

    assert log.position_at(at(8.5)) == Position(ledgers[9], EntryId(0))
    asked = {step.path for step in ground.steps if step.path.startswith("ledgers/")}
    for ledger_id in ledgers[:6]:
        assert not [path for path in asked if path.startswith(f"ledgers/{ledger_id}-")]


@pytest.mark.parametrize("by", ["truncate", "retention"])
def test_what_came_while_a_later_ledger_was_being_written_is_as_old_as_its_rows(
    tmp_path: Path, by: str
) -> None:
    clock = Clock()
    ground = Ground(tmp_path, runtime=clock)
    retain = 60 * 60 if by == "retention" else None
    log = create_log(ground.context, "orders", LogOptions(Quorum(3, 3, 2), retain_seconds=retain))
    log.write(table(b"old"))
    clock.minutes = 10
    first, second = (atomic.stage(ground.context, "orders") for _ in range(2))
    clock.minutes = 200
    commit(ground, first, b"200")
    clock.minutes = 201
    commit(ground, second, b"201")  # looks what is older than an hour

    if by == "truncate":
        log.truncate(at(100))
    assert log.read_arrow().column("payload").to_pylist() == [b"200", b"201"]
    if by == "truncate":
        log.truncate(at(200.5))
    else:
        clock.minutes = 300
        log.write(table(b"300"))
    assert b"200" not in log.read_arrow().column("payload").to_pylist()


def test_a_writer_whose_clock_jumps_ahead_removes_nothing_early(tmp_path: Path) -> None:
    clock = Clock()
    ground = Ground(tmp_path, runtime=clock)
    ground.cluster.clock_ms = lambda: int(at(3).timestamp() * 1000)
    options = LogOptions(Quorum(3, 3, 2), retain_seconds=60 * 60)
    log = create_log(ground.context, "orders", options)
    for clock.minutes in (0, 1, 2, 10_000, 3):
        log.write(table(b"%d" % clock.minutes))

    assert log.read_arrow().column("payload").to_pylist() == [b"0", b"1", b"2", b"10000", b"3"]


def test_a_ledger_that_somebody_deleted_does_not_keep_those_before_it(
    ground: Ground, clock: Clock, log: Log
) -> None:
    for clock.minutes in range(4):
        log.write(table(b"%d" % clock.minutes))
    first, second, *_ = log.ledgers()
    lifecycle.delete_ledger(ground.context, second)

    assert log.truncate(at(1.5)) == [first]
    assert log.read_arrow().column("payload").to_pylist() == [b"2", b"3"]


@pytest.mark.parametrize("by", ["truncate", "retention"])
def test_a_ledger_whose_last_entry_is_lost_does_not_keep_those_behind_it(
    tmp_path: Path, by: str
) -> None:
    clock = Clock()
    ground = Ground(tmp_path, 3, runtime=clock)
    retain = 60 if by == "retention" else None
    log = create_log(ground.context, "orders", LogOptions(Quorum(3, 3, 2), retain_seconds=retain))
    log.write(table(b"lost"))
    (lost,) = log.ledgers()
    remove_files(ground, lost)
    for clock.minutes in (10, 20):
        log.write(table(b"%d" % clock.minutes))

    if by == "truncate":
        log.truncate(at(15))
    assert log.read_arrow().column("payload").to_pylist() == [b"20"]


@pytest.mark.parametrize("why", ["lost", "of an earlier version"])
def test_a_ledger_whose_end_has_no_time_stays_until_the_next_one_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Its other entries may be young."""
    clock = Clock()
    ground = Ground(tmp_path, 3, runtime=clock)
    log = create_log(ground.context, "orders", USUAL)
    for begun in (0, 61):
        clock.minutes = begun
        with log.become_writer() as writer:
            clock.minutes = begun + 59
            writer.append(b"%d" % clock.minutes)
    first, second = log.ledgers()
    if why == "lost":
        remove_files(ground, first)
    else:
        monkeypatch.setattr(truncation, "appended_at_ms_of", lambda *_, **__: None)

    assert log.truncate(at(30)) == []
    assert log.truncate(at(62)) == [first]
    assert list(log.ledgers()) == [second]


def test_a_ledger_whose_end_bookies_may_know_that_do_not_answer_stays(tmp_path: Path) -> None:
    clock = Clock()
    ground = Ground(tmp_path, 4, runtime=clock)
    options = LogOptions(Quorum(3, 3, 2), retain_seconds=10 * 60)
    log = create_log(ground.context, "orders", options)
    for clock.minutes in range(3):
        log.write(table(b"%d" % clock.minutes))
    first, second, third = log.ledgers()
    ensemble = ground.context.store.read_ledger(second).value.fragments[0].ensemble
    assert b"1" in log.read_arrow().column("payload").to_pylist()
    is_silent = silent(ensemble[0], within=f"ledgers/{second}-")

    remove_files(ground, second, ensemble[1:])
    ground.before.append(is_silent)
    with pytest.raises(EntryUnreadableError, match="does not answer"):
        log.truncate(at(5))
    assert log.ledgers() == [first, second, third]
    clock.minutes = 30
    log.write(table(b"30"))  # looks what is older than ten minutes
    assert log.ledgers()[:2] == [second, third]
    ground.before.remove(is_silent)
    clock.minutes = 50
    log.write(table(b"50"))
    assert second not in log.ledgers()


def test_the_ends_of_the_calendar_are_times_and_nothing_else_is(tmp_path: Path) -> None:
    log = create_log(Ground(tmp_path).context, "orders", USUAL)
    log.write(table(b"a"))
    for least in (datetime.min, datetime.min.replace(tzinfo=timezone.utc)):  # noqa: DTZ901
        assert len(list(log.entries(start_time=least))) == 1
        assert log.truncate(least) == []
    for most in (datetime.max, datetime.max.replace(tzinfo=timezone.utc)):  # noqa: DTZ901
        assert list(log.entries(start_time=most)) == []
        assert log.truncate(most) == []
    for no_place in (None, 1.5, True, at(0).date(), "2026-01-01"):
        with pytest.raises(InvalidArgumentError):
            log.truncate(no_place)  # type: ignore[arg-type]  # what a person may type
    with pytest.raises(InvalidArgumentError, match=r"a time: datetime\(2026"):
        log.truncate(at(0).date())  # type: ignore[arg-type]
    for wrong in ("yesterday", 7, pd.NaT, at(0).date()):
        with pytest.raises(InvalidArgumentError, match="time"):
            log.position_at(wrong)  # type: ignore[arg-type]


def table(payload: bytes) -> pa.Table:
    return pa.table({"payload": pa.array([payload], pa.binary())})


def commit(ground: Ground, staged: StagedWrite, payload: bytes) -> LedgerId:
    """A write that its tasks have done."""
    results = write_local(staged.plan, table(payload), ground.context)
    done = atomic.commit(ground.context, staged, results)
    assert done.ledger_id is not None
    return done.ledger_id
